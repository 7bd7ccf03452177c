#!/usr/bin/env bash
# The field's clients against `ladder serve`, end to end: each is installed from PyPI into a virtual environment of its
# own and run against models/tinyworld. Prints versions and what each did; exits with 0 if all of them worked.
#
#   tools/clients_check.sh [--venvs DIR] [--out DIR] [--port N] [--binary FILE] [CLIENT...]
#
# --venvs: where the environments are kept between runs; default ~/.cache/ladder-clients. --out: logs, default
# ./clients_check. --binary: default build/release/ladder, which ./ladder builds. Clients, all of them by default:
#   openai    the openai library: completions, chats, streams, usage, a loop of tool calls, errors
#   lm-eval   local-completions: log likelihoods equal to those of `ladder score`, and a task of its own
#   guidellm  concurrent chats and completions over synthetic text
#   aiperf    chats, streamed, with its own token count beside the server's
#   vllm      vllm bench serve, completions of token counts and chats (9 GB: it needs all of vLLM to be installed)
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
venvs=${XDG_CACHE_HOME:-$HOME/.cache}/ladder-clients
out=clients_check
port=$((20000 + RANDOM % 10000))
binary=$root/build/release/ladder
every=(openai lm-eval guidellm aiperf vllm)
clients=()

fail() { echo "clients_check: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --venvs | --out | --port | --binary)
      [ -n "${2:-}" ] || fail "$1: expected a value after it"
      declare "${1#--}=$2"
      shift ;;
    *)
      [[ " ${every[*]} " = *" $1 "* ]] || fail "$1: expected one of ${every[*]}"
      clients+=("$1") ;;
  esac
  shift
