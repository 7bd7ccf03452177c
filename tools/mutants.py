#!/usr/bin/env python3
"""Plants defects in the tasks, one at a time, and expects a test of the task itself to find each.

    tools/mutants.py                  those of lab/mutants.json whose place or tests have changed since the report
    tools/mutants.py --all            all of them
    tools/mutants.py 5.2 3.3          those of these tasks
    tools/mutants.py --gpu            those of the tasks whose tests need a GPU, and no others
    tools/mutants.py --shard 2/8      the second eighth of those that are due, for several machines; their reports are
                                      put together by `cat`, and by running this once more without it
    tools/mutants.py --hidden         held against the tasks' hidden tests; may be said with all others
    tools/mutants.py --check          builds nothing: each still has its place in the source, each task has three

A mutant is {"task", "name", "file", "find", "replace"}: `find` stands in the file exactly once, in the task's region
or in what it alone uses. It is planted in a copy that the build takes instead of the file (tools/overlay.py); only that
object and the test binary are built. The verdicts are in lab/reports/mutants.txt; of hidden tests, which run with two
seeds as in `lab grade`, in lab/reports/mutants_hidden.txt.
"""
import argparse
import hashlib
import json
import sys

import labs
import overlay

MUTANTS = labs.ROOT / "lab" / "mutants.json"
SEEDS = ("1", "2")  # of hidden tests
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


class Suite:
    """Which tests a mutant meets, where the verdicts stand, and the option that says so."""
    def __init__(self, hidden):
        self.key, self.option = ("hidden", " --hidden") if hidden else ("tests", "")
        self.what = "task's hidden tests" if hidden else "task's own tests"
        self.seeds = SEEDS if hidden else (None,)
        self.report = labs.ROOT / "lab" / "reports" / ("mutants_hidden.txt" if hidden else "mutants.txt")


def key(mutant, tests, root=labs.ROOT):
    """Changes when the verdict might."""
    text = (root / mutant["file"]).read_text()
    return hashlib.sha256(json.dumps([text, mutant, tests]).encode()).hexdigest()[:10]


def read_report(report):
    if not report.exists():
        return {}
    rows = [line.rstrip("\n").split("  ", 3) for line in report.read_text().splitlines() if not line.startswith("#")]
    return {(task, name): (verdict, mark) for verdict, task, mark, name in rows}


def write_report(suite, mutants, found):
    lines = ["  ".join([*(found[at][0], at[0], found[at][1]), at[1]]) + "\n"
             for mutant in mutants if (at := (mutant["task"], mutant["name"])) in found]
    caught = sum(line.startswith("caught  ") for line in lines)
    suite.report.parent.mkdir(exist_ok=True)
    suite.report.write_text(labs.made_by("tools/mutants.py" + suite.option) + HEAD
                            + f"# {caught} caught by the {suite.what}, {len(lines) - caught} not, {len(mutants) - len(lines)} not run\n"
                            + "".join(lines))


def verdict(builds, mutant, tests, seeds):
    text = (labs.ROOT / mutant["file"]).read_text()
    builds.set({mutant["file"]: text.replace(mutant["find"], mutant["replace"])})
    target = tests["target"]
    if said := builds.build(target):
        return "does not compile", said
    names = builds.names(target, tests["filter"])
    for seed in seeds:
        failed = [name for name, result in builds.run(target, names, seed=seed).items() if result not in ("passed", "skipped")]
        if failed:
            return "caught", failed[0]
    return "SURVIVES", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="ids of tasks")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--hidden", action="store_true")
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
    lost = misplaced(mutants, labs.ROOT)
    placed = [mutant for mutant in mutants if mutant["task"] in tasks and mutant["name"] not in lost]
    suite = Suite(arguments.hidden)
    found = read_report(suite.report)

    def is_due(mutant):
        task = tasks[mutant["task"]]
        if task["gpu"] != arguments.gpu or suite.key not in task:
            return False
        if arguments.tasks:
            return mutant["task"] in arguments.tasks
        before = found.get((mutant["task"], mutant["name"]), ("", ""))
        return arguments.all or before != ("caught", key(mutant, task[suite.key]))

    alive = 0
    with overlay.Overlay(arguments.build, arguments.processes) as builds:
        number, of = arguments.shard
        for mutant in sorted(filter(is_due, placed), key=lambda mutant: (mutant["file"], mutant["task"]))[number - 1::of]:
            tests = tasks[mutant["task"]][suite.key]
            result, by = verdict(builds, mutant, tests, suite.seeds)
            found[mutant["task"], mutant["name"]] = (result, key(mutant, tests))
            alive += result != "caught"
            print(f"{mutant['task']}  {mutant['name']}: {result} {by}".rstrip(), flush=True)
            write_report(suite, mutants, found)
    write_report(suite, mutants, found)
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main()
