#!/usr/bin/env python3
"""The seeded defects of lab/bugs.json: whether each has its place, and whether it can be found.

    tools/bugs.py --check        every `find` stands exactly once, ids and tests fit: seconds
    tools/bugs.py [ID...]        of these, or of all: writes lab/reports/bugs.txt

A bug is proved by `lab test`, as a student calls it: the committed solution (tests/hidden/bugs/) finds it, and the empty
test, one that always fails and one that always passes find nothing. Then all public tests of the bug's step, and of the
step whose tests it is for, run with the defect built in: where one fails, a student could hand in that one.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

import labs
import overlay

BUGS = labs.ROOT / "lab" / "bugs.json"
REPORT = labs.ROOT / "lab" / "reports" / "bugs.txt"
KEYS = {"id": str, "task": str, "title": str, "report": str, "file": str, "find": str, "replace": str, "source": str,
        "hours": int, "target": str, "includes": list}
ALWAYS = "#include <gtest/gtest.h>\nTEST(Bug, Always) { EXPECT_TRUE(%s); }\n"


def name_of(bug):
    return re.sub("[.#]", "_", bug["id"])


def solution(bug, root=labs.ROOT):
    return root / "tests" / "hidden" / "bugs" / f"{name_of(bug)}_test.cpp"


def problems(bugs, tasks, root=labs.ROOT):
    wrong, ids = [], [bug.get("id") for bug in bugs]
    for bug in bugs:
        name = bug.get("id", "?")
        if list(bug) != list(KEYS) or any(type(bug[key]) is not kind for key, kind in KEYS.items()):
            wrong.append(f"{name}: expected the keys {', '.join(KEYS)}, in this order and of their types")
            continue
        task, _, number = name.partition("#")
        if task != bug["task"] or task not in tasks or not number.isdigit() or ids.count(name) > 1:
            wrong.append(f"{name}: an id is that of its task and a number of its own, as 3.3#2")
            continue
        path = root / bug["file"]
        if not path.is_file() or path.read_text().count(bug["find"]) != 1:
            wrong.append(f"{name}: stands not exactly once in {bug['file']}")
        if not re.fullmatch(r"step[1-8]_\w+/.*(?<!_simd)\.cpp", bug["file"]):
            wrong.append(f"{name}: expected a .cpp file of a step that is compiled once")
        if not re.fullmatch(r"test_step[1-8]", bug["target"]) or bug["target"][9:] < bug["file"][4]:
            wrong.append(f"{name}: expected the tests of the file's step, or of a later one")
        if not solution(bug, root).is_file():
            wrong.append(f"{name}: {solution(bug, root).relative_to(root)} is missing")
        wrong += [f"{name}: no header {header}" for header in bug["includes"] if not (root / header).is_file()]
    return wrong


def lab(*arguments):
    return subprocess.run([labs.ROOT / "ladder", "lab", *arguments], capture_output=True, text=True)


def answer(bug, text=None):
    """What `lab test` says of a text: "found", or why not, in a line; without one, of the file that `lab bug` writes."""
    path = labs.ROOT / "tests" / "bugs" / f"{name_of(bug)}_test.cpp"
    path.unlink(missing_ok=True)
    if started := lab("bug", bug["id"]).returncode:
        return f"lab bug ended with {started}"
    if text is not None:
        path.write_text(text)
    done = lab("test", bug["id"])
    if done.returncode == 0:
        return "found"
    said = (done.stdout + done.stderr).splitlines()
    return next((line for line in said if "NOT FOUND" in line), said[-1] if said else "nothing")


def public_verdict(builds, bug):
    text = (labs.ROOT / bug["file"]).read_text()
    builds.set({bug["file"]: text.replace(bug["find"], bug["replace"])})
    for target in sorted({f"test_step{bug['file'][4]}", bug["target"]}):
        if said := builds.build(target):
            return f"does not compile: {said[-200:]}"
        for test, result in builds.run(target, builds.names(target)).items():
            if result not in ("passed", "skipped"):
                return f"caught by {test}"
    return "survives"


def read_report():
    if not REPORT.exists():
        return {}
    return {line.split("  ")[1]: line for line in REPORT.read_text().splitlines() if line and not line.startswith("#")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", help="ids of bugs")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    bugs = json.loads(BUGS.read_text())
    wrong = problems(bugs, {task["id"] for task in labs.load()["tasks"]})
    for line in wrong:
        print(f"bugs: {line}", file=sys.stderr)
    if arguments.check or wrong:
        sys.exit(1 if wrong else 0)
    folder = labs.ROOT / "tests" / "bugs"
    if folder.exists():
        sys.exit("bugs: tests/bugs is there, with tests of somebody's")
    rows, bad = read_report(), 0
    try:
        for bug in bugs:
            if arguments.ids and bug["id"] not in arguments.ids:
                continue
            answers = {"solution": answer(bug, solution(bug).read_text()), "empty": answer(bug),
                       "always fails": answer(bug, ALWAYS % "false"), "always passes": answer(bug, ALWAYS % "true")}
            with overlay.Overlay("build/course") as builds:
                public = public_verdict(builds, bug)
            proved = answers["solution"] == "found" and all(
                said in answers[text] for text, said in [("empty", "still the empty test"), ("always fails", "on the reference"),
                                                         ("always passes", "passes on the defect")])
            bad += not proved
            rows[bug["id"]] = "  ".join(["proved" if proved else "NOT PROVED", bug["id"], public, bug["title"]])
            print(rows[bug["id"]] + ("" if proved else f"  {answers}"), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(labs.ROOT / ".lab" / "bugs", ignore_errors=True)
    kept = [rows[bug["id"]] for bug in bugs if bug["id"] in rows]
    survive = sum("  survives  " in row for row in kept)
    REPORT.write_text(labs.made_by("tools/bugs.py") + "# proved: the solution fails on the defect and passes on the reference; the "
                      "empty test, one that always fails and one that always passes are refused\n# survives: every public test of "
                      "its step (and of the step whose tests it is for) passes with the defect built in\n"
                      f"# {len(kept)} of {len(bugs)} bugs, {survive} survive the public tests\n# proof  bug  public tests  title\n"
                      + "".join(row + "\n" for row in kept))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
