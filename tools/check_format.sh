#!/usr/bin/env bash
# Every tracked C++ and CUDA file is formatted as .clang-format says (clang-format 14). With --fix, formats them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clang_format=$(command -v clang-format-14 || command -v clang-format) || {
  echo "check_format: clang-format is not installed" >&2
  exit 2
}
mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
  "$clang_format" -i "${files[@]}"
else
  "$clang_format" --dry-run -Werror "${files[@]}"
  echo "format: ${#files[@]} files as .clang-format says"
fi
