#!/usr/bin/env bash
# One GPU that computes prompts beside answers: every cure of chapter 8.7 under the same load, in one go. Raw output goes to a
# folder; tools/within_one_gpu_table.py makes the chapter's tables of it.
#
#   tools/within_one_gpu.sh [--build DIR] [--out DIR] [PART...]
#
# DIR of --build: a build folder of CMake, or a folder with the binaries (default build/release). --out: default ./within_one_gpu.
# Without a GPU only `two` runs, small and on the CPU, to try the script itself. Parts, all of them by default, about twelve minutes:
#   tests     shares of a GPU, runners and engines on them
#   shares    a step of answers and one of a prompt of 8B on every share, alone and beside each other
#   cures     8B, the whole engine: prompts in chunks, lanes on two streams, lanes on shares; bench/step8_advanced/one_gpu_bench.cpp
#             says what the loads are
#   two       the same loads on two processes of the one GPU, one for prompts and one for answers, behind a server
set -uo pipefail
every=(tests shares cures two)
# shellcheck source=tools/gpu_check_arguments.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/gpu_check_arguments.sh"

run() {  # run NAME SECONDS COMMAND...: its output in NAME.txt
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
  [ $status -eq 0 ] || failed=1
  echo "$name: exit $status, $((SECONDS - start)) s"
  grep -aE '^\[  (PASSED|FAILED)|error:|ITL|TTFT|goodput|^output tokens/s' "$out/$name.txt" | tail -8 | sed 's/^/  /'
}

set_loads() {
  port=18090
  if [ "$gpus" -gt 0 ]; then
    model=llama-3.1-8b serving=(--max-model-len 16768 --no-prefix-caching)
    # Of this rate and seed prompts wait as long as of one_gpu_bench.cpp's draw, whose 40 come within 40 s.
    long=(--min-prompt-len 4096 --max-prompt-len 16384 --output-len 256 --vocab-size 100000 --request-rate 1 --seed 49 --num-prompts 40)
    full=(--min-prompt-len 4096 --max-prompt-len 16384 --output-len 256 --vocab-size 100000 --num-prompts 24)
    short=(--min-prompt-len 1024 --max-prompt-len 1024 --output-len 128 --vocab-size 100000 --request-rate 10 --num-prompts 120)
  else
    model=tinyworld serving=(--num-kv-blocks 512)
    long=(--min-prompt-len 100 --max-prompt-len 200 --output-len 16 --vocab-size 1000 --request-rate 4 --num-prompts 8)
    full=(--min-prompt-len 100 --max-prompt-len 200 --output-len 16 --vocab-size 1000 --num-prompts 8)
    short=(--min-prompt-len 20 --max-prompt-len 20 --output-len 8 --vocab-size 1000 --request-rate 8 --num-prompts 8)
  fi
}

tests() {
  run tests_step1 100 "$(binary test_step1)" --gtest_filter='*SmPartition*'
  run tests_step8 200 "$(binary test_step8)" --gtest_filter='*GpuShares*:*Task8_7_Border*'
}

shares() {
  [ "$gpus" -eq 0 ] || run shares 240 "$(binary bench_step8)" --benchmark_filter=sm_partition \
    --benchmark_out="$out/shares.json" --benchmark_out_format=json
}

cures() {
  [ "$gpus" -eq 0 ] || run cures 700 "$(binary bench_step8)" --benchmark_filter=one_gpu --benchmark_out="$out/one_gpu.json" \
    --benchmark_out_format=json
}

two() {
  local server start=$SECONDS load
  : >"$out/server.txt"
  "$(binary ladder)" serve --model "models/$model" --load-format dummy --device "$device" --port $port "${serving[@]}" \
    --disaggregate 1P1D >"$out/server.txt" 2>&1 &
  server=$!
  for _ in {1..600}; do
    grep -q 'listening on' "$out/server.txt" || ! kill -0 $server 2>/dev/null || { sleep 0.2; continue; }
    break
  done
  echo "two processes: listen after $((SECONDS - start)) s"
  for load in long full short; do
    local -n flags=$load
    run "${load}_two_processes" 110 "$(binary ladder)" bench serve --port $port "${flags[@]}" --json "$out/${load}_two_processes.json"
  done
  kill -TERM $server
  wait $server || failed=1
}

mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
device=cuda
[ "$gpus" -gt 0 ] || device=cpu
set_loads
cd "$root"
commit=${LADDER_COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)}
export LADDER_COMMIT=$commit  # for the reports of `ladder bench`
{ nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null; echo "commit $commit"; } | tee "$out/gpu.txt"
for part in "${parts[@]}"; do
  echo "== $part"
  "$part"
done
exit $failed
