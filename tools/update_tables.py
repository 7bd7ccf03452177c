#!/usr/bin/env python3
"""Writes the measured tables and pictures of the chapters anew, from the results in bench/results/.

    python3 tools/update_tables.py [README.md ...]

A table stands between two comments, the first of which holds the command that prints it; the command that draws a
picture stands in a comment before it:

    <!-- table: tools/ladder_table.py --from bench/results/h200/step1_layers.json --op rms_norm --markdown -->
    <!-- end -->
    <!-- picture: tools/ladder_table.py --from bench/results/h200/step1_layers.json --op rms_norm --plot FILE.svg -->
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("step1_layers/README.md", "step1_layers/GPU.md", "step7_parallel/README.md", "bench/results/h200/README.md",
         "bench/results/h100x2/README.md", "step8_advanced/quantization/README.md",
         "step8_advanced/disaggregation/README.md", "ROADMAP.md")
BLOCK = re.compile(r"^(<!-- table: (.*?) -->\n)(.*?)^(<!-- end -->)$", re.MULTILINE | re.DOTALL)

PICTURE = re.compile(r"^<!-- picture: (.*?) -->$", re.MULTILINE)


def output_of(command):
    done = subprocess.run([sys.executable, "-B", *shlex.split(command)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr.strip()}")
    return done.stdout.strip()


def rewritten(text, output):
    """The text with every table as output(command) gives it."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{output(found[2])}\n\n{found[4]}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="README.md", default=FILES)
    for name in parser.parse_args().files:
        file = ROOT / name
        try:
            text = file.read_text()
        except OSError as error:
            sys.exit(f"update_tables: {error}")
        new = rewritten(text, output_of)
        file.write_text(new)
        pictures = PICTURE.findall(text)
        for command in pictures:
            output_of(command)
        changed = "" if new == text else ", changed"
        print(f"{name}: {len(BLOCK.findall(text))} tables{changed}, {len(pictures)} pictures")


if __name__ == "__main__":
    main()
