#!/usr/bin/env bash
# `ladder serve` beside vLLM's server on one GPU: the same requests from the same client (`ladder bench serve`), at 1, 32
# and 256 requests at a time and at a fixed rate of half of what vLLM carried at 256. Random weights, token ids. Then vLLM's
# own client at 256, on both and on a server without an engine: what that client itself carries. Under nine minutes, of
# which vLLM's start takes one to two.
#
#   tools/serve_compare.sh [--out DIR] [--model DIR] [--binary FILE] [--peer "COMMAND"|none] [--num-prompts N]
#
# --out: default ./serve_compare; one JSON file per run, table.md, the servers' logs. --model: a folder with a config.json,
# default models/qwen3-0.6b; with a tokenizer.json in it both servers make text of their tokens, and vLLM's client, which
# sends text, can run. --peer: how vLLM is started, without its arguments; default "python3 -m vllm.entrypoints.cli.main"
# (bench/peers/ says what must be in PYTHONPATH). With --peer none: ladder alone, at the rate of half of its own capacity.
# --num-prompts: at 32 and 256 (default 256: the common workload).
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
out=serve_compare
model=$root/models/qwen3-0.6b
binary=$root/build/release/ladder
peer="python3 -m vllm.entrypoints.cli.main"
num_prompts=256
threads=4

fail() { echo "serve_compare: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --out) out=${2:?}; shift ;;
    --model) model=${2:?}; shift ;;
    --binary) binary=${2:?}; shift ;;
    --peer) peer=${2:?}; shift ;;
    --num-prompts) num_prompts=${2:?}; shift ;;
    *) fail "$1: expected --out, --model, --binary, --peer or --num-prompts" ;;
  esac
  shift
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
[ -x "$binary" ] || fail "$binary: no such program (./ladder builds it)"
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_LOGGING_LEVEL=WARNING

server=
stop_server() {
  [ -n "$server" ] || return 0
  kill -TERM "$server" 2>/dev/null
  for _ in $(seq 100); do kill -0 "$server" 2>/dev/null || break; sleep 0.2; done
  kill -KILL "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  server=
}
trap stop_server EXIT

# start NAME PORT SECONDS COMMAND...: until its /health answers.
start() {
  local name=$1 port=$2 limit=$3 begin=$SECONDS
  shift 3
  "$@" >"$out/$name-server.txt" 2>&1 &
  server=$!
  while [ $((SECONDS - begin)) -lt "$limit" ]; do
    kill -0 $server 2>/dev/null || { tail -n 20 "$out/$name-server.txt" >&2; return 1; }
    python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/health', timeout=1)" 2>/dev/null &&
      { echo "$name answers after $((SECONDS - begin)) s"; return 0; }
    sleep 0.5
  done
  echo "$name did not answer within $limit s" >&2
  return 1
}

# load NAME PORT RUN FLAG...
load() {
  local name=$1 port=$2 run=$3
  shift 3
  "$binary" bench serve --port "$port" --client-threads "$threads" --timeout 120 --goodput ttft:200 tpot:50 \
    --json "$out/$name-$run.json" "$@" >"$out/$name-$run.txt" 2>&1 || { cat "$out/$name-$run.txt" >&2; return 1; }
  echo "$name, $run: $(grep 'output token throughput' "$out/$name-$run.txt" | tr -s ' ')"
}

# Prompts of another seed for each run: neither server finds them in its prefix cache.
loads() {
  local name=$1 port=$2
  load "$name" "$port" 1 --num-prompts 8 --max-concurrency 1 --num-warmups 4 --prompt-len 512 --output-len 256 --seed 1 &&
    load "$name" "$port" 32 --num-prompts "$num_prompts" --max-concurrency 32 --num-warmups 32 --seed 32 &&
    load "$name" "$port" 256 --num-prompts "$num_prompts" --max-concurrency 256 --num-warmups 256 --seed 256
}

rate_of() { python3 -c "import json,sys; print(f'{0.5 * json.load(open(sys.argv[1]))[\"results\"][0][\"requests_per_second\"]:.2f}')" "$1"; }

