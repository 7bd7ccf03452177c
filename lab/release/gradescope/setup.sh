#!/usr/bin/env bash
# Gradescope runs this once, while it makes the image: packages, and all that does not depend on a hand-in.
set -euo pipefail
cd /autograder/source/ladder
chmod 600 ../salt
./ladder lab list
