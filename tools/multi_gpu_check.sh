#!/usr/bin/env bash
# What several GPUs of one host do for step 7: the tests that need them, and each kind of ranks beside one GPU, measured in
# one go. Raw output of every part goes to a folder; the last part makes a table of it.
#
#   tools/multi_gpu_check.sh [--build DIR] [--out DIR] [PART...]
#
# It takes the GPUs that it finds: 2, 4 or 8; with fewer than two everything runs small, on the CPU, to try the script itself.
# DIR of --build: a build folder of CMake, or a folder with the binaries (default build/release). --out: default
# ./multi_gpu_check. Parts, all of them by default, about ten minutes together:
#   smoke        the tiny model's text on grids of ranks is that of one rank; nothing else is tried where it is not
#   alone        one GPU by itself, several such runs side by side: what the other parts are compared with
#   tensor       8B: one request, short and behind 130,000 tokens, a prompt of 8,192 tokens, the common workload;
#                communication's share; from four GPUs on 32B too, and a prompt of 65,536 tokens
#   pipeline     8B: on two GPUs 1,024 requests, as many steps in flight as stages, and one at a time; on more the common
#                workload, and stages of two tensor ranks
#   data         0.6B: 512 requests for each GPU, which has a replica; on two GPUs sessions by two balancers, on more 8B
#   expert       30B-A3B: the common workload, experts whole on their GPUs: with tensor ranks, with replicas, and by load
#   context      8B: a prompt of 65,536 tokens, its rows shared out; from four GPUs on 131,000 and 8,192 too
#   methods      attention of one prompt of 8,192 to 131,072 tokens over GPUs, by every method of chapter 7.10
#   disaggregation  a prompt's keys and values from GPU to GPU, by transport; then 8B behind a server for prompts and one for
#                answers, told at once, one after the other and layer by layer, and behind two replicas that compute prompts in chunks, and
#                whole: prompts of 4,096 to 16,384 tokens and 256 out, at 0.7 of what one GPU can compute of prompts; gaps
#                between tokens, goodput, and what a token costs (tools/cures_table.py); from four GPUs on with two tensor
#                ranks for each of both, and for prompts alone
#   tests        of communicators, workers, the exchange of experts and contexts shared out over ranks
#   collectives  all-reduces, dispatch and combine, and attention of long contexts shared out
#   fault        a process of each kind of ranks is killed: one line, nothing left on the GPUs
#   table        tools/multi_gpu_table.py over the results (needs no GPU)
set -uo pipefail
every=(smoke alone tensor pipeline data expert context methods disaggregation tests collectives fault table)
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

# Workloads, and what they are without a GPU. From four GPUs on there is more: what one GPU has hardly room or time for.
set_workloads() {
  if [ "$gpus" -gt 0 ]; then
    one=(--prompt-len 32 --output-len 96 --repeat 3)
    prompt=(--prompt-len 8192 --output-len 2 --max-num-batched-tokens 8192 --max-model-len 8200 --repeat 3)
    common=() many=(--num-requests 1024) for_each=(--num-requests $((512 * ranks)))
    experts=(--max-model-len 2048)
    serving=(--max-model-len 16768 --no-prefix-caching) chunk=1024 longest_prompt=16768
    served=(--min-prompt-len 4096 --max-prompt-len 16384 --output-len 256 --vocab-size 100000 --request-rate 2.4
      --num-prompts 96 --goodput ttft:2000 tpot:8)
    deep=(--prompt-len 130000 --output-len 64 --max-num-batched-tokens 16384 --max-model-len 131072 --repeat 1)
    long=(--prompt-len 65536 --output-len 2 --max-num-batched-tokens 65536 --max-model-len 65600 --repeat 2)
    longest=(--prompt-len 131000 --output-len 2 --max-num-batched-tokens 65536 --max-model-len 131072 --repeat 2)
    sessions=(--sessions 128 --turns 8 --seed 1 --num-kv-blocks 36864 --max-model-len 16384
      --min-prompt-len 700 --max-prompt-len 1240 --min-output-len 16 --max-output-len 64)
  else
    one=(--prompt-len 8 --output-len 8 --repeat 1) prompt=(--prompt-len 64 --output-len 2 --repeat 1)
    long=(--prompt-len 200 --output-len 2 --repeat 1) longest=("${long[@]}")
    deep=(--prompt-len 200 --output-len 8 --repeat 1)
    serving=(--num-kv-blocks 512) chunk=64 longest_prompt=2048
    served=(--min-prompt-len 100 --max-prompt-len 200 --output-len 16 --vocab-size 1000 --request-rate 4 --num-prompts 8
      --goodput ttft:3000 tpot:100)
    common=(--num-requests 4 --min-prompt-len 8 --max-prompt-len 32 --min-output-len 8 --max-output-len 16)
    many=("${common[@]}") for_each=("${common[@]}") experts=()
    sessions=(--sessions 3 --turns 3 --seed 1 --min-prompt-len 16 --max-prompt-len 32 --min-output-len 8 --max-output-len 16)
  fi
}