# vLLM's own client, 256 at a time, lengths as the common workload's: uniform from 112 to 1012, on average 562.
peer_client() {
  local name=$1 port=$2
  [ "$peer" != none ] && [ -f "$model/tokenizer.json" ] || return 0
  $peer bench serve --backend openai --endpoint /v1/completions --base-url "http://127.0.0.1:$port" --model model \
    --tokenizer "$model" --dataset-name random --random-input-len 562 --random-output-len 562 --random-range-ratio 0.8 \
    --num-prompts "$num_prompts" --max-concurrency 256 --num-warmups 32 --ignore-eos --seed 11 --disable-tqdm --save-result \
    --result-dir "$out" --result-filename "$name-peer_client.json" >"$out/$name-peer_client.txt" 2>&1 ||
    { tail -n 20 "$out/$name-peer_client.txt" >&2; return 1; }
  echo "vLLM's client on $name: $(grep 'Output token throughput' "$out/$name-peer_client.txt" | tr -s ' ')"
}

failed=0
rate=
tokenizer=()
[ -f "$model/tokenizer.json" ] || tokenizer=(--skip-tokenizer-init)
if [ "$peer" != none ]; then
  if start vllm 8101 240 $peer serve "$model" --served-model-name model --load-format dummy "${tokenizer[@]}" \
    --host 127.0.0.1 --port 8101 --max-num-seqs 256 --dtype bfloat16 --max-model-len 4096 \
    --disable-uvicorn-access-log && loads vllm 8101; then
    rate=$(rate_of "$out/vllm-256.json")
    load vllm 8101 rate --num-prompts 128 --request-rate "$rate" --seed 7 || failed=1
    peer_client vllm 8101 || failed=1
  else
    failed=1
  fi
  stop_server
fi
if start ladder 8102 60 "$binary" serve --model "$model" --served-model-name model --load-format dummy --port 8102 \
  --max-num-seqs 256 --max-model-len 4096 && loads ladder 8102; then
  rate=${rate:-$(rate_of "$out/ladder-256.json")}
  load ladder 8102 rate --num-prompts 128 --request-rate "$rate" --seed 7 || failed=1
  peer_client ladder 8102 || failed=1
else
  failed=1
fi
stop_server
# What the client itself carries, on this machine.
"$binary" bench serve --canned --client-threads "$threads" --max-concurrency 256 --json "$out/client-256.json" \
  >"$out/client-256.txt" 2>&1 || failed=1
if [ "$peer" != none ] && start canned 8103 10 "$binary" bench canned --port 8103; then
  peer_client canned 8103 || failed=1
  stop_server
fi

python3 -B - "$out" "$rate" <<'P' | tee "$out/table.md"
import json, pathlib, sys

out, rate = pathlib.Path(sys.argv[1]), sys.argv[2]
print("| run | server | output tokens/s | TTFT ms, median / 99 % | ITL ms, median / 99 % | TPOT ms, median | goodput, requests/s | failed |")
print("|---|---|---|---|---|---|---|---|")
for run, name in (("1", "1 at a time"), ("32", "32 at a time"), ("256", "256 at a time"), ("rate", f"{rate} requests/s")):
    for server in ("vllm", "ladder", "client"):
        file = out / f"{server}-{run}.json"
        if not file.exists():
            continue
        r = json.load(open(file))["results"][0]
        ms = lambda what, which: f"{1e3 * r[what][which]:.2f}"
        good = r["good_requests_per_second"]
        print(f"| {name} | {'canned' if server == 'client' else server} | {r['output_tokens_per_second']:.0f} | "
              f"{ms('ttft', 'median')} / {ms('ttft', 'p99')} | {ms('itl', 'median')} / {ms('itl', 'p99')} | "
              f"{ms('tpot', 'median')} | {'' if good is None else f'{good:.2f}'} | {r['failed']} |")
own = {name: out / f"{name}-peer_client.json" for name in ("vllm", "ladder", "canned")}
if any(file.exists() for file in own.values()):
    print("\n| vLLM's own client, 256 at a time | output tokens/s | TTFT ms, median / 99 % | ITL ms, median / 99 % |\n|---|---|---|---|")
    for name, file in own.items():
        if file.exists():
            r = json.load(open(file))
            print(f"| on {name} | {r['output_throughput']:.0f} | {r['median_ttft_ms']:.2f} / {r['p99_ttft_ms']:.2f} | "
                  f"{r['median_itl_ms']:.2f} / {r['p99_itl_ms']:.2f} |")
for run in ("32", "256", "rate"):
    files = [out / f"{server}-{run}.json" for server in ("ladder", "vllm")]
    if all(file.exists() for file in files):
        mine, theirs = (json.load(open(file))["results"][0] for file in files)
        print(f"\n{run}: throughput {mine['output_tokens_per_second'] / theirs['output_tokens_per_second']:.2f} x vLLM's, "
              f"99 % ITL {mine['itl']['p99'] / theirs['itl']['p99']:.2f} x", end="")
print()
P
exit $failed
