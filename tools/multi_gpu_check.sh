#!/usr/bin/env bash
# What several GPUs of one host do for step 7: the tests that need them, and each kind of ranks beside one GPU, measured in
# one go. Raw output of every part goes to a folder; the last part makes a table of it.
#
#   tools/multi_gpu_check.sh [--build DIR] [--out DIR] [PART...]
#
# It takes the GPUs that it finds: 2, 4 or 8; with fewer than two everything runs small, on the CPU, to try the script itself.
# DIR of --build: a build folder of CMake, or a folder with the binaries (default build/release). --out: default
# ./multi_gpu_check. Parts, all of them by default, under ten minutes together:
#   smoke        the tiny model's text on grids of ranks is that of one rank; nothing else is tried where it is not
#   alone        one GPU by itself, several such runs side by side: what the other parts are compared with
#   tensor       8B: one request, short and behind 130,000 tokens, a prompt of 8,192 tokens, the common workload;
#                communication's share
#   pipeline     8B: 1,024 requests, as many steps in flight as stages, and one at a time
#   data         0.6B: 1,024 requests, a replica on each GPU; sessions by two balancers
#   expert       30B-A3B: the common workload, experts whole on their GPUs
#   context      8B: a prompt of 65,536 tokens, its rows shared out
#   tests        of communicators, workers and the exchange of experts
#   collectives  all-reduces, dispatch and combine
#   fault        a worker is killed: one line, nothing left on the GPUs
#   table        tools/multi_gpu_table.py over the results (needs no GPU)
set -uo pipefail
every=(smoke alone tensor pipeline data expert context tests collectives fault table)
# shellcheck source=tools/gpu_check_arguments.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/gpu_check_arguments.sh"

run() {  # run NAME SECONDS COMMAND...: its output in NAME.txt
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
  [ $status -ne 124 ] || echo "multi_gpu_check: stopped after $limit s" >>"$out/$name.txt"
  [ $status -eq 0 ] || failed=1
  echo "$name: exit $status, $((SECONDS - start)) s"
  grep -aE '^\[  (PASSED|FAILED)|error:|^multi_gpu_check|^output tokens/s|^communication|^bubbles|^run [0-9]|found in the cache +[0-9]' "$out/$name.txt" |
    tail -6 | sed 's/^/  /'
  return $status
}

bench() {  # bench NAME SECONDS KIND MODEL ARGUMENTS...: random weights of a model's shape
  local name=$1 limit=$2 kind=$3 model=$4
  shift 4
  [ "$gpus" -gt 0 ] || model=tinyworld
  run "$name" "$limit" "$(binary ladder)" bench "$kind" --model "models/$model" --load-format dummy --device "$device" \
    --json "$out/$name.json" "$@"
}

sizes() { local n; for n in 2 4 8; do [ "$n" -gt "$ranks" ] || echo "$n"; done; }

# Workloads, and what they are without a GPU.
set_workloads() {
  if [ "$gpus" -gt 0 ]; then
    one=(--prompt-len 32 --output-len 96 --repeat 3)
    prompt=(--prompt-len 8192 --output-len 2 --max-num-batched-tokens 8192 --max-model-len 8200 --repeat 3)
    common=() many=(--num-requests 1024)
    experts=(--max-model-len 2048)
    deep=(--prompt-len 130000 --output-len 64 --max-num-batched-tokens 16384 --max-model-len 131072 --repeat 1)
    long=(--prompt-len 65536 --output-len 2 --max-num-batched-tokens 65536 --max-model-len 65600 --repeat 2)
    sessions=(--sessions 128 --turns 8 --seed 1 --num-kv-blocks 36864 --max-model-len 16384
      --min-prompt-len 700 --max-prompt-len 1240 --min-output-len 16 --max-output-len 64)
  else
    one=(--prompt-len 8 --output-len 8 --repeat 1) prompt=(--prompt-len 64 --output-len 2 --repeat 1)
    long=(--prompt-len 200 --output-len 2 --repeat 1) deep=(--prompt-len 200 --output-len 8 --repeat 1)
    common=(--num-requests 4 --min-prompt-len 8 --max-prompt-len 32 --min-output-len 8 --max-output-len 16)
    many=("${common[@]}") experts=()
    sessions=(--sessions 3 --turns 3 --seed 1 --min-prompt-len 16 --max-prompt-len 32 --min-output-len 8 --max-output-len 16)
  fi
}

smoke() {
  local grid text alone arguments=(generate --model models/tinyworld --prompt "Once upon a time" --max-tokens 24
    --temperature 0 --dtype f32 --device "$device")
  alone=$("$(binary ladder)" "${arguments[@]}" 2>"$out/smoke.txt") || fail "one rank: $(tail -1 "$out/smoke.txt")"
  for grid in "--tensor-parallel-size $ranks" "--pipeline-parallel-size $ranks" "--data-parallel-size $ranks"; do
    # shellcheck disable=SC2086
    text=$(timeout 60 "$(binary ladder)" "${arguments[@]}" $grid 2>>"$out/smoke.txt") ||
      fail "$grid: exit $?: $(tail -3 "$out/smoke.txt")"
    [ "$text" = "$alone" ] || fail "$grid: another text than one rank's: $text"
    echo "smoke: $grid: the text of one rank" | tee -a "$out/smoke.txt"
  done
}

