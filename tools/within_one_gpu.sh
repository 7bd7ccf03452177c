#!/usr/bin/env bash
# One GPU that computes prompts beside answers: every cure of chapter 8.7 under the same load, in one go. Raw output goes to a
# folder; tools/within_one_gpu_table.py makes the chapter's tables of it.
#
#   tools/within_one_gpu.sh [--build DIR] [--out DIR] [PART...]
#
# DIR of --build: a build folder of CMake, or a folder with the binaries (default build/release). --out: default ./within_one_gpu.
# Without a GPU everything runs small, on the CPU, to try the script itself. Parts, all of them by default, about ten minutes:
#   tests     shares of a GPU, runners and engines on them
#   shares    a step of answers and one of a prompt of 8B on every share, alone and beside each other
#   chunked   8B behind a server, prompts in chunks of 512, 1,024 and 2,048 beside the answers
#   lanes     8B with a lane for each: two plain streams; shares with a border that moves
#   two       two processes on the one GPU, one for prompts and one for answers
# Each server gets three loads: prompts of 4,096 to 16,384 tokens and 256 out, at 0.7 of what the GPU can compute of prompts; the
# same, all at once, for what it can do; and prompts of 1,024 and 128 out.
set -uo pipefail
every=(tests shares chunked lanes two)
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
    long=(--min-prompt-len 4096 --max-prompt-len 16384 --output-len 256 --vocab-size 100000 --request-rate 1.2 --num-prompts 48
      --goodput ttft:3000 tpot:12)
    full=(--min-prompt-len 4096 --max-prompt-len 16384 --output-len 256 --vocab-size 100000 --num-prompts 32)
    short=(--min-prompt-len 1024 --max-prompt-len 1024 --output-len 128 --vocab-size 100000 --request-rate 10 --num-prompts 150
      --goodput ttft:1000 tpot:12)
  else
    model=tinyworld serving=(--num-kv-blocks 512)
    long=(--min-prompt-len 100 --max-prompt-len 200 --output-len 16 --vocab-size 1000 --request-rate 4 --num-prompts 8
      --goodput ttft:3000 tpot:100)
    full=(--min-prompt-len 100 --max-prompt-len 200 --output-len 16 --vocab-size 1000 --num-prompts 8)
    short=(--min-prompt-len 20 --max-prompt-len 20 --output-len 8 --vocab-size 1000 --request-rate 8 --num-prompts 8
      --goodput ttft:3000 tpot:100)
  fi
}

# serve_loads NAME FLAG...: a server, and the loads on it
serve_loads() {
  local name=$1 server load start=$SECONDS
  shift
  : >"$out/server_$name.txt"
  "$(binary ladder)" serve --model "models/$model" --load-format dummy --device "$device" --port $port "${serving[@]}" "$@" \
    >"$out/server_$name.txt" 2>&1 &
  server=$!
  for _ in {1..600}; do
    grep -q 'listening on' "$out/server_$name.txt" || ! kill -0 $server 2>/dev/null || { sleep 0.2; continue; }
    break
  done
  echo "$name: listens after $((SECONDS - start)) s"
  run "long_$name" 110 "$(binary ladder)" bench serve --port $port "${long[@]}" --json "$out/long_$name.json"
  run "full_$name" 80 "$(binary ladder)" bench serve --port $port "${full[@]}" --json "$out/full_$name.json"
  run "short_$name" 60 "$(binary ladder)" bench serve --port $port "${short[@]}" --json "$out/short_$name.json"
  kill -TERM $server
  wait $server || failed=1
  grep -a '^ladder: ' "$out/server_$name.txt" | sed 's/^/  /'
}

tests() {
  run tests_step1 100 "$(binary test_step1)" --gtest_filter='*SmPartition*'
  run tests_step8 200 "$(binary test_step8)" --gtest_filter='*GpuShares*:*Task8_7_Border*'
}

shares() {
  [ "$gpus" -eq 0 ] || run shares 240 "$(binary bench_step8)" --benchmark_filter=sm_partition \
    --benchmark_out="$out/shares.json" --benchmark_out_format=json
}

chunked() {
  local chunk
  for chunk in "${chunks[@]}"; do serve_loads "chunks_$chunk" --max-num-batched-tokens "$chunk"; done
}

lanes() {
  serve_loads lanes_shares --phase-lanes "${border[@]}" --max-num-batched-tokens "$prompt_step"
  serve_loads lanes_plain --phase-lanes "${plain[@]}" --max-num-batched-tokens "$prompt_step"
}

two() {
  serve_loads two_processes --disaggregate 1P1D
}

mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
device=cuda chunks=(${CHUNKS:-512 1024 2048}) prompt_step=${PROMPT_STEP:-4096}
border=(--sm-partition auto --max-itl "${MAX_ITL:-10}") plain=(--sm-partition off)
[ "$gpus" -gt 0 ] || { device=cpu chunks=(64) prompt_step=64 border=() plain=(); }
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
