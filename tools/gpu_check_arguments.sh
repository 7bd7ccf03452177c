# Arguments and programs of gpu_check.sh and multi_gpu_check.sh, which source this behind `every`, the names of their parts,
# with their own arguments. Sets root, build, out, parts, and failed to 0.
name=$(basename "$0" .sh)
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
build=$root/build/release
out=$name
parts=()
failed=0

fail() { echo "$name: $*" >&2; exit 2; }

while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    --build | --out)
      [ -n "${2:-}" ] || fail "$1: expected a folder after it"
      [ "$1" = --build ] && build=$2 || out=$2
      shift ;;
    *)
      [[ " ${every[*]} " = *" $1 "* ]] || fail "$1: expected --build DIR, --out DIR, or some of ${every[*]}"
      parts+=("$1") ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${every[@]}")

binary() {  # binary NAME: its path
  local folder
  for folder in "$build" "$build/tests" "$build/bench"; do
    [ -x "$folder/$1" ] && [ -f "$folder/$1" ] && { printf '%s\n' "$folder/$1"; return; }
  done
  printf '%s\n' "$build/$1"  # the attempt to run it says that it is missing
}