alone() {
  { bench latency_1 90 latency llama-3.1-8b "${one[@]}"
    bench prefill_1 90 latency llama-3.1-8b "${prompt[@]}"
    bench common_1 120 throughput llama-3.1-8b "${common[@]}"
    bench long_1 90 latency llama-3.1-8b "${long[@]}"
    bench deep_1 90 latency llama-3.1-8b "${deep[@]}"; } &
  { [ "$gpus" -lt 2 ] || export CUDA_VISIBLE_DEVICES=1
    bench many_1 150 throughput llama-3.1-8b "${many[@]}"
    bench data_1 90 throughput qwen3-0.6b "${many[@]}"; } &
  wait
}

tensor() {
  local n
  for n in $(sizes); do
    local share=()
    [ "$gpus" -eq 0 ] || share=(--communication-share)
    bench "latency_tp$n" 90 latency llama-3.1-8b "${one[@]}" --tensor-parallel-size "$n" "${share[@]}"
    bench "prefill_tp$n" 90 latency llama-3.1-8b "${prompt[@]}" --tensor-parallel-size "$n"
    bench "common_tp$n" 120 throughput llama-3.1-8b "${common[@]}" --tensor-parallel-size "$n"
    bench "deep_tp$n" 90 latency llama-3.1-8b "${deep[@]}" --tensor-parallel-size "$n"
  done
}

pipeline() {
  local running=$((256 * ranks))
  bench "many_pp$ranks" 120 throughput llama-3.1-8b "${many[@]}" --pipeline-parallel-size "$ranks" --max-num-seqs $running
  bench "many_pp${ranks}_naive" 150 throughput llama-3.1-8b "${many[@]}" --pipeline-parallel-size "$ranks" --naive-pipeline
  [ "$ranks" -lt 4 ] || bench "common_tp2_pp$((ranks / 2))" 120 throughput llama-3.1-8b "${common[@]}" \
    --tensor-parallel-size 2 --pipeline-parallel-size $((ranks / 2))
}

data() {
  local balancer
  bench "data_dp$ranks" 90 throughput qwen3-0.6b "${many[@]}" --data-parallel-size "$ranks"
  for balancer in round_robin prefix_aware; do
    bench "sessions_$balancer" 120 throughput qwen3-0.6b --workload sessions "${sessions[@]}" --data-parallel-size "$ranks" \
      --data-parallel-balancer $balancer
  done
}

expert() {
  [ "$gpus" -gt 0 ] || return 0  # the tiny model has no experts
  bench expert_1 150 throughput qwen3-30b-a3b "${common[@]}" "${experts[@]}"
  bench "expert_ep$ranks" 150 throughput qwen3-30b-a3b "${common[@]}" "${experts[@]}" --tensor-parallel-size "$ranks" \
    --enable-expert-parallel
}

context() {
  bench "long_cp$ranks" 90 latency llama-3.1-8b "${long[@]}" --prefill-context-parallel-size "$ranks"
}

tests() {
  local shard shards=8 processes=()
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard run "tests_$shard" 200 "$(binary test_step7)" --gtest_brief=1 \
      --gtest_filter='*Gpu*:*Task7_3_*:PeerLayout*-*OfProcesses*' &
    processes+=($!)
  done
  for shard in "${processes[@]}"; do wait "$shard" || failed=1; done
  run tests_processes 60 "$(binary test_step7)" --gtest_filter='*OfProcesses*'
}

collectives() {
  run collectives 200 "$(binary bench_step7)" --benchmark_filter='Gpu|gpu' --benchmark_out="$out/collectives.json" \
    --benchmark_out_format=json
}

fault() {
  local program
  timeout 60 "$(binary ladder)" bench throughput --model models/tinyworld --device "$device" --num-requests 4096 \
    --max-prompt-len 200 --min-output-len 1700 --max-output-len 1800 --tensor-parallel-size "$ranks" \
    --distributed-executor-backend mp >"$out/fault.txt" 2>&1 &
  program=$!
  for _ in {1..40}; do pgrep -f '[w]orker-process' >/dev/null && break; sleep 0.5; done
  sleep 6  # in the middle of its work, which is longer
  pkill -KILL -n -f '[w]orker-process' || echo "multi_gpu_check: no worker was there to be killed" | tee -a "$out/fault.txt"
  local start=$SECONDS status=0
  wait "$program" || status=$?
  [ "$status" -eq 1 ] || failed=1
  { echo "exit $status, $((SECONDS - start)) s after the kill; workers left: $(pgrep -fc '[w]orker-process')"
    [ "$gpus" -eq 0 ] || nvidia-smi --query-gpu=index,memory.used --format=csv,noheader; } | tee -a "$out/fault.txt"
  grep -a 'error:' "$out/fault.txt"
}

table() {
  python3 -B tools/multi_gpu_table.py "$out" | tee "$out/table.txt"
}

mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ "${parts[*]}" != table ]; then
  [ -d "$build" ] || fail "--build $build: no such folder"
  build=$(cd "$build" && pwd)
  [ "$gpus" -ge 2 ] || gpus=0
  device=cuda ranks=$gpus
  [ "$gpus" -gt 0 ] || { device=cpu ranks=2; }
  set_workloads
fi
cd "$root"
if [ "${parts[*]}" != table ]; then
  commit=${LADDER_COMMIT:-$(git -C "$root" describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)}
  export LADDER_COMMIT=$commit  # for the reports of `ladder bench`
  { nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null; echo "commit $commit"; } | tee "$out/gpus.txt"
fi
for part in "${parts[@]}"; do
  echo "== $part"
  "$part"
done
exit $failed
