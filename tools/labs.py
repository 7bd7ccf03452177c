"""What lab/labs.json says, and the regions of the source: read by task_boxes.py, mutants.py and check_stubs.py.

A region stands between `// >>> task ID: one line` and `// <<< task ID`. lab/README.md says how to write one.
"""
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
ID = re.compile(r"[1-9]\.[1-9][0-9]?(\.[a-z][a-z0-9]*){0,2}")
MARKER = re.compile(r"^[ \t]*// (>>>|<<<) task (\S*?)(?::.*)?$", re.MULTILINE)
TASK_KEYS = {"id": str, "title": str, "chapter": str, "hours": int, "points": int, "core": bool, "given": bool,
             "needs": list, "regions": list, "tests": dict, "gpu": bool, "rungs": list}
# What grading adds (lab/WRITING.md); a task may have them, behind the others.
OPTIONAL_KEYS = {"allows": list, "hidden": dict, "race": dict, "counts": list, "lane": str, "sanitized": dict}
ALLOWS = {"asm", "builtins", "casts", "extern", "files", "threads"}


def load(root=ROOT):
    return json.loads((root / "lab" / "labs.json").read_text())


def made_by(command):
    """The first line of a report: what made it, from which commit, where."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!lab/reports")
    commit = git("rev-parse", "--short", "HEAD") + (" and changes" if changed else "")
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"# {command}; commit {commit}; {os.cpu_count()} cores of {model[1] if model else 'an unknown CPU'}\n"


def shard(text):
    """"2/8" as (2, 8)."""
    number, of = map(int, text.split("/"))
    if not 1 <= number <= of:
        raise ValueError
    return number, of


def anchor(task_id):
    return "task-" + task_id.replace(".", "-")


def all_needs(tasks, task_id):
    """Everything that a task needs, directly or through what it needs."""
    found, left = [], list(tasks[task_id]["needs"])
    while left:
        if (need := left.pop()) not in found:
            found.append(need)
            left += tasks[need]["needs"]
    return found


def outside_of(text):
    """What stands outside the regions, and their markers."""
    return re.sub(r"(^[ \t]*// >>> task .*\n)(?:.*\n)*?(?=[ \t]*// <<< task )", r"\1", text, flags=re.MULTILINE)


def regions_of(text):
    """{id: lines between its markers}; raises ValueError where the markers do not match."""
    regions, open_id, start = {}, None, 0
    for found in MARKER.finditer(text):
        kind, task_id = found.groups()
        if kind == ">>>" and open_id is None and task_id not in regions:
            open_id, start = task_id, found.end() + 1
        elif kind == "<<<" and open_id == task_id:
            regions[task_id] = text[start:found.start()].rstrip(" \t").split("\n")[:-1]
            open_id = None
        else:
            raise ValueError(f"`{found[0].strip()}` stands where it cannot: regions are closed, do not nest, and come once")
    if open_id is not None:
        raise ValueError(f"the region of task {open_id} is not closed")
    return regions


def num_lines(region):
    return sum(1 for line in region if line.strip())


def source_files(root=ROOT):
    return sorted(path for step in root.glob("step*_*") for path in step.rglob("*")
                  if path.suffix in (".h", ".cpp", ".cu", ".cuh"))


def problems(labs, root=ROOT):
    """What is wrong with labs.json or does not fit the source, a line each."""
    wrong, tasks = [], {}
    for task in labs["tasks"]:
        name = task.get("id", "?")
        if not ID.fullmatch(name):
            wrong.append(f"'{name}' is no task id: expected 5.2, 1.7.simd or 1.7.store.cuda")
        if name in tasks:
            wrong.append(f"task {name} stands twice")
        if list(task)[:len(TASK_KEYS)] != list(TASK_KEYS) or set(task) - set(TASK_KEYS) - set(OPTIONAL_KEYS):
            wrong.append(f"task {name}: expected the keys {', '.join(TASK_KEYS)}, in this order, then perhaps {', '.join(OPTIONAL_KEYS)}")
            continue
        if unknown := set(task.get("allows", ())) - ALLOWS:
            wrong.append(f"task {name} allows {', '.join(sorted(unknown))}: expected {', '.join(sorted(ALLOWS))}")
        if "hidden" in task and set(task["hidden"]) != {"target", "filter"}:
            wrong.append(f"task {name}: hidden is {{target, filter}}")
        if "race" in task and (set(task["race"]) != {"ops", "rung"} or not re.fullmatch("loop|simd|cuda_[a-z_]+", task["race"]["rung"])):
            wrong.append(f"task {name}: race is {{ops, rung}}, the rung loop, simd, or cuda_ and its name")
        on_gpu_only = task["gpu"] and "lane" not in task
        if on_gpu_only != ("sanitized" in task) or set(task.get("sanitized", ())) - {"memcheck", "racecheck"}:
            wrong.append(f"task {name}: sanitized is {{memcheck, racecheck}}, of tasks that only a GPU runs")
        for key, kind in (TASK_KEYS | OPTIONAL_KEYS).items():
            if key in task and type(task[key]) is not kind:
                wrong.append(f"task {name}: {key} is not of type {kind.__name__}")
        if set(task["tests"]) != {"target", "filter"} or not task["tests"]["filter"]:
            wrong.append(f"task {name}: tests is {{target, filter}}")
        if any(set(rung) != {"op", "names"} for rung in task["rungs"]):
            wrong.append(f"task {name}: each of rungs is {{op, names}}")
        if task["chapter"].partition("#")[2] != anchor(name):
            wrong.append(f"task {name}: its chapter's anchor is #{anchor(name)}")
        tasks[name] = task
    for name, task in tasks.items():
        for need in task["needs"]:
            if need not in tasks:
                wrong.append(f"task {name} needs {need}, which is no task")
    if wrong:
        return wrong
    for name, task in tasks.items():
        if name in all_needs(tasks, name):
            wrong.append(f"task {name} needs itself")
        for need in task["needs"]:
            through = [other for other in task["needs"] if other != need and need in all_needs(tasks, other)]
            if through:
                wrong.append(f"task {name}: {need} is among what {through[0]} needs, so it is left out")

    in_labs = [name for lab in labs["labs"] for name in lab["tasks"]]
    wrong += [f"task {name} is in {in_labs.count(name)} labs, expected one" for name in tasks if in_labs.count(name) != 1]
    wrong += [f"lab {lab['id']}: {name} is no task" for lab in labs["labs"] for name in lab["tasks"] if name not in tasks]
    path = [name for lab in labs["labs"] if lab["weeks"] for name in lab["tasks"]]
    if set(path) != {name for name, task in tasks.items() if task["core"]}:
        wrong.append("the labs with weeks hold the tasks of the core path, and no others")
    for place, name in enumerate(path):
        wrong += [f"task {name} needs {need}, which comes later on the core path" for need in tasks[name]["needs"]
                  if need in path[place:]]
    core = sum(task["hours"] for task in tasks.values() if task["core"])
    if core > 90:
        wrong.append(f"the core path takes {core} hours, expected at most 90")

    for name, task in tasks.items():
        if not task["given"] and not 2 <= task["hours"] <= 8:
            wrong.append(f"task {name} takes {task['hours']} hours, expected 2 to 8")
        if not task["regions"]:
            wrong.append(f"task {name} has no region")
    stated = {(path, name) for name, task in tasks.items() for path in task["regions"]}
    found, lines = set(), dict.fromkeys(tasks, 0)
    for path in source_files(root):
        file = str(path.relative_to(root))
        try:
            for name, region in regions_of(path.read_text()).items():
                found.add((file, name))
                lines[name] = lines.get(name, 0) + num_lines(region)
        except ValueError as error:
            wrong.append(f"{file}: {error}")
    wrong += [f"{path}: labs.json has a region of task {name} there, the file has not" for path, name in sorted(stated - found)]
    wrong += [f"{path}: a region of task {name}, which labs.json does not name there" for path, name in sorted(found - stated)]
    wrong += [f"task {name} has {lines[name]} lines, expected 30 to 120" for name, task in tasks.items()
              if not task["given"] and not 30 <= lines[name] <= 120]
    return wrong
