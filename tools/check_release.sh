#!/usr/bin/env bash
# Makes a release of this checkout and goes through it as a newcomer would: builds all of it, tests a stub, writes it, hands
# it in, unlocks the labs and tests each with its reference. Minutes to an hour. Its output is lab/reports/release.txt.
#
#   tools/check_release.sh [--out DIR] [OPTION OF ./ladder lab release]...     (DIR: beside the checkout, not in it)
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
out=$(dirname "$root")/ladder-check-release
if [ "${1:-}" = --out ]; then
  out=$2
  shift 2
fi
salt=0123456789abcdef-check
rm -rf "$out/the release" "$out/the release-instructor" "$out/a clone"
mkdir -p "$out"

say() { printf '\n== %s\n' "$*"; }
# expect CODE COMMAND...: shows what it prints, cut to the lines that count
expect() {
  local wanted=$1 code=0
  shift
  printf '$ %s\n' "$*" | sed "s|$out|OUT|g; s|$root/||g"
  "$@" >"$out/said.txt" 2>&1 || code=$?
  grep -vE '^(ladder: |building |passed |not written  |skipped |        |-- |\[|  variant|  [a-z]+  [0-9a-f]{64}$)' "$out/said.txt" |
    sed "s|$out|OUT|g" | tail -n 40 || true
  [ "$code" = "$wanted" ] || { cat "$out/said.txt"; echo "exit code $code, expected $wanted"; exit 1; }
}

printf '# tools/check_release.sh %s; commit %s; %s cores of%s\n' "$*" "$(git -C "$root" rev-parse --short HEAD)" "$(nproc)" \
  "$(sed -n 's/^model name[^:]*://p' /proc/cpuinfo | head -1)"
say "a release, and a student's clone"
expect 0 "$root/ladder" lab release --course "A course" --salt "$salt" --out "$out/the release" "$@"
git clone -q "$out/the release" "$out/a clone"
cd "$out/a clone"
git log --format='%an: %s'
git count-objects -vH | grep size-pack

say "all of it builds with the stubs"
cmake -G Ninja -S . -B build/course -DCMAKE_BUILD_TYPE=Release -DLADDER_CUDA=OFF -DLADDER_BENCH=OFF >/dev/null
SECONDS=0
ninja -C build/course >"$out/build.txt" 2>&1 || { tail -50 "$out/build.txt"; exit 1; }
echo "$(wc -l <"$out/build.txt") lines of ninja, $(grep -c 'warning:' "$out/build.txt" || true) warnings"
echo "built in $SECONDS s" >&2

say "a task, from its stub to the hand-in"
expect 0 ./ladder lab start 3.2
expect 1 ./ladder lab test 3.2
expect 2 ./ladder lab hand-in 3.2
expect 2 ./ladder lab use reference 3.2
python3 - "$out/the release-instructor/ladder" <<'PY'
import pathlib, re, sys
path, region = "step3_sequence/block/block_pool.cpp", re.compile(r"(// >>> task 3\.2:.*\n)((?:.*\n)*?)(// <<< task 3\.2)")
theirs = region.search((pathlib.Path(sys.argv[1]) / path).read_text())[2]
here = pathlib.Path(path)
here.write_text(region.sub(lambda found: found[1] + theirs + found[3], here.read_text()))
PY
expect 0 ./ladder lab test 3.2
expect 0 ./ladder lab hand-in 3.2
expect 0 "$out/the release-instructor/ladder/ladder" lab hand-in --check "$PWD/hand-in-3.2.json"

say "a task whose needs are not there; the demo"
expect 0 ./ladder lab start 3.4
expect 1 ./ladder lab test 3.4
expect 1 ./ladder lab demo

say "unlocked lab by lab, and tested with the reference"
"$root/ladder" lab release --keys --salt "$salt" >"$out/keys.txt" 2>/dev/null
expect 2 ./ladder lab unlock memory --key "$(awk '$1 == "engine" { print $2 }' "$out/keys.txt")"
for lab in $(python3 -c 'import json; print(*json.load(open("lab/release.json"))["cut"])'); do
  ./ladder lab unlock "$lab" --key "$(awk -v lab="$lab" '$1 == lab { print $2 }' "$out/keys.txt")" | cut -d: -f1
  ./ladder lab use reference "$lab" >/dev/null
done
for lab in $(python3 -c 'import json; print(*json.load(open("lab/release.json"))["cut"])'); do expect 0 ./ladder lab test "$lab"; done
expect 0 ./ladder lab demo
git status --short
