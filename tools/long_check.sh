#!/usr/bin/env bash
# What takes too long for every change: run it before a release, and keep its summary.
#
#   tools/long_check.sh [--out DIR] [PART...]
#
# --out: default ./long_check. Parts, all of them by default:
#   commands   the documented commands that are slow (tools/documented_commands.txt)
#   tsan       the tests under ThreadSanitizer
#   fuzz       every libFuzzer target for five minutes (clang 16)
#   jinja      3,000 random chat templates of a fresh seed against jinja2, which pip installs into DIR
#   quantized  tinyworld quantized in every way that has a file, and read back with transformers and compressed-tensors, which
#              pip installs into DIR, 6 GB
#   soak       the random tests of steps 1, 2 and 6, twenty times with fresh seeds
#   server     whatever clients do to a server for ten minutes (tests/step6_engine/server/server_soak_test.cpp), under
#              AddressSanitizer and again under ThreadSanitizer
#   kills      20,000 requests to `ladder serve` with replicas and API servers, which are killed at random
#              (tests/cli/serve_soak_test.cpp); 10,000 to `ladder serve --disaggregate`, whose prefill server is killed at
#              random and in the middle of transfers (tests/cli/disaggregated_soak_test.cpp)
#   ucx        the tests of every transport of keys and values once more for UCX over TCP, ten times
#   mutants    defects planted in the core tasks, each of which a test must find (tools/mutants.py)
#   cheats     known cheats of the course's graders, and answers that are right but slow (tools/course_cheats.py)
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
out=long_check
parts=()
every=(commands tsan fuzz jinja quantized soak server kills ucx mutants cheats)

fail() { echo "long_check: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --out)
      [ -n "${2:-}" ] || fail "--out: expected a folder after it"
      out=$2
      shift ;;
    *)
      [[ " ${every[*]} " = *" $1 "* ]] || fail "$1: expected --out DIR, or some of ${every[*]}"
      parts+=("$1") ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${every[@]}")
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$root"

commands() { python3 -B tools/run_documented_commands.py --kind slow; }

tsan() { cmake --preset tsan && cmake --build --preset tsan && ctest --preset tsan -j "$(nproc)"; }

fuzz() {
  cmake --preset fuzz && cmake --build --preset fuzz || return 1
  local corpus target status=0
  for corpus in tests/fuzz/corpus/*/; do
    target=$(basename "$corpus")
    # New inputs go to the folder that is named first, not into the checkout.
    mkdir -p "$out/corpus/$target"
    "build/fuzz/tests/fuzz/fuzz_$target" -max_total_time=300 -artifact_prefix="$out/fuzz_$target-" \
      "$out/corpus/$target" "$corpus" || status=1
  done
  return $status
}

jinja() {
  local python="$out/jinja2/bin/python" seed=$RANDOM$RANDOM
  python3 -m venv "$out/jinja2" && "$python" -m pip install -q jinja2 || return 1
  "$python" -B tools/goldens/jinja_oracle.py random "$seed" 3000 "$out/jinja.jsonl" || return 1
  cmake -G Ninja -S . -B build/release -DCMAKE_BUILD_TYPE=Release && cmake --build build/release --target test_step2 || return 1
  LADDER_JINJA_CASES="$out/jinja.jsonl" build/release/tests/test_step2 --gtest_brief=1 --gtest_filter='JinjaOracle.*' || return 1
  echo "seed $seed: 3000 templates, equal"
}

quantized() {
  local python="$out/transformers/bin/python" folders="$out/quantized" text=models/tinyworld/eval/text.jsonl name scheme method
  python3 -m venv "$out/transformers" && "$python" -m pip install -q torch transformers compressed-tensors || return 1
  cmake -G Ninja -S . -B build/release -DCMAKE_BUILD_TYPE=Release && cmake --build build/release --target ladder || return 1
  rm -rf "$folders" && mkdir "$folders" || return 1
  for name in W4A16/rtn W4A16/gptq W4A16_ASYM/rtn W4A16_ASYM/awq W3A16/gptq W8A16/rtn W8A8/rtn FP8_DYNAMIC/rtn FP8_BLOCK/rtn \
    NVFP4A16/rtn MXFP4A16/rtn MXFP8A16/rtn; do
    scheme=${name%/*} method=${name#*/}
    local -a more=()
    [ "$method" = rtn ] || more=(--calibration "$text" --num-samples 64 --max-seq-len 512)
    build/release/ladder quantize --model models/tinyworld --output "$folders/$scheme-$method" --scheme "$scheme" --method "$method" \
      "${more[@]}" || return 1
  done
  echo '{"stages": [{"method": "rtn", "scheme": "W4A16"}, {"method": "rtn", "scheme": "W8A16", "targets": ["lm_head"]}]}' >"$out/head.json"
  build/release/ladder quantize --model models/tinyworld --output "$folders/W4A16-head-W8A16" --recipe "$out/head.json" || return 1
  "$python" -B tools/check_quantized_with_transformers.py --base models/tinyworld --ladder build/release/ladder "$folders"/*
}

soak() {
  cmake -G Ninja -S . -B build/release -DCMAKE_BUILD_TYPE=Release && cmake --build build/release || return 1
  local step status=0
  for step in 1 2 6; do
    "build/release/tests/test_step$step" --gtest_brief=1 --gtest_repeat=20 --gtest_filter='*Random*' || status=1
  done
  return $status
}

server() {
  local preset status=0
  for preset in asan tsan; do
    cmake --preset "$preset" && cmake --build --preset "$preset" --target test_server || return 1
    echo "$preset:"
    LADDER_SOAK_SECONDS=600 "build/$preset/tests/test_server" --gtest_filter='Server_Soak.*' || status=1
  done
  return $status
}

kills() {
  cmake -G Ninja -S . -B build/release -DCMAKE_BUILD_TYPE=Release && cmake --build build/release --target ladder test_cli || return 1
  local status=0
  LADDER_SOAK_REQUESTS=20000 build/release/tests/test_cli --gtest_filter='Cli_ServeSoak.*' || status=1
  LADDER_SOAK_REQUESTS=10000 build/release/tests/test_cli --gtest_filter='Cli_DisaggregatedSoak.*' || status=1
  return $status
}

ucx() {
  cmake -G Ninja -S . -B build/release -DCMAKE_BUILD_TYPE=Release && cmake --build build/release --target test_step8 || return 1
  LADDER_TEST_UCX_OVER_TCP=1 build/release/tests/test_step8 --gtest_filter='*ucx_over_tcp*' --gtest_repeat=10 --gtest_brief=1
}

mutants() { python3 -B tools/mutants.py; }

cheats() { python3 -B tools/course_cheats.py; }

failed=0
summary=()
for part in "${parts[@]}"; do
  start=$SECONDS
  "$part" >"$out/$part.txt" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  summary+=("$(printf '%-9s %-7s %5d s   %s' "$part" "$([ $status -eq 0 ] && echo ok || echo FAILED)" \
    $((SECONDS - start)) "$(tail -n 1 "$out/$part.txt")")")
  echo "${summary[-1]}"
done
{
  printf 'commit %s\n%s, %s cores\n' "$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)" \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)"
  printf '%s\n' "${summary[@]}"
} >"$out/summary.txt"
exit $failed
