#!/usr/bin/env bash
# Gradescope runs this once, while it makes the image: packages, and all that does not depend on a hand-in.
set -euo pipefail
source=${AUTOGRADER:-/autograder}/source
cd "$source/ladder"
chmod 600 "$source/salt"
./ladder lab list
# The tasks of this assignment (README: Gradescope): what is built here is not built for each submission.
if [ -s "$source/tasks" ]; then
  ./ladder lab grade --tasks "$(tr -d ' \n' <"$source/tasks")" --salt-file "$source/salt" --sandbox none
fi
