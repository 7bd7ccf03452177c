#!/usr/bin/env python3
"""Plants defects in the tasks, one at a time, and expects a test of the task itself to find each.

    tools/mutants.py                  those of lab/mutants.json whose place or tests have changed since the report
    tools/mutants.py --all            all of them
    tools/mutants.py 5.2 3.3          those of these tasks
    tools/mutants.py --gpu            those of the tasks whose tests need a GPU, and no others
    tools/mutants.py --shard 2/8      the second eighth of those that are due, for several machines; their reports are
                                      put together by `cat`, and by running this once more without it
    tools/mutants.py --check          builds nothing: each still has its place in the source, each task has three

A mutant is {"task", "name", "file", "find", "replace"}: `find` stands in the file exactly once, in the task's region
or in what it alone uses. It is planted in a copy that the build takes instead of the file (tools/overlay.py); only that
object and the test binary are built. The verdicts are in lab/reports/mutants.txt.
"""
import argparse
import hashlib
import json
import sys

import labs
import overlay

MUTANTS = labs.ROOT / "lab" / "mutants.json"
REPORT = labs.ROOT / "lab" / "reports" / "mutants.txt"
HEAD = "# verdict  task  key  name; the key is of the file, the mutant and the task's filter of tests\n"


def misplaced(mutants, root):
    """Names of the mutants that stand not exactly once in their file."""
    return [mutant["name"] for mutant in mutants
            if not (root / mutant["file"]).is_file() or (root / mutant["file"]).read_text().count(mutant["find"]) != 1]


def problems(mutants, tasks, root=labs.ROOT):
    wrong = [f"stands not exactly once in its file: {name}" for name in misplaced(mutants, root)]
    wrong += [f"of {mutant['task']}, which is no task: {mutant['name']}" for mutant in mutants if mutant["task"] not in tasks]
    wrong += [f"in a header, which would build everything anew: {mutant['name']}" for mutant in mutants
              if mutant["file"].endswith((".h", ".cuh"))]
    names = [(mutant["task"], mutant["name"]) for mutant in mutants]
    wrong += [f"twice: {name[1]}" for name in sorted(set(names)) if names.count(name) > 1]
    for name, task in tasks.items():
        count = sum(mutant["task"] == name for mutant in mutants)
        if count < 3 and not task["given"]:
            wrong.append(f"task {name} has {count}, expected three")
    return wrong


def key(mutant, task, root=labs.ROOT):
    """Changes when the verdict might."""
    text = (root / mutant["file"]).read_text()
    return hashlib.sha256(json.dumps([text, mutant, task["tests"]]).encode()).hexdigest()[:10]


def read_report():
    if not REPORT.exists():
        return {}
    rows = [line.rstrip("\n").split("  ", 3) for line in REPORT.read_text().splitlines() if not line.startswith("#")]
    return {(task, name): (verdict, mark) for verdict, task, mark, name in rows}


def write_report(mutants, found):
    lines = ["  ".join([*(found[at][0], at[0], found[at][1]), at[1]]) + "\n"
             for mutant in mutants if (at := (mutant["task"], mutant["name"])) in found]
    caught = sum(line.startswith("caught  ") for line in lines)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(labs.made_by("tools/mutants.py") + HEAD
                      + f"# {caught} caught by the task's own tests, {len(lines) - caught} not, {len(mutants) - len(lines)} not run\n"
                      + "".join(lines))


def verdict(builds, mutant, task):
    text = (labs.ROOT / mutant["file"]).read_text()
    builds.set({mutant["file"]: text.replace(mutant["find"], mutant["replace"])})
    target = task["tests"]["target"]
    if said := builds.build(target):
        return "does not compile", said
    failed = [name for name, result in builds.run(target, builds.names(target, task["tests"]["filter"])).items()
              if result not in ("passed", "skipped")]
    return ("caught", failed[0]) if failed else ("SURVIVES", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="ids of tasks")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--shard", type=labs.shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--processes", type=int, default=1, help="as many run a binary's tests side by side (default: 1)")
    parser.add_argument("--build", default="build/release", help="the build folder (default: build/release)")
    arguments = parser.parse_args()
    mutants = json.loads(MUTANTS.read_text())
    tasks = {task["id"]: task for task in labs.load()["tasks"]}
    wrong = problems(mutants, tasks)
    for line in wrong:
        print(f"mutants: {line}", file=sys.stderr)
    if arguments.check:
        sys.exit(1 if wrong else 0)
    placed = [mutant for mutant in mutants if mutant["task"] in tasks and mutant["name"] not in misplaced(mutants, labs.ROOT)]
    found = read_report()

    def is_due(mutant):
        if tasks[mutant["task"]]["gpu"] != arguments.gpu:
            return False
        if arguments.tasks:
            return mutant["task"] in arguments.tasks
        before = found.get((mutant["task"], mutant["name"]), ("", ""))
        return arguments.all or before != ("caught", key(mutant, tasks[mutant["task"]]))

    alive = 0
    with overlay.Overlay(arguments.build, arguments.processes) as builds:
        number, of = arguments.shard
        for mutant in sorted(filter(is_due, placed), key=lambda mutant: (mutant["file"], mutant["task"]))[number - 1::of]:
            task = tasks[mutant["task"]]
            result, by = verdict(builds, mutant, task)
            found[mutant["task"], mutant["name"]] = (result, key(mutant, task))
            alive += result != "caught"
            print(f"{mutant['task']}  {mutant['name']}: {result} {by}".rstrip(), flush=True)
            write_report(mutants, found)
    write_report(mutants, found)
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main()
