#!/usr/bin/env python3
"""Grades a class of 30 hand-ins of task 5.2 and compares each with what it must get.

    tools/grade_class.py              writes lab/reports/class.txt
    tools/grade_class.py --hand-ins F only writes the hand-ins, to folder F

The hand-ins: the reference and texts that are as right, every mutant of lab/mutants.json, an empty one, what does not
compile, what never ends, what eats memory, disc or processes, and cheats.
"""
import argparse
import csv
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import labs

TASK, FILE = "5.2", "step5_scheduler/schedule_continuous.cpp"
REPORT = labs.ROOT / "lab" / "reports" / "class.txt"
LIMIT_S = 20 * 60
FIRST = "void Scheduler::schedule_continuous() {\n"


def reference():
    return "\n".join(labs.regions_of((labs.ROOT / FILE).read_text())[TASK]) + "\n"


def hand_in(text, release, **changes):
    region = {"task": TASK, "file": FILE, "sha256": hashlib.sha256(text.encode()).hexdigest(), "text": text}
    region.update(changes)
    return {"format": 1, "release": release, "commit": "", "regions": [region]}


def begins(code, before=""):
    """The reference, with code at the beginning of every step."""
    return before + reference().replace(FIRST, FIRST + code)


def people(release):
    """{student: (hand-in as text, what must come of it)}; "all": all points, "some": not all, "none": none."""
    text, mutants = reference(), [m for m in json.loads((labs.ROOT / "lab" / "mutants.json").read_text())
                                  if m["task"] == TASK and m["file"] == FILE]
    found = {
        "right": (text, "all"),
        "right_with_helper": (text.replace(FIRST, "namespace {\nint64_t next(int64_t i) { return i + 1; }\n}  // namespace\n\n"
                                           + FIRST + "  if (next(0) != 1) return;\n"), "all"),
        "comment_says_system": (begins("  // calls no system(\"rm\"), no fork() and no getenv\n  const int file_index = 0;\n"
                                       "  static_cast<void>(file_index);\n"), "all"),
    }
    for number, mutant in enumerate(mutants, 1):
        found[f"mutant{number:02}"] = (text.replace(mutant["find"], mutant["replace"]), "some")
    more = {
        "does_not_compile": (begins("  int x = \"text\";\n"), "none"),
        "never_ends": (begins("  for (volatile int i = 0;; i = i + 1) {}\n"), "none"),
        "eats_memory": (begins("  static std::vector<std::vector<char>> all;\n  for (;;) all.emplace_back(1 << 24, 'x');\n"),
                        "none"),
        "crashes": (begins("  int* volatile p = nullptr;\n  *p = 1;\n"), "none"),
        "forks_hidden": (begins("  for (;;) ::vfork();\n"), "none"),
        "leaves": (begins("  std::exit(0);\n"), "none"),
        "fills_the_disc": (begins("  std::ofstream out(\"/tmp/x\");\n  for (;;) out << 'x';\n"), "none"),
        "reads_the_seed": (begins("  if (std::getenv(\"LADDER_TEST_SEED\") != nullptr) return;\n"), "none"),
        "closes_the_namespace": ("}  // namespace ladder\nint main() { return 0; }\nnamespace ladder {\n" + text, "none"),
        "opens_a_comment": (text + "/* and the rest\n", "none"),
    }
    found |= more
    found = {name: (json.dumps(hand_in(code, release)), wanted) for name, (code, wanted) in found.items()}
    found["another_release"] = (json.dumps(hand_in(text, "0123456789ab")), "none")
    found["another_task"] = (json.dumps(hand_in(text, release, task="5.3")), "none")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hand-ins")
    parser.add_argument("--lab", default=labs.ROOT / "build" / "dev" / "lab" / "lab")
    parser.add_argument("--only", help="the students whose names contain this")
    arguments = parser.parse_args()
    program = [arguments.lab, "--root", labs.ROOT]
    release = subprocess.run([*program, "status"], capture_output=True, text=True).stdout.split()[1]
    all_of = people(release)
    if arguments.only:
        all_of = {name: one for name, one in all_of.items() if arguments.only in name}
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(arguments.hand_ins or made)
        folder.mkdir(exist_ok=True)
        for name, (text, _) in all_of.items():
            (folder / f"{name}.json").write_text(text)
        if arguments.hand_ins:
            return 0
        command = ["grade", folder, "--tasks", TASK, "--salt", "a class", "--variants", "none", "--format", "csv"]
        began = time.time()
        done = subprocess.run([*program, *command], stdout=subprocess.PIPE, text=True)
        took = time.time() - began
    rows = {row["student"]: row for row in csv.DictReader(io.StringIO(done.stdout))}
    lines, wrong = [], 0
    for name, (_, wanted) in all_of.items():
        row = rows[name]
        points, of = float(row["points"]), float(row["of"])
        fits = {"all": points == of and not row["errors"], "some": points < of, "none": points == 0}[wanted]
        wrong += not fits
        why = row["errors"] or ("" if points == of else "tests failed")
        lines.append(f"{'ok  ' if fits else 'WRONG'}  {name:24} expected {wanted:5} got {row['points']:>6} of {row['of']}  {why}\n")
    load = " ".join(f"{x:.1f}" for x in os.getloadavg())
    text = (labs.made_by("tools/grade_class.py")
            + f"# lab grade CLASS --tasks {TASK} --salt S --variants none --format csv: {len(rows)} hand-ins in {took / 60:.1f} minutes, the reference's "
              f"runs included; exit code {done.returncode}; load {load}\n" + "".join(lines))
    print(text)
    if not arguments.only:
        REPORT.write_text(text)
    return 1 if wrong or took > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
