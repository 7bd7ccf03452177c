#!/usr/bin/env python3
"""Proves the choices of lab/variants.json (lab/variants.h): with the edits of a choice the tests of its tasks pass, and the
standard solution under the edited contract and tests does not.

    tools/variants.py                 all choices
    tools/variants.py free-order      those of one variant
    tools/variants.py --check         builds nothing: each edit has its place, alone and with all others, and every seeded
                                      defect (lab/bugs.json) keeps its own

It builds in a copy of the checkout, build/variants, where the files are edited; the verdicts are in lab/reports/variants.txt.
"""
import argparse
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import labs

COPY = labs.ROOT / "build" / "variants"
BUILD = COPY / "build" / "dev"
REPORT = labs.ROOT / "lab" / "reports" / "variants.txt"


def edited(edits, read):
    """{path: text} after the edits; raises ValueError where one has not exactly one place."""
    texts = {}
    for edit in edits:
        text = texts.get(edit["file"]) or read(edit["file"])
        if text.count(edit["find"]) != 1:
            raise ValueError(f"stands not exactly once in {edit['file']}: {edit['find'].splitlines()[0]}")
        texts[edit["file"]] = text.replace(edit["find"], edit["replace"])
    return texts


def problems(variants, tasks, bugs, root=labs.ROOT):
    def read(path):
        return (root / path).read_text()

    wrong = []
    for variant in variants:
        first = variant["choices"][0]
        if len(variant["choices"]) < 2 or first["edits"]:
            wrong.append(f"{variant['name']}: expected two choices or more, of which the first edits nothing")
        wrong += [f"{variant['name']}: {name} is no task" for name in variant["tasks"] if name not in tasks]
        for choice in variant["choices"][1:]:
            kinds = {"contract" if edit["file"].endswith(".h") else "tests" if edit["file"].startswith("tests/") else
                     "reference" for edit in choice["edits"]}
            wrong += [f"{variant['name']}, {choice['name']}: edits no {kind}"
                      for kind in {"contract", "tests", "reference"} - kinds]
    for choices in itertools.product(*(variant["choices"] for variant in variants)):
        name = " and ".join(choice["name"] for choice in choices)
        try:
            texts = edited([edit for choice in choices for edit in choice["edits"]], read)
        except (OSError, ValueError) as error:
            wrong.append(f"{name}: {error}")
            continue
        for bug in bugs:
            text = texts.get(bug["file"]) or read(bug["file"])
            if text.count(bug["find"]) != 1:
                wrong.append(f"{name}: the seeded defect {bug['id']} stands not exactly once in {bug['file']}")
    return list(dict.fromkeys(wrong))


class Copy:
    """A copy of the checkout's tracked files, built once and edited from choice to choice."""

    def __init__(self):
        files = subprocess.run(["git", "ls-files", "-z"], cwd=labs.ROOT, check=True, capture_output=True, text=True).stdout
        self.files = [path for path in files.split("\0") if path and (labs.ROOT / path).is_file()]
        self.set({})
        if not (BUILD / "build.ninja").exists():
            subprocess.run(["cmake", "-G", "Ninja", "-S", COPY, "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release",
                            "-DLADDER_CUDA=OFF"], check=True, capture_output=True)

    def set(self, texts):
        for path in self.files:
            text = texts[path].encode() if path in texts else (labs.ROOT / path).read_bytes()
            target = COPY / path
            if not target.exists() or target.read_bytes() != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text)
                shutil.copymode(labs.ROOT / path, target)

    def failed(self, task):
        """The task's tests that fail, hidden ones among them, and how many there are."""
        tests = []
        for suite in filter(None, (task["tests"], task.get("hidden"))):
            tests += self.results(suite["target"], suite["filter"])
        return [name for name, bad in tests if bad], len(tests)

    def results(self, target, test_filter):
        """(test, whether it fails) of a test binary."""
        built = subprocess.run(["ninja", "-C", BUILD, target], capture_output=True, text=True)
        if built.returncode != 0:
            raise SystemExit(built.stdout[-3000:])
        report = BUILD / "variant.json"
        report.unlink(missing_ok=True)
        subprocess.run([BUILD / "tests" / target, f"--gtest_filter={test_filter}", f"--gtest_output=json:{report}"],
                       capture_output=True, env=os.environ | {"GOMP_SPINCOUNT": "1000"}, timeout=600)
        suites = json.loads(report.read_text())["testsuites"]
        return [(f"{suite['name']}.{test['name']}", "failures" in test) for suite in suites for test in suite["testsuite"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="variants")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    variants = json.loads((labs.ROOT / "lab" / "variants.json").read_text())
    tasks = {task["id"]: task for task in labs.load()["tasks"]}
    bugs_file = labs.ROOT / "lab" / "bugs.json"
    wrong = problems(variants, tasks, json.loads(bugs_file.read_text()) if bugs_file.exists() else [])
    for line in wrong:
        print(f"variants: {line}", file=sys.stderr)
    if wrong or arguments.check:
        sys.exit(1 if wrong else 0)

    regions = {path for task in tasks.values() for path in task["regions"]}
    copy, lines, bad = Copy(), [], 0
    for variant in variants:
        if arguments.names and variant["name"] not in arguments.names:
            continue
        for choice in variant["choices"][1:]:
            texts = edited(choice["edits"], lambda path: (labs.ROOT / path).read_text())
            copy.set(texts)
            for target in sorted({tasks[name][kind]["target"] for name in variant["tasks"] for kind in ("tests", "hidden")
                                  if kind in tasks[name]}):
                failures, count = copy.failed({"tests": {"target": target, "filter": "*"}})
                bad += bool(failures)
                lines.append(f"{variant['name']}  {choice['name']}  its reference: {count - len(failures)} of {count} tests of "
                             f"{target} pass" + (f"; not {', '.join(failures)}" if failures else ""))
                print(lines[-1], flush=True)
            copy.set({path: text for path, text in texts.items() if path not in regions})
            for name in variant["tasks"]:
                failures, count = copy.failed(tasks[name])
                bad += not failures
                lines.append(f"{variant['name']}  {choice['name']}  the standard solution of {name}: "
                             + (f"fails {', '.join(failures)}" if failures else f"PASSES all {count} tests"))
                print(lines[-1], flush=True)
    if not arguments.names:
        REPORT.write_text(labs.made_by("tools/variants.py") + "".join(line + "\n" for line in lines))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