# The runs: `grid` names their files, `flags` are those of the ranks.
latency() {
  local share=()
  [[ "$gpus" -eq 0 || $grid != tp* ]] || share=(--communication-share)
  bench "latency_$grid" 90 latency llama-3.1-8b "${one[@]}" "${flags[@]}" "${share[@]}"
}
latency_32b() { bench "latency_32b_$grid" 120 latency qwen3-32b "${one[@]}" --max-model-len 2048 "${flags[@]}"; }
prefill() { bench "prefill_$grid" 90 latency llama-3.1-8b "${prompt[@]}" "${flags[@]}"; }
long() { bench "long_$grid" 90 latency llama-3.1-8b "${long[@]}" "${flags[@]}"; }
longest() { bench "longest_$grid" 120 latency llama-3.1-8b "${longest[@]}" "${flags[@]}"; }
deep() { bench "deep_$grid" 90 latency llama-3.1-8b "${deep[@]}" "${flags[@]}"; }
common() { bench "common_$grid" 120 throughput llama-3.1-8b "${common[@]}" "${flags[@]}"; }
many() { bench "many_$grid" 150 throughput llama-3.1-8b "${many[@]}" "${flags[@]}"; }
replicas() { bench "data_$grid" 120 throughput qwen3-0.6b "${for_each[@]}" "${flags[@]}"; }
experts() {
  [ "$gpus" -eq 0 ] || bench "expert_$grid" 150 throughput qwen3-30b-a3b "${common[@]}" "${experts[@]}" "${flags[@]}"
}

