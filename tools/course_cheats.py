#!/usr/bin/env python3
"""Known cheats of graders, and answers that are right but slow: each is built into a tree as a hand-in's text would be, and
measured as `lab grade` measures it. Expects that each cheat is caught, and that each slow answer loses points.

    tools/course_cheats.py                 all of tests/hidden/cheats/cheats.json; writes lab/reports/cheats.txt
    tools/course_cheats.py NAME...         these; writes nothing
    tools/course_cheats.py --quick         some of them, for CI; none where there is no sandbox
    tools/course_cheats.py --self 20 [OP...]   the reference raced against itself so often; writes lab/reports/races.txt
    tools/course_cheats.py --gpu [...]     those of kernels and no others, on a GPU, without a sandbox; with --self their
                                           races; writes cheats_gpu.txt or races_gpu.txt

A cheat is a region's text (NAME.txt) or a change of the reference's. It can be caught by
    rules     what may not stand in a region (lab/rules.h)         symbols   what the object calls (library_calls())
    sandbox   what it may not do while it runs                     judge     no points: wrong, or against the rules of the race
    points    what it really takes: no more than an honest answer of that speed
For each the same race is also judged with the defence left out that catches it ("without"): this is what it would have been
worth.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import labs
import overlay

FOLDER = labs.ROOT / "tests" / "hidden" / "cheats"
QUICK = {"cached_results", "changed_flags", "library_call", "forged_answer", "skipped_with_old_results", "budget_left_over",
         "claims_hits_that_are_none"}
PROGRAMS = ("course_counts", "course_race")


def keep(builds, folder, program):
    """A build's program where measured_build() looks for it, readable by the sandbox's user."""
    to = folder / "bench" / program
    to.mkdir(parents=True, exist_ok=True)
    (to / program).unlink(missing_ok=True)
    shutil.copy(builds.build_folder / "bench" / program / program, to / program)


def text_of(cheat, tests):
    """The file with the cheat's region in it, and the region. `tests`: the folder that it may try to write into."""
    file = (labs.ROOT / cheat["file"]).read_text()
    if "find" in cheat:
        if file.count(cheat["find"]) != 1:
            raise SystemExit(f"course_cheats: {cheat['name']} stands not exactly once in {cheat['file']}")
        file = file.replace(cheat["find"], cheat["replace"])
    else:
        marks = re.compile(rf"(// >>> task {re.escape(cheat['task'])}:.*\n)(?:.*\n)*?(?=[ \t]*// <<< task {re.escape(cheat['task'])}\n)")
        region = (FOLDER / f"{cheat['name']}.txt").read_text().replace("@TESTS@", str(tests))
        file = marks.sub(lambda found: found[1] + region, file, count=1)
    return file, "\n".join(labs.regions_of(file)[cheat["task"]]) + "\n"


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", timeout=300, **more)
    return done.returncode, (done.stdout + done.stderr).strip()


def race(pristine, student, op, rung, without=()):
    program = pristine / "bench" / "course_race" / "course_race"
    flags = [word for name in without for word in ("--without", name)]
    code, text = run([program, "judge", op, rung, student / "bench" / "course_race" / "course_race", program, *flags],
                     input=f"{os.urandom(8).hex()}\n")
    if code:
        raise SystemExit(f"course_cheats: {text}")
    return json.loads(text.splitlines()[-1])


def said(result):
    if "error" in result:
        return f"no points: {result['error']}"
    flags = f"; flagged: {'; '.join(result['flags'])}" if result["flags"] else ""
    share = 0 if flags else min(1.0, 1.2 / max(result["low"], 1e-9))
    return f"{100 * share:.0f} % of the points: {result['ratio']:.2f} times the reference's time{flags}"


def report(name, gpu):
    return labs.ROOT / "lab" / "reports" / (name + "_gpu.txt" if gpu else name + ".txt")


def look_at(cheat, builds, lab, pristine, student, gpu):
    """({what: what it says}, {defence left out: what it would have been worth})"""
    found = {}
    tests = pristine / "tests"
    tests.mkdir(exist_ok=True)
    tests.chmod(0o777)
    test = tests / "a_test.cpp"
    test.write_text("as it was\n")
    test.chmod(0o666)
    file, region = text_of(cheat, tests)
    program = "course_race" if cheat["measure"][0] == "race" else "course_counts"
    builds.set({cheat["file"]: file})
    if output := builds.build(program):
        return {"compiler": " ".join(re.findall(r"error: .*", output)[:1])}, {}
    keep(builds, student, program)
    objects = [path for path in builds.build_folder.rglob(f"{pathlib.Path(cheat['file']).name}.o") if ".lab" in path.parts]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write(region)
        text.flush()
        _, lines = run([lab, "--root", labs.ROOT, "check-text", cheat["task"], text.name, *objects])
    for line in lines.splitlines():
        what, _, rest = line.partition(": ")
        found.setdefault(what, rest)
    code, output = run([lab, "--root", labs.ROOT, "measure", cheat["task"], student, pristine, *objects,
                        *["--unconfined"] * gpu])
    if code:
        raise SystemExit(f"course_cheats: {cheat['name']}: {output}")
    got = [(float(points), float(of), rest) for points, of, rest in re.findall(r"^([\d.e-]+) of ([\d.e-]+)  (.*)$", output, re.M)]
    got = [row for row in got if row[2].startswith(("race " + cheat["measure"][1] + "/", cheat["measure"][1] + " "))]
    worst = min(got, key=lambda row: row[0] / row[1])
    lost = worst[0] < 0.99 * worst[1]
    what = "points" if lost and worst[0] > 0 else "judge" if lost else "nothing"
    found[what] = f"{100 * worst[0] / worst[1]:.0f} % of the points: {worst[2]}"
    if "sandbox" in cheat["caught_by"]:
        found["sandbox" if test.read_text() == "as it was\n" else "nothing"] = "the tests' file is as it was"
    without = {}
    for names in cheat["without"]:
        worth = said(race(pristine, student, *cheat["measure"][1:], without=names))
        changed = "" if test.read_text() == "as it was\n" else "; the tests' file is changed"
        without[", ".join(names) or "rules, symbols and sandbox"] = worth + changed
    return found, without


