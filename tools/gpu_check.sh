#!/usr/bin/env bash
# Everything that CI cannot run, on a machine with a GPU. Raw output of every part goes to a folder; the last part
# fills in the table of what the engine and its kernels must reach from it.
#
#   tools/gpu_check.sh [--build DIR] [--out DIR] [PART...]
#
# DIR of --build: a build folder of CMake, or a folder with the binaries (default build/release). --out: default
# ./gpu_check. Parts, all of them by default, each within five minutes:
#   tests      the tests that touch the GPU, of every step
#   memcheck   compute-sanitizer memcheck on a quick set of them
#   racecheck  compute-sanitizer racecheck on the kernels that use shared memory
#   synccheck  compute-sanitizer synccheck on the same: barriers and matrix instructions that a warp misses
#   bench      the CUDA ladders of step 1, and the products of whole layers (step 2)
#   engine     ladder bench: latency, throughput, prefill, progression, graph-replay
#   peers      what they are compared with, in PyTorch
#   shapes     activation and RMSNorm at three plain shapes, ours and PyTorch's
#   table      tools/h200_table.py over the results (needs no GPU)
set -uo pipefail
every=(tests memcheck racecheck synccheck bench engine peers shapes table)
# shellcheck source=tools/gpu_check_arguments.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/gpu_check_arguments.sh"

# With SHARDS=N before it, the tests of a program run in N processes side by side: most of their time goes into
# references on the CPU. The log is the processes' logs in turn.
step() {  # step NAME SECONDS COMMAND...
  local name=$1 limit=$2 start=$SECONDS shards=${SHARDS:-1} status=0 shard processes=()
  shift 2
  rm -f "$out/$name.all"
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout "$limit" "$@" >"$out/$name.$shard" 2>&1 &
    processes+=($!)
  done
  for ((shard = 0; shard < shards; ++shard)); do
    wait "${processes[shard]}" || { local one=$?; [ $status -eq 124 ] || status=$one; }
    cat "$out/$name.$shard" >>"$out/$name.all"
    rm "$out/$name.$shard"
  done
  mv "$out/$name.all" "$out/$name.txt"
  [ $status -ne 124 ] || echo "gpu_check: stopped after $limit s" >>"$out/$name.txt"
  # Tests that did not run, or not on the GPU, must not look like tests that pass.
  local fault=
  if grep -q '^\[=\+\] 0 tests from' "$out/$name.txt" && ! grep -q '^\[=\+\] [1-9][0-9]* tests\? from' "$out/$name.txt"; then
    fault='no test has such a name'
  elif grep -aq -e 'no CUDA rung was run' -e '^no GPU' "$out/$name.txt"; then
    fault='tests left the GPU out'
  fi
  if [ -n "$fault" ]; then
    echo "gpu_check: FAILED: $fault" >>"$out/$name.txt"
    [ $status -ne 0 ] || status=1
  fi
  echo "$name: exit $status, $((SECONDS - start)) s"
  grep -aE '^\[  (PASSED|FAILED)|^\[ +SKIPPED \] [0-9]|ERROR SUMMARY|RACECHECK SUMMARY|^gpu_check' "$out/$name.txt" |
    tail -12 | sed 's/^/  /'
  return $status
}

run() { step "$@" || failed=1; }

# Checks may run beside each other; nothing is timed meanwhile.
checks=()
beside() { step "$@" & checks+=($!); }
join_checks() {
  local check
  for check in "${checks[@]}"; do wait "$check" || failed=1; done
  checks=()
}

# Of the steps above the first, the tests that put something on the GPU; steps 3 and 5 have none.
gpu_tests='*cuda*:*Gpu*:*Composites*:*DeviceInputs*:*DeviceFaults*'