side_by_side() {  # side_by_side WIDTH RUN...: each on WIDTH GPUs, as many at a time as there are GPUs for
  local width=$1 lanes=1 lane job processes=()
  shift
  [ "$gpus" -le "$width" ] || lanes=$((gpus / width))
  for ((lane = 0; lane < lanes; ++lane)); do
    (
      failed=0
      [ "$gpus" -eq 0 ] || export CUDA_VISIBLE_DEVICES=$(seq -s, $((lane * width)) $((lane * width + width - 1)))
      for ((job = lane + 1; job <= $#; job += lanes)); do "${!job}"; done
      exit $failed
    ) &
    processes+=($!)
  done
  for lane in "${processes[@]}"; do wait "$lane" || failed=1; done
}

with_ranks() {  # with_ranks GRID WIDTH RUN... -- FLAG...
  local grid=$1 width=$2 runs=() flags
  shift 2
  while [ "$1" != -- ]; do runs+=("$1"); shift; done
  flags=("${@:2}")
  side_by_side "$width" "${runs[@]}"
}

smoke() {
  local half=$((ranks / 2)) grid text alone arguments grids=(
    "--tensor-parallel-size $ranks" "--pipeline-parallel-size $ranks" "--data-parallel-size $ranks"
    "--prefill-context-parallel-size $ranks")
  [ $half -lt 2 ] || grids+=("--tensor-parallel-size 2 --pipeline-parallel-size $half"
    "--tensor-parallel-size 2 --data-parallel-size $half" "--tensor-parallel-size 2 --prefill-context-parallel-size $half")
  [ "$ranks" -lt 8 ] || grids+=("--tensor-parallel-size 8 --decode-context-parallel-size 2")
  arguments=(generate --model models/tinyworld --prompt "Once upon a time" --max-tokens 24 --temperature 0 --dtype f32
    --device "$device")
  alone=$("$(binary ladder)" "${arguments[@]}" 2>"$out/smoke.txt") || fail "one rank: $(tail -1 "$out/smoke.txt")"
  for grid in "${grids[@]}"; do
    # shellcheck disable=SC2086
    text=$(timeout 60 "$(binary ladder)" "${arguments[@]}" $grid 2>>"$out/smoke.txt") ||
      fail "$grid: exit $?: $(tail -3 "$out/smoke.txt")"
    [ "$text" = "$alone" ] || fail "$grid: another text than one rank's: $text"
    echo "smoke: $grid: the text of one rank" | tee -a "$out/smoke.txt"
  done
}

alone() {
  local runs=(common many replicas long latency prefill experts deep)
  [ "$ranks" -lt 4 ] || runs=(common latency_32b replicas longest long latency prefill deep experts)
  with_ranks 1 1 "${runs[@]}" --
}

tensor() {
  local n
  for n in $(sizes); do
    local runs=(common latency prefill deep)
    if [ "$ranks" -ge 4 ]; then
      [ "$n" -lt "$ranks" ] && runs=(latency latency_32b) || runs+=(latency_32b long)
    fi
    with_ranks "tp$n" "$n" "${runs[@]}" -- --tensor-parallel-size "$n"
  done
}

pipeline() {
  local half=$((ranks / 2)) runs=(many)
  [ "$ranks" -lt 4 ] || runs=(common)
  with_ranks "pp$ranks" "$ranks" "${runs[@]}" -- --pipeline-parallel-size "$ranks" --max-num-seqs $((256 * ranks))
  if [ "$ranks" -eq 2 ]; then  # what a pipeline is for; more stages only make it worse
    with_ranks pp2_naive 2 many -- --pipeline-parallel-size 2 --naive-pipeline
  else
    with_ranks "tp2_pp$half" "$ranks" common -- --tensor-parallel-size 2 --pipeline-parallel-size $half
  fi
}

data() {
  local balancer runs=(replicas)
  [ "$ranks" -lt 4 ] || runs+=(common)
  with_ranks "dp$ranks" "$ranks" "${runs[@]}" -- --data-parallel-size "$ranks"
  [ "$ranks" -eq 2 ] || return 0
  for balancer in round_robin prefix_aware; do
    bench "sessions_$balancer" 120 throughput qwen3-0.6b --workload sessions "${sessions[@]}" --data-parallel-size "$ranks" \
      --data-parallel-balancer $balancer
  done
}

expert() {
  local n=$ranks half=$((ranks / 2)) copies=$((8 * ranks)) by_load whole=--enable-expert-parallel
  by_load=(--enable-eplb --num-redundant-experts "$copies" --eplb-step-interval 300)
  with_ranks "ep$n" "$n" experts -- --tensor-parallel-size "$n" $whole
  with_ranks "dp${n}_ep$n" "$n" experts -- --data-parallel-size "$n" $whole
  with_ranks "ep${n}_re$copies" "$n" experts -- --tensor-parallel-size "$n" $whole "${by_load[@]}"
  with_ranks "dp${n}_ep${n}_re$copies" "$n" experts -- --data-parallel-size "$n" $whole "${by_load[@]}"
  [ "$n" -lt 4 ] || with_ranks "tp2_dp${half}_ep$n" "$n" experts -- --tensor-parallel-size 2 --data-parallel-size $half $whole
  grep -aH 'experts by load' "$out"/expert_*_re*.txt | sed 's/^.*\//  /'
}

context() {
  local runs=(long)
  [ "$ranks" -lt 4 ] || runs+=(longest prefill)
  with_ranks "cp$ranks" "$ranks" "${runs[@]}" -- --prefill-context-parallel-size "$ranks"
}

methods() {
  local file="$out/context_methods.json"
  run context_methods 200 "$(binary bench_step7)" --benchmark_filter="^GpuContextAttention/.*/ranks:$ranks/" \
    --benchmark_out="$file" --benchmark_out_format=json
  [ "$gpus" -eq 0 ] || python3 -B tools/context_table.py --from "$file" --gpus --ranks "$ranks" | tee "$out/context_methods_table.txt"
}

# serve_load NAME FLAG...: a server on the GPUs $served_on, and the load of set_workloads on it
serve_load() {
  local name=$1 port=18080 server model=llama-3.1-8b
  shift
  [ "$gpus" -gt 0 ] || model=tinyworld
  : >"$out/server_$name.txt"  # an earlier run's says that it listens
  CUDA_VISIBLE_DEVICES=$served_on "$(binary ladder)" serve --model "models/$model" --load-format dummy --device "$device" \
    --port $port "$@" >"$out/server_$name.txt" 2>&1 &
  server=$!
  for _ in {1..600}; do
    grep -q 'listening on' "$out/server_$name.txt" || ! kill -0 $server 2>/dev/null || { sleep 0.2; continue; }
    break
  done
  run "$name" 90 "$(binary ladder)" bench serve --port $port "${served[@]}" --json "$out/$name.json"
  if exec 3<>/dev/tcp/127.0.0.1/$port; then  # that prompts really were handed over
    printf 'GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n' >&3
    grep -aE '^ladder:router_((at_once_)?transfers|fallbacks|withdrawn)_total|^ladder:router_handover_seconds_(sum|count)' <&3 >>"$out/$name.txt"
    exec 3>&-
  fi
  grep -aE 'TTFT|ITL|TPOT|goodput|^ladder:' "$out/$name.txt" | sed 's/^/  /'
  kill -TERM $server
  wait $server || failed=1
}

disaggregation() {
  [ "$gpus" -eq 0 ] || run handover 200 "$(binary bench_step8)" --benchmark_filter='kv_handover|kv_copier|kv_layer_by_layer/cuda' \
    --benchmark_out="$out/handover.json" --benchmark_out_format=json
  local served_on=0,1 processes=(--distributed-executor-backend mp) lanes=(--phase-lanes --max-itl 9 --max-num-batched-tokens 4096)
  [ "$gpus" -gt 0 ] || served_on= lanes=(--phase-lanes)
  serve_load served_disaggregated --disaggregate 1P1D "${serving[@]}"
  serve_load served_prefill_first --disaggregate 1P1D --prefill-first "${serving[@]}"
  serve_load served_layer_by_layer --disaggregate 1P1D --kv-layer-by-layer "${serving[@]}"
  serve_load served_replicas --data-parallel-size 2 --max-num-batched-tokens "$chunk" "${serving[@]}"
  serve_load served_whole --data-parallel-size 2 --no-chunked-prefill --max-num-batched-tokens "$longest_prompt" "${serving[@]}"
  serve_load served_lanes --data-parallel-size 2 "${lanes[@]}" "${serving[@]}"
  python3 -B tools/cures_table.py "$out" | tee "$out/cures.txt"
  [ "$gpus" -eq 0 ] || [ "$gpus" -ge 4 ] || return 0
  [ "$gpus" -eq 0 ] || served_on=0,1,2,3
  serve_load served_disaggregated_tp2 --disaggregate 1P1D --tensor-parallel-size 2 "${processes[@]}" "${serving[@]}"
  serve_load served_replicas_tp2 --data-parallel-size 2 --tensor-parallel-size 2 "${processes[@]}" \
    --max-num-batched-tokens "$chunk" "${serving[@]}"
  [ "$gpus" -eq 0 ] || served_on=0,1,2
  serve_load served_disaggregated_tp2_tp1 --disaggregate 1P1D --prefill-tensor-parallel-size 2 "${processes[@]}" "${serving[@]}"
}

tests() {
  # Kernels that wait for each other on all GPUs by themselves, as those of two programs take turns on a GPU.
  run tests_communicators 300 "$(binary test_step7)" --gtest_filter='*Gpu*:*Task7_3_*:*ChoosePlaces*:PeerLayout*-*GpuWorkers*:*GpuGoldens*:*Task7_12*:*Task7_9_TwoGpus*:*OfProcesses*'
  run tests_processes 60 "$(binary test_step7)" --gtest_filter='*OfProcesses*'  # must be the first to use a GPU
  local shard shards=8 processes=() workers='*GpuWorkers*:*Task7_12_TwoGpus*:*Task7_9_TwoGpus*:*Task7_11_GpuGoldens*'
  # Every golden on two GPUs. On more each has many grids, and one of each family is what there is time for.
  [ "$ranks" -lt 4 ] || workers='*GpuWorkers*/llama_one_kv_head:*GpuWorkers*/qwen3_tied:*GpuWorkers*/qwen2_bias:*GpuWorkers*/mixtral_top2:*GpuWorkers*/phimoe_short:*GpuWorkers*/opt_pre_norm:*GpuWorkers*/qwen3_odd_sizes:*GpuWorkers*/llama_biases:*GpuGoldens*/llama_one_kv_head:*GpuGoldens*/qwen3_tied'
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard run "tests_$shard" 200 "$(binary test_step7)" \
      --gtest_filter="$workers" &
    processes+=($!)
  done
  for shard in "${processes[@]}"; do wait "$shard" || failed=1; done
}

collectives() {
  run collectives 200 "$(binary bench_step7)" --benchmark_filter="BM_Gpu.*/ranks:$ranks/" --benchmark_out="$out/collectives.json" \
    --benchmark_out_format=json
}

kill_one() {  # kill_one NAME PROCESS FLAG...: a process of that kind is killed in the middle of its work, which is longer
  local name=$1 process="[${2:0:1}]${2:1}" program start status=0
  timeout 60 "$(binary ladder)" bench throughput --model models/tinyworld --device "$device" --num-requests 4096 \
    --max-prompt-len 200 --min-output-len 1700 --max-output-len 1800 "${@:3}" >"$out/$name.txt" 2>&1 &
  program=$!
  for _ in {1..40}; do pgrep -f "$process" >/dev/null && break; sleep 0.5; done
  sleep 6
  pkill -KILL -n -f "$process" || echo "multi_gpu_check: no $2 was there to be killed" | tee -a "$out/$name.txt"
  start=$SECONDS
  # A replica takes its unfinished answers along, and they end the program; one that had none comes back, and all goes on.
  while kill -0 "$program" 2>/dev/null && ! grep -q 'serves again' "$out/$name.txt"; do sleep 0.1; done
  pkill -TERM -P "$program" || true
  wait "$program" || status=$?
  [ "$status" -eq 1 ] || grep 'serves again' "$out/$name.txt" || failed=1
  { echo "exit $status, $((SECONDS - start)) s after the kill"
    echo "$2 left: $(pgrep -fc "$process")"
    [ "$gpus" -eq 0 ] || nvidia-smi --query-gpu=index,memory.used --format=csv,noheader; } | tee -a "$out/$name.txt"
  grep -aE 'error:|was ended by' "$out/$name.txt"
}

fault() {
  kill_one fault_tensor worker-process --tensor-parallel-size "$ranks" --distributed-executor-backend mp
  kill_one fault_pipeline worker-process --pipeline-parallel-size "$ranks" --distributed-executor-backend mp
  kill_one fault_context worker-process --prefill-context-parallel-size "$ranks" --distributed-executor-backend mp
  kill_one fault_data engine-process --data-parallel-size "$ranks" --data-parallel-backend mp
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
