#!/usr/bin/env python3
"""Each task cut out alone: it compiles, its own tests notice, and no other task's test does.

    tools/check_stubs.py               all tasks; writes lab/reports/stubs.txt
    tools/check_stubs.py 5.2 3.3       these tasks; renews their lines of the report
    tools/check_stubs.py --gpu         the tasks whose tests need a GPU, and no others; renews their lines of the report
    tools/check_stubs.py --shard 2/8   the second eighth, for several machines; `cat` puts their reports together
    tools/check_stubs.py --quick       for CI: the syntax of every stub, and three tasks, other ones each day (--day)

For every task its regions become stubs in a copy that the build takes (tools/overlay.py). Then at least one of the
task's tests must fail with "not implemented", and no test of a task that does not need it may fail. Which tests could
fail is found first: all of them run once with regions that note that they were entered; a test that never enters a
task's region cannot see its stub. (On a GPU, where that would take long, it is all tests of the program that use it.)
A test of the task that enters its region and passes all the same is named: mostly the automatic choice, which leaves
an unwritten rung out; else a test that does not look.
"""
import argparse
import concurrent.futures
import datetime
import fnmatch
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import labs
import overlay

REPORT = labs.ROOT / "lab" / "reports" / "stubs.txt"
LAB = labs.ROOT / "build" / "lab" / "lab"
NUM_SAMPLED = 3
GPU_TESTS = "*cuda*:*Gpu*:*DeviceFaults*:*Graphs*"


def written(*arguments):
    """{path: text} of what `lab write-...` makes of the regions."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([LAB, "--root", labs.ROOT, *arguments, folder], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"check_stubs: {done.stderr.strip()}")
        return {path: pathlib.Path(folder, path).read_text() for path in done.stdout.split()}


def matches(name, test_filter):
    """GoogleTest's filters: patterns joined by colons, those after the first - exclude."""
    positive, _, negative = test_filter.partition("-")
    return (any(fnmatch.fnmatchcase(name, pattern) for pattern in positive.split(":"))
            and not any(fnmatch.fnmatchcase(name, pattern) for pattern in negative.split(":") if pattern))


def owners(name, target, tasks):
    """The tasks that a test case proves; one that none names belongs to all tasks of its number, but a rung on a GPU
    that none names is given."""
    of_filter = [task for task in tasks.values()
                 if task["tests"]["target"] == target and matches(name, task["tests"]["filter"])]
    if of_filter or "/cuda" in name or not (number := re.match(r"Task(\d+)_(\d+)_", name)):
        return of_filter
    return [task for task in tasks.values() if task["id"].split(".")[:2] == list(number.groups())]


def may_fail(name, target, task, tasks):
    """Whether a test case is one of the task, of one that needs it, or of no task (the program's own)."""
    return any(owner["id"] == task["id"] or task["id"] in labs.all_needs(tasks, owner["id"])
               for owner in owners(name, target, tasks)) or not owners(name, target, tasks)


def step_of(target):
    """The server's library is the topmost."""
    return int(found[1]) if (found := re.fullmatch(r"test_step(\d+)", target)) else sys.maxsize


def targets_that_enter(chosen, tasks):
    """The test binaries that hold regions of these tasks: those of their step, or of a lower one whose tests they have, and
    of later ones."""
    lowest = min((min(int(name.split(".")[0]), step_of(tasks[name]["tests"]["target"])) for name in chosen), default=0)
    return sorted(target for target in {task["tests"]["target"] for task in tasks.values()} if step_of(target) >= lowest)


def entered(builds, chosen, tasks):
    """{target: {test case: ids of the tasks whose regions it entered}}, of the chosen tasks at least."""
    targets = targets_that_enter(chosen, tasks)
    files = {path for name in chosen for path in tasks[name]["regions"]}
    builds.set({path: text for path, text in written("write-traced").items() if path in files})
    if said := builds.build(*targets):
        sys.exit(f"check_stubs: the traced copies do not compile\n{said}")

    def of_case(target, name):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "ran")
            builds.run(target, [name], trace)
            return target, name, sorted({line.split()[0] for line in trace.read_text().splitlines()} if trace.exists() else ())

    found = {target: {} for target in targets}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in concurrent.futures.as_completed([pool.submit(of_case, target, name) for target in found
                                                     for name in builds.names(target)]):
            target, name, ids = done.result()
            found[target][name] = ids
    builds.set({})
    return found


def check(builds, task, tasks, cases, entering=()):
    """Lines of the report; `cases`: {target: test cases to run}, `entering`: those of the task that enter its regions.
    Second: whether all is well."""
    builds.set(written("write-stub", task["id"]))
    targets = sorted({task["tests"]["target"], *(target for target, names in cases.items() if names)})
    if said := builds.build(*targets):
        return "DOES NOT COMPILE:\n    " + said[-1500:].replace("\n", "\n    "), False
    own, others, broken = {}, 0, []
    for target in targets:
        named = builds.names(target, task["tests"]["filter"]) if target == task["tests"]["target"] else []
        run = builds.run(target, sorted({*named, *cases.get(target, ())}))
        own |= {name: run[name] for name in named if name in run}
        for name, result in run.items():
            if not may_fail(name, target, task, tasks):
                others += 1
                broken += [] if result in ("passed", "skipped") else [f"{name}: {result.splitlines()[-1]}"]
    unwritten = sum("is not implemented" in result for result in own.values())
    passed = sum(result == "passed" for result in own.values())
    skipped = sum(result == "skipped" for result in own.values())
    line = f"{unwritten} of its {len(own)} tests not implemented, {passed} pass, {skipped} skip; {others} others pass"
    if broken:
        line = f"BREAKS {len(broken)} of {others} tests of tasks that do not need it:\n    " + "\n    ".join(broken)
    elif not unwritten:
        line = "NOT NOTICED: " + line
    elif without := [name for name in own if own[name] == "skipped" and "/" not in name]:
        line = f"SKIPS {', '.join(without)}, so it has no milestone: " + line
    line += "".join(f"\n    passes all the same: {name}" for name in own if own[name] == "passed" and name in entering)
    return line, line[0].isdigit()