# Checked for bad accesses: every operator at small sizes, the fused composites, and whole small models on the GPU.
# Left out, for time: single calls in the thousands (the tail of GELU), statistics of sampling, tensors of 2^31
# elements, and everything that only repeats a shape.
quick='*EqualsDoublePrecision*:*RmsNorm*:*WritesEachRowToItsSlot*:*HeadDimensionsAndGroups*:*MixedQueryLengths*'
quick+=':*Matmul.IsExact*:*RowsOfWholePacks*:*FewRowsOf*:*Argmax*:*TopK*:*TopP*:*MinP*:*Penalt*:*TopLogprobs*'
quick+=':*Draw.TakesTheBest*:*Draw.RunsTheFilters*:*RowsPast*:*OneSmallCall*:*ACapturedBatch*'
quick+=':*RandomShapes*:*RandomBatches*:*RowsOfAWiderTensor*:*NothingToStore*'
quick+=':Task8_6_KvCodes.A*:Task8_6_PagedAttentionOfCodes.TakesPrompts*'

# Checked for races, which takes far longer: the kernels that use shared memory, each where a test of theirs is small.
# Left out: larger shapes of the same kernels (a tile of a matrix product takes minutes under racecheck), and every
# operator without shared memory. The fused pieces of a layer (step 2) are rows_stream with a norm before or a sum
# after, so they are checked too.
declare -A shared=(
  [3]='Task1_3_*EqualsDoublePrecision*:Task1_3_*NormsHeads*:Task1_3_FusedAddRmsNorm*'
  [4]='Task1_4_Matmul.OneSmallCall*'
  [7]='Task1_7_*OneSmallCall*:Task1_7_*HeadDimensionsAndGroups*:Task1_7_*SomeSequencesShare*:Task1_7_*RowsPast*:Task1_7_QkNormRopeStore.Equals*:Task8_6_PagedAttentionOfCodes.ScalesMay*'
  [8]='Task1_8_*OneSmallCall*:Task1_8_*ARowWithANaN*:Task1_8_TopK.Keeps*:Task1_8_*EqualTokens*:Task1_8_MinP.Keeps*:Task1_8_Sample.TinyTemperatures*'
)

tests() {
  SHARDS=8 run tests_step1 150 "$(binary test_step1)" --gtest_brief=1
  local number
  for number in 2 4 6; do
    SHARDS=8 run "tests_step$number" 150 "$(binary "test_step$number")" --gtest_brief=1 --gtest_filter="$gpu_tests"
  done
  SHARDS=8 run tests_cli 150 "$(binary test_cli)" --gtest_brief=1 --gtest_filter="$gpu_tests"
}

memcheck() {
  SHARDS=4 beside memcheck_step1 240 compute-sanitizer --tool memcheck --error-exitcode 1 \
    "$(binary test_step1)" --gtest_brief=1 --gtest_filter="$quick"
  beside memcheck_step2 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
    "$(binary test_step2)" --gtest_brief=1 --gtest_filter='*Composites*'
  beside memcheck_step6 120 compute-sanitizer --tool memcheck --error-exitcode 1 \
    "$(binary test_step6)" --gtest_brief=1 --gtest_filter='*GreedyTokens*/qwen3_tied_cuda:*DrawsTheTokens*'
  join_checks
}

shared_memory() {  # shared_memory TOOL: of compute-sanitizer, over the tests above
  local task
  for task in 3 4 7 8; do  # the tasks of step 1 whose kernels use shared memory
    beside "$1_task1_$task" 240 compute-sanitizer --tool "$1" --error-exitcode 1 \
      "$(binary test_step1)" --gtest_brief=1 --gtest_filter="${shared[$task]}"
  done
  beside "$1_task2_4" 240 compute-sanitizer --tool "$1" --error-exitcode 1 \
    "$(binary test_step2)" --gtest_brief=1 --gtest_filter='Task2_4_Composites.SmallCalls*'
  join_checks
}

racecheck() { shared_memory racecheck; }
synccheck() { shared_memory synccheck; }

