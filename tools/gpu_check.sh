#!/usr/bin/env bash
# Everything that CI cannot run, on a machine with a GPU: the step 1 tests over both devices, compute-sanitizer
# on a quick set of them, and the benchmarks of the CUDA ladders.
#
#   tools/gpu_check.sh [BUILD [OUT]]     BUILD: build folder, default build/release; OUT: results, default ./gpu_check
set -uo pipefail
build=${1:-build/release}
out=${2:-gpu_check}
mkdir -p "$out"
failed=0

# Checked for bad accesses: every operator, at small sizes. Left out, for time: the thousand single calls of
# the GELU tail, sampling statistics, 2^31 elements, and everything that only repeats a shape.
quick='*EqualsDoublePrecision*:*RmsNorm*:*WritesEachRowToItsSlot*:*HeadDimensionsAndGroups*:*MixedQueryLengths*'
quick+=':*EveryRungIsExact*:*RowsOfWholePacks*:*FewRowsOf*:*Argmax*:*TopK*:*TopP*:*MinP*:*Penalt*:*TopLogprobs*'
# Checked for races, which takes far longer: the kernels that use shared memory, where a test of theirs is
# small. Left out: the matrix products and top-k over large rows.
shared='*RmsNorm.EqualsDoublePrecision:*RmsNorm.NormsHeads*:*PassesOverNaN*:*EqualTokens*:*ZeroAndEqualOnes*'
shared+=':*SomeSequencesShare*:*HeadDimensionsAndGroups*'

step() {  # step NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  "$@" >"$out/$name.txt" 2>&1
  local status=$?
  echo "$name: exit $status, $((SECONDS - start)) s"
  grep -E '^\[  (PASSED|FAILED|SKIPPED)|ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.txt" | tail -20
  [ $status -eq 0 ] || failed=1
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
step tests timeout 100 "$build/tests/test_step1" --gtest_brief=1
step memcheck timeout 100 compute-sanitizer --tool memcheck --error-exitcode 1 \
  "$build/tests/test_step1" --gtest_brief=1 --gtest_filter="$quick"
step racecheck timeout 90 compute-sanitizer --tool racecheck --error-exitcode 1 \
  "$build/tests/test_step1" --gtest_brief=1 --gtest_filter="$shared"
step bench timeout 130 "$build/bench/bench_step1" --benchmark_filter=cuda: \
  --benchmark_out="$out/step1_layers.json" --benchmark_out_format=json
exit $failed
