#!/usr/bin/env python3
"""Plants defects in the core tasks, one at a time, and expects a test to find each.

    tools/mutants.py            builds a copy of the checkout with every mutant of lab/mutants.json in turn
    tools/mutants.py --check    only looks whether each of them still has its place in the source

A mutant is {"task", "name", "file", "find", "replace"}: `find` stands in the file exactly once. It is caught by the
tests of its task (TaskN_M_*), or, which is said, by others of its step only.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "mutants"


def misplaced(mutants, root):
    """Names of the mutants that stand not exactly once in their file."""
    return [mutant["name"] for mutant in mutants
            if not (root / mutant["file"]).is_file() or (root / mutant["file"]).read_text().count(mutant["find"]) != 1]


def build(step):
    return subprocess.run(["cmake", "--build", COPY / "build", "--target", f"test_step{step}"], capture_output=True, text=True)


def caught(step, test_filter):
    test = [COPY / "build" / "tests" / f"test_step{step}", "--gtest_brief=1", f"--gtest_filter={test_filter}"]
    try:
        return subprocess.run(test, capture_output=True, timeout=600).returncode != 0
    except subprocess.TimeoutExpired:  # a test that never ends fails too
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    mutants = json.loads((ROOT / "lab" / "mutants.json").read_text())
    if lost := misplaced(mutants, ROOT):
        sys.exit("mutants: these stand not exactly once in their file: " + "; ".join(lost))
    if arguments.check:
        return

    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, files):
        source, target = ROOT / name, COPY / "source" / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    subprocess.run(["cmake", "-G", "Ninja", "-S", COPY / "source", "-B", COPY / "build", "-DCMAKE_BUILD_TYPE=Release",
                    "-DLADDER_CUDA=OFF", "-DLADDER_BENCH=OFF"], check=True, capture_output=True)
    alive = 0
    for mutant in mutants:
        step, path = mutant["task"][0], COPY / "source" / mutant["file"]
        text = path.read_text()
        path.write_text(text.replace(mutant["find"], mutant["replace"]))
        try:
            built = build(step)
            own = f"Task{mutant['task'].replace('.', '_')}_*"
            if built.returncode != 0:
                verdict = "does not compile: " + built.stdout.strip().splitlines()[-1]
            elif caught(step, own):
                verdict = "caught"
            elif caught(step, "*"):
                verdict = "caught, but by tests of other tasks only"
            else:
                verdict = "SURVIVES"
        finally:
            path.write_text(text)
        alive += not verdict.startswith("caught")
        print(f"{mutant['task']}  {mutant['name']}: {verdict}", flush=True)
    print(f"mutants: {len(mutants) - alive} of {len(mutants)} caught")
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main()