def syntax_of(builds, task, commands):
    """What the compiler says about a task's stubs, file by file; where there is no CUDA its .cu files are left out."""
    said = []
    for path, text in written("write-stub", task["id"]).items():
        command = commands.get(path)
        if command is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            stub = pathlib.Path(folder, pathlib.Path(path).name)
            stub.write_text(text)
            words = [word for word in shlex.split(command) if not word.endswith("ccache")]
            words = [str(stub) if word == str(labs.ROOT / path) else word for word in words]
            words[words.index("-o") + 1] = os.devnull if not path.endswith(".cu") else str(pathlib.Path(folder, "stub.o"))
            syntax = ["-fsyntax-only", "-w"]
            if path.endswith(".cu"):  # nvcc has no such mode: for one architecture, which takes seconds
                chips = [word for word in words if word.startswith("--generate-code")]
                words, syntax = [word for word in words if word not in chips[1:]], []
            done = subprocess.run(words + syntax, cwd=builds.build_folder, capture_output=True, text=True)
            if done.returncode:
                said.append(f"{path}: {done.stderr[:1500]}")
    return said


def quick(builds, tasks, day):
    all_commands = json.loads((builds.build_folder / "compile_commands.json").read_text())
    commands = {os.path.relpath(entry["file"], labs.ROOT): entry["command"] for entry in all_commands}
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for said in pool.map(lambda task: syntax_of(builds, task, commands), tasks.values()):
            bad += len(said)
            for line in said:
                print(line, file=sys.stderr)
    print(f"check_stubs: the stubs of {len(tasks)} tasks, {bad} with errors", flush=True)
    startable = [task for task in tasks.values() if not task["given"] and not task["gpu"]]
    for i in range(NUM_SAMPLED):
        task = startable[(day.toordinal() * NUM_SAMPLED + i) % len(startable)]
        target = task["tests"]["target"]
        others = [name for name in builds.names(target) if not may_fail(name, target, task, tasks)]
        line, good = check(builds, task, tasks, {target: others})
        bad += not good
        print(f"{task['id']}: {line}", flush=True)
    builds.set({})
    builds.build()
    sys.exit(1 if bad else 0)


def read_report():
    """{task: what its lines say}."""
    lines, name = {}, None
    for line in REPORT.read_text().splitlines() if REPORT.exists() else ():
        if line.startswith("    "):
            lines[name] += "\n" + line
        elif not line.startswith("#"):
            name, _, said = line.partition(": ")
            lines[name] = said
    return lines


def write_report(lines, tasks, made_by):
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(made_by + "".join(f"{name}: {lines[name]}\n" for name in tasks if name in lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="ids of tasks")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--day", type=datetime.date.fromisoformat, default=datetime.date.today(), metavar="YYYY-MM-DD",
                        help="of --quick: the three tasks of another day (default: today)")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--shard", type=labs.shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--processes", type=int, default=1, help="as many run a binary's tests side by side (default: 1)")
    parser.add_argument("--build", default="build/release", help="the build folder (default: build/release)")
    arguments = parser.parse_args()
    tasks = {task["id"]: task for task in labs.load()["tasks"]}
    for name in arguments.tasks:
        if name not in tasks:
            sys.exit(f"check_stubs: no task '{name}'")
    subprocess.run(["cmake", "-G", "Ninja", "-S", labs.ROOT / "lab", "-B", LAB.parent], check=True, capture_output=True)
    subprocess.run(["ninja", "-C", LAB.parent, "--quiet", "lab"], check=True)
    with overlay.Overlay(arguments.build, arguments.processes) as builds:
        if arguments.quick:
            quick(builds, tasks, arguments.day)
        bad, lines = 0, {name: said for name, said in read_report().items()
                         if name in tasks and (arguments.tasks or tasks[name]["gpu"] != arguments.gpu)}
        number, of = arguments.shard
        chosen = [name for name in tasks if tasks[name]["gpu"] == arguments.gpu
                  and (name in arguments.tasks or not arguments.tasks)][number - 1::of]
        made_by = labs.made_by(shlex.join(["tools/check_stubs.py", *["--gpu"] * arguments.gpu, *arguments.tasks]))
        trace = {} if arguments.gpu else entered(builds, chosen, tasks)
        for name in chosen:
            task = tasks[name]
            if task["given"]:
                lines[name] = "given, never cut"
                continue
            own = task["tests"]["target"]
            if arguments.gpu:
                builds.build(own)
                trace = {own: {case: [name] for case in builds.names(own, GPU_TESTS)}}
            cases = {target: [case for case, ids in of.items() if name in ids and not may_fail(case, target, task, tasks)]
                     for target, of in trace.items()}
            entering = () if arguments.gpu else [case for case, ids in trace[own].items() if name in ids]
            lines[name], good = check(builds, task, tasks, cases, entering)
            bad += not good
            print(f"{name}: {lines[name]}", flush=True)
            write_report(lines, tasks, made_by)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