bench() {
  # All problems but shape:..., which are the part `shapes`.
  run bench_step1 200 "$(binary bench_step1)" --benchmark_filter='^[^/]+/([^s]|s[^h]).*cuda:|ceiling_of_gpu' \
    --benchmark_context=commit="$LADDER_COMMIT" --benchmark_out="$out/step1_layers.json" --benchmark_out_format=json
  run bench_step2 60 "$(binary bench_step2)" --benchmark_filter='cuda:' \
    --benchmark_context=commit="$LADDER_COMMIT" --benchmark_out="$out/step2_model.json" --benchmark_out_format=json
}

model_bench() {  # model_bench NAME SECONDS KIND MODEL ARGUMENTS...: random weights of a model's shape
  local name=$1 limit=$2 kind=$3 model=$4
  shift 4
  run "$name" "$limit" "$(binary ladder)" bench "$kind" --model "models/$model" --load-format dummy --device cuda \
    --json "$out/$name.json" "$@"
}

engine() {
  model_bench latency_qwen3-0.6b 40 latency qwen3-0.6b --prompt-len 32 --output-len 96 --repeat 5
  model_bench throughput_qwen3-0.6b 40 throughput qwen3-0.6b
  # As many requests as rows, all of one length, and their prompts in one step: then all steps are decode steps.
  local batch
  for batch in 32 256; do
    model_bench "decode${batch}_qwen3-0.6b" 30 throughput qwen3-0.6b --num-requests $batch --min-prompt-len 32 \
      --max-prompt-len 32 --min-output-len 96 --max-output-len 96 --temperature 0
  done
  model_bench graph_replay_qwen3-0.6b 40 graph-replay qwen3-0.6b
  model_bench latency_qwen3-8b 60 latency qwen3-8b --prompt-len 32 --output-len 96 --repeat 3
  model_bench prefill_qwen3-8b 60 latency qwen3-8b --prompt-len 8192 --output-len 2 --max-num-batched-tokens 8192 \
    --max-model-len 8200 --repeat 5
  model_bench progression 120 progression qwen3-0.6b --shared-prefix-len 1024 --min-prompt-len 256 \
    --max-prompt-len 2048 --max-num-batched-tokens 512
}

peers() {
  run peers_kernels 100 python3 -B bench/peers/peers.py --only matmul,attention,elementwise,sampling \
    --json "$out/peers_kernels.json"
  run peers_engine 140 python3 -B bench/peers/peers.py --only decode --models qwen3-0.6b \
    --json "$out/peers_engine.json"
}

shapes() {
  run shapes 60 "$(binary bench_step1)" --benchmark_filter='/shape:.*cuda:|ceiling_of_gpu' \
    --benchmark_context=commit="$LADDER_COMMIT" --benchmark_out="$out/shapes.json" --benchmark_out_format=json
  run peers_shapes 100 python3 -B bench/peers/peers.py --only shapes --json "$out/peers_shapes.json"
}

table() {
  run table 20 python3 -B tools/h200_table.py "$out"
  cat "$out/table.txt"
}

if [ "${parts[*]}" != table ]; then
  [ -d "$build" ] || fail "--build $build: no such folder"
  build=$(cd "$build" && pwd)
  gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) || fail "no GPU here"
  # The driver may serve nvidia-smi and not this build, or the build may have no CUDA.
  if [ "${parts[*]}" != peers ]; then
    reason=$("$(binary ladder)" info --device cuda 2>&1) || fail "${reason##*$'\n'}"
  fi
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$root"
if [ "${parts[*]}" != table ]; then
  # Where there is no checkout, LADDER_COMMIT says what was built.
  commit=${LADDER_COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)}
  export LADDER_COMMIT=$commit  # for the reports of `ladder bench`
  printf '%s\ncommit %s\n' "$gpu" "$commit" | tee "$out/gpu.txt"
fi
for part in "${parts[@]}"; do
  "$part"
done
exit $failed
