#!/usr/bin/env bash
# Dependencies point down the ladder: a file of step N, its tests and its benchmarks include headers of steps 1 to N
# only; cli/ stands above all steps, so none of them includes it, nor its tests. Prints each include that points up and
# exits with 1 if there is one.
#
#   tools/check_layers.sh [FOLDER]      FOLDER: a checkout, this one by default
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

shopt -s nullglob
rooms=(step[0-9]*_*/ {tests,bench}/{step[0-9]*_*,suppor[t]}/)  # a pattern, so that what is missing is left out
[ ${#rooms[@]} -gt 0 ] || { echo "check_layers: no step in $PWD"; exit 1; }

# Lines like  tests/step3_sequence/x_test.cpp:7:#include "step5_scheduler/scheduler.h"
{ grep -rnE '#[[:space:]]*include[[:space:]]*"((tests|bench)/)?(step[0-9]+_|cli/)' "${rooms[@]}" \
  --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' || [ $? -eq 1 ]; } | awk '
  function step_in(path) { return match(path, /step[0-9]+_/) ? substr(path, RSTART + 4, RLENGTH - 5) + 0 : 0 }
  {
    file = $0; sub(/:.*/, "", file)
    include = $0; sub(/^[^"]*"/, "", include); sub(/".*/, "", include)
    own = step_in(file)                        # 0: support, for tests and benchmarks of every step
    above = step_in(include)                   # 0: cli/
    if (above == 0 || (own > 0 && above > own)) {
      print $0
      bad = 1
    }
  }
  END {
    if (bad) print "layers: these includes point up the ladder"
    else print "layers: every include points down the ladder"
    exit bad
  }'
