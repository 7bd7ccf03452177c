#!/usr/bin/env bash
# Dependencies point down the ladder: a file of step N includes headers of steps 1 to N only. Prints each include that
# points up and exits with 1 if there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bad=0
while IFS=: read -r file line text; do
  own=${file#step} && own=${own%%_*}
  other=$(sed -E 's/.*"step([1-8])_.*/\1/' <<<"$text")
  if [ "$other" -gt "$own" ]; then
    echo "$file:$line: step $own includes step $other: $text"
    bad=1
  fi
done < <(grep -rnE '#include[[:space:]]*"step[1-8]_' step[1-8]_*/ --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh')

# The same for the parts that may use every step below, and for tests and benchmarks by their folder.
while IFS=: read -r file line text; do
  own=$(sed -E 's#^(tests|bench)/step([1-8])_.*#\2#' <<<"$file")
  other=$(sed -E 's/.*"step([1-8])_.*/\1/' <<<"$text")
  if [ "$other" -gt "$own" ]; then
    echo "$file:$line: a test or benchmark of step $own includes step $other: $text"
    bad=1
  fi
done < <(grep -rnE '#include[[:space:]]*"step[1-8]_' tests/step[1-8]_* bench/step[1-8]_* --include='*.h' --include='*.cpp' || true)

[ "$bad" -eq 0 ] && echo "layers: every include points down the ladder"
exit "$bad"