def self_races(times, builds, names, gpu):
    """The reference's program against itself: each race must bring full points."""
    ops = sorted({(op, task["race"]["rung"]) for task in labs.load()["tasks"] if task["gpu"] == gpu
                  for op in task.get("race", {}).get("ops", ()) if not names or op in names})
    lines, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        builds.set({})
        if output := builds.build("course_race"):
            raise SystemExit(output)
        keep(builds, folder, "course_race")
        for op, rung in ops:
            results = [race(folder, folder, op, rung) for _ in range(times)]
            full = sum("error" not in result and not result["flags"] and result["low"] <= 1.2 for result in results)
            ratios = sorted(result["ratio"] for result in results if "ratio" in result)
            lows = sorted(result["low"] for result in results if "low" in result)
            odd = [said(result) for result in results if "error" in result or result["flags"]]
            failed += full < times
            measured = (f"ratio {ratios[0]:.3f} to {ratios[-1]:.3f}, scored (low) at most {lows[-1]:.3f}, "
                        f"{100 * results[-1].get('share', 0):.0f} % of the roofline") if ratios else ""
            lines.append(f"{op}/{rung}  full points in {full} of {times}  {measured}{'  ' + '; '.join(odd) if odd else ''}\n")
            print(lines[-1], end="", flush=True)
    load = os.getloadavg()[1]
    command = ["tools/course_cheats.py", *["--gpu"] * gpu, "--self", str(times), *names]
    report("races", gpu).write_text(
        labs.made_by(" ".join(command))
        + f"# the reference raced against itself; load of the machine meanwhile: {load:.1f} on {os.cpu_count()} cores\n"
        + "".join(lines))
    return failed


def has_sandbox():
    words = ["bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return shutil.which("bwrap") is not None and subprocess.run(words, capture_output=True).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--self", type=int, metavar="N", dest="times")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--build", default="build/release", help="the build folder (default: build/release)")
    arguments = parser.parse_args()
    if arguments.times:
        with overlay.Overlay(arguments.build) as builds:
            sys.exit(1 if self_races(arguments.times, builds, arguments.names, arguments.gpu) else 0)
    if arguments.quick and not has_sandbox():
        print("course_cheats: skipped, bubblewrap is not installed or may make no namespaces here")
        return
    cheats = [cheat for cheat in json.loads((FOLDER / "cheats.json").read_text())
              if cheat.get("gpu", False) == arguments.gpu]
    wanted = QUICK if arguments.quick else set(arguments.names) or {cheat["name"] for cheat in cheats}
    lines, missed = [], []
    with overlay.Overlay(arguments.build) as builds, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        programs = ["course_race"] if arguments.gpu else PROGRAMS
        if output := builds.build("lab", *programs):
            raise SystemExit(output)
        lab = shutil.copy(builds.build_folder / "lab" / "lab", folder / "lab")
        for program in programs:
            keep(builds, folder / "pristine", program)
        for cheat in cheats:
            if cheat["name"] not in wanted:
                continue
            found, without = look_at(cheat, builds, lab, folder / "pristine", folder / "student",
                                     arguments.gpu)
            by = [what for what in cheat["caught_by"] if what in found]
            if by != cheat["caught_by"]:
                missed.append(cheat["name"])
            text = f"{'caught' if by == cheat['caught_by'] else 'MISSED'}  {cheat['kind']}: {cheat['name']} (task {cheat['task']})\n"
            text += "".join(f"    {what:8} {rest}\n" for what, rest in found.items())
            text += "".join(f"    without {name}: {worth}\n" for name, worth in without.items())
            text += f"    {cheat['note']}\n" if cheat["note"] else ""
            lines.append(text)
            print(text, end="", flush=True)
    if not arguments.names and not arguments.quick:
        made_by = labs.made_by("tools/course_cheats.py" + " --gpu" * arguments.gpu)
        report("cheats", arguments.gpu).write_text(made_by + f"# {len(lines) - len(missed)} of {len(lines)} caught as expected\n"
                          + "".join(lines))
    for name in missed:
        print(f"course_cheats: {name} was not caught as expected", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