done
[ ${#clients[@]} -gt 0 ] || clients=("${every[@]}")
mkdir -p "$out" "$venvs" || exit 2
out=$(cd "$out" && pwd) venvs=$(cd "$venvs" && pwd)
model=$root/models/tinyworld
url=http://127.0.0.1:$port
[ -x "$binary" ] || "$root/ladder" --help >/dev/null || exit 2
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1

# installed NAME PACKAGE...: the environment NAME; made once.
installed() {
  local folder=$venvs/$1
  shift
  if [ ! -f "$folder/.done" ]; then
    echo "installing $*"
    python3 -m venv "$folder" && "$folder/bin/pip" install -q --disable-pip-version-check "$@" && touch "$folder/.done"
  fi
}

# version NAME PACKAGE
version() { "$venvs/$1/bin/python" -c "from importlib.metadata import version; print('$2', version('$2'))"; }

check_openai() {
  installed openai openai && version openai openai &&
    "$venvs/openai/bin/python" -B "$root/tools/clients/openai_check.py" "$url/v1" && check_openai_tools
}

# A server of its own, with a model that can be made to write a call: openai_tools_check.py says how.
check_openai_tools() {
  python3 -B "$root/tools/clients/tinyworld_with_tools.py" "$model" "$out/tinyworld_tools" || return 1
  serve "$out/tinyworld_tools" $((port + 1)) "$out/server_tools.txt" --enable-auto-tool-choice --tool-call-parser hermes
  local status=1
  tools_server=$!
  answers $((port + 1)) $tools_server &&
    "$venvs/openai/bin/python" -B "$root/tools/clients/openai_tools_check.py" "http://127.0.0.1:$((port + 1))/v1" \
      "$out/tinyworld_tools/call_tokens.json" && status=0
  kill -TERM $tools_server
  wait $tools_server || status=1
  tools_server=
  return $status
}

check_lm-eval() {
  installed lm-eval 'lm_eval[api]' transformers && version lm-eval lm_eval &&
    "$venvs/lm-eval/bin/python" -B "$root/tools/clients/lm_eval_check.py" "$url/v1" "$model" "$binary" "$out/lm_eval"
}

check_guidellm() {
  installed guidellm guidellm && version guidellm guidellm || return 1
  local kind
  for kind in /v1/completions /v1/chat/completions; do
    "$venvs/guidellm/bin/guidellm" run --disable-console-interactive \
      --backend "kind=openai_http,target=$url,request_format=$kind" \
      --profile kind=concurrent,streams=4 --constraint kind=max_requests,count=12 \
      --tokenizer "kind=huggingface_auto,model=$model" \
      --data kind=synthetic_text,prompt_tokens=32,output_tokens=16 \
      --output "kind=json,path=$out/guidellm$(basename "$kind").json" || return 1
    "$venvs/guidellm/bin/python" -B "$root/tools/clients/guidellm_report.py" \
      "$out/guidellm$(basename "$kind").json" 12 16 || return 1
  done
}

check_aiperf() {
  installed aiperf aiperf && version aiperf aiperf || return 1
  # With HF_HUB_OFFLINE it takes a folder for the name of a repository.
  env -u HF_HUB_OFFLINE "$venvs/aiperf/bin/aiperf" profile --model tinyworld --url "$url" --endpoint-type chat --streaming \
    --tokenizer "$model" --concurrency 4 --request-count 16 --use-server-token-count --ui none \
    --synthetic-input-tokens-mean 32 --output-tokens-mean 16 --extra-inputs ignore_eos:true min_tokens:16 \
    --output-artifact-dir "$out/aiperf" &&
    "$venvs/aiperf/bin/python" -B "$root/tools/clients/aiperf_report.py" "$out/aiperf" 16 16
}

check_vllm() {
  installed vllm vllm==0.24.0 && version vllm vllm || return 1
  local backend
  for backend in openai:/v1/completions openai-chat:/v1/chat/completions; do
    "$venvs/vllm/bin/vllm" bench serve --backend "${backend%%:*}" --endpoint "${backend#*:}" --base-url "$url" \
      --model tinyworld --tokenizer "$model" --dataset-name random --random-input-len 32 --random-output-len 16 \
      --num-prompts 16 --max-concurrency 4 --ignore-eos --disable-tqdm --save-result \
      --result-dir "$out" --result-filename "vllm-${backend%%:*}.json" || return 1
    "$venvs/vllm/bin/python" -B -c '
import json, sys
result = json.load(open(sys.argv[1]))
print({k: result[k] for k in ("completed", "total_output_tokens", "mean_ttft_ms", "mean_tpot_ms")})
sys.exit(not (result["completed"] == 16 and result["total_output_tokens"] == 256))' \
      "$out/vllm-${backend%%:*}.json" || { echo "expected 16 requests of 16 tokens"; return 1; }
  done
}

# serve MODEL PORT LOG FLAG...: in the background.
serve() {
  local folder=$1 port=$2 log=$3
  shift 3
  "$binary" serve --model "$folder" --served-model-name tinyworld --port "$port" --kv-memory 256MiB "$@" >"$log" 2>&1 &
}

# answers PORT PID: waits for the server; 1: it has ended.
answers() {
  for _ in $(seq 100); do
    python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$1/health', timeout=1)" 2>/dev/null && return
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.2
  done
}

serve "$model" "$port" "$out/server.txt" --enable-tokenizer-info-endpoint
server=$!
trap 'kill $server ${tools_server:-} 2>/dev/null; wait $server 2>/dev/null' EXIT
answers "$port" $server || { cat "$out/server.txt" >&2; fail "the server ended"; }

failed=0
summary=()
for client in "${clients[@]}"; do
  start=$SECONDS
  "check_$client" >"$out/$client.txt" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  summary+=("$(printf '%-9s %-7s %5d s   %s' "$client" "$([ $status -eq 0 ] && echo ok || echo FAILED)" $((SECONDS - start)) \
    "$(grep -m 1 -E '^(openai|lm_eval|guidellm|aiperf|vllm) [0-9]' "$out/$client.txt")")")
  echo "${summary[-1]}"
  [ $status -eq 0 ] || tail -n 5 "$out/$client.txt" | cut -c 1-300
done

# A server that a client has crashed or that does not end is a failure too.
kill -TERM $server
wait $server
status=$?
trap - EXIT
[ $status -eq 0 ] || failed=1
summary+=("$(printf '%-9s %-7s         exit code %d after SIGTERM' server "$([ $status -eq 0 ] && echo ok || echo FAILED)" $status)")
echo "${summary[-1]}"
{
  printf 'commit %s\n%s, %s cores, %s\n' \
    "$(git -C "$root" describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)" \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(python3 --version)"
  printf '%s\n' "${summary[@]}"
} >"$out/summary.txt"
exit $failed
