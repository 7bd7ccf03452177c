#!/usr/bin/env python3
"""The box of every task in its chapter: what it asks for, from lab/labs.json and the source.

    tools/task_boxes.py            writes each block between `<!-- box 5.2 -->` and `<!-- /box -->` anew
    tools/task_boxes.py --check    writes nothing, and says what is missing or no longer true

It draws the course in ROADMAP.md (course_graph.py), between `<!-- course -->` and `<!-- /course -->`. Beside them it writes lab/regions.txt, which says by its SHA-256 what the reference text of every region is,
and what stands outside the regions of a file.

A box stands below `<a id="task-5-2"></a>` on the page that labs.json names; three common mistakes follow it, a list
written by hand.
"""
import argparse
import hashlib
import re
import sys

import course_graph
import labs

BOX = re.compile(r"<!-- box (\S+) -->\n.*?<!-- /box -->\n", re.DOTALL)
TOKENS = re.compile(r"""
    //[^\n]* | /\*.*?\*/ | R"([^(\s]*)\(.*?\)\1" | "(?:\\.|[^"\\\n])*" | (?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+' |
    ^[ \t]*\#(?:\\\n|[^\n])* | (?P<token>[A-Za-z_~][\w~:]*|[{}();=<>]|\S)""", re.DOTALL | re.MULTILINE | re.VERBOSE)
NOT_NAMES = {"if", "for", "while", "switch", "return", "alignas", "decltype", "noexcept", "sizeof", "__launch_bounds__",
             "__attribute__", "requires"}


def functions(region):
    """Names of the functions that a region defines, in their order."""
    names, head, inside = [], [], 0
    for found in TOKENS.finditer("\n".join(region)):
        token = found["token"]
        if token is None:
            continue
        if inside:  # the body of a function or an initializer
            inside += {"{": 1, "}": -1}.get(token, 0)
            head = [] if not inside else head
        elif token == "{":
            called = [name for name, after in zip(head, head[1:]) if after == "(" and re.match(r"[A-Za-z_~]", name)
                      and name not in NOT_NAMES]
            scope = {"namespace", "struct", "class", "union"} & set(head[:2])
            if called and "=" not in head[:head.index("(")]:
                names.append(called[0] + ("()" if called[0].endswith("operator") else ""))
            inside = 0 if scope and not called else 1
            head = []
        else:
            head = [] if token in (";", "}") else head + [token]
    return list(dict.fromkeys(names))


def listed(items):
    items = list(items)
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def box(task, tasks, root=labs.ROOT):
    kind = "given" if task["given"] else "core path" if task["core"] else "optional"
    rows, lines = [], 0
    for path in task["regions"]:
        region = labs.regions_of((root / path).read_text())[task["id"]]
        lines += labs.num_lines(region)
        rows.append(f"| `{path}` | {', '.join(f'`{name}`' for name in functions(region))} | {labs.num_lines(region)} |")
    needs = listed(f"{need} ({tasks[need]['title']})" for need in task["needs"]) or "nothing else of the course"
    emulated = task.get("lane") == "emulator"
    gpu = ", on a machine with a GPU" + (" or on the emulator" if emulated else "") if task["gpu"] else ""
    hours = f"{task['hours']} hour" + ("s" if task["hours"] != 1 else "")
    return "\n".join([
        f"**Task {task['id']}: {task['title']}.** {kind.capitalize()}, {hours}, {lines} lines{gpu}."
        + ("" if task["given"] else f" `./ladder lab start {task['id']}`"),
        "",
        "| file | functions | lines |",
        "|---|---|---:|",
        *rows,
        "",
        f"Needs {needs}. Tests: `./ladder lab test {task['id']}`, which are `{task['tests']['filter']}` of "
        f"`{task['tests']['target']}`."
        + (f" Without a GPU: `./ladder lab test {task['id']} --lane emulator`." if emulated else ""),
    ])


def renewed(page, tasks, root=labs.ROOT):
    def write(found):
        task = tasks.get(found[1])
        return found[0] if task is None else f"<!-- box {found[1]} -->\n{box(task, tasks, root)}\n<!-- /box -->\n"

    return BOX.sub(write, page)


def mistakes_after(page, task_id):
    """How many items the list below a box has."""
    below = page.partition(f"<!-- box {task_id} -->\n")[2].partition("<!-- /box -->\n")[2]
    count = 0
    for line in below.lstrip("\n").split("\n"):
        if line.startswith(("<a id=", "<!--", "#")) or (line.strip() == "" and count):
            break
        count += line.startswith("- ")
    return count


def region_hashes(course, root=labs.ROOT):
    """The lines of lab/regions.txt; a region that is missing, which `problems` says, has none."""
    lines, files = [], {}
    for task in course["tasks"]:
        for path in task["regions"]:
            try:
                text = (root / path).read_text()
                region = labs.regions_of(text)[task["id"]]
            except (OSError, ValueError, KeyError):
                continue
            files[path] = hashlib.sha256(labs.outside_of(text).encode()).hexdigest()
            digest = hashlib.sha256("".join(line + "\n" for line in region).encode()).hexdigest()
            lines.append(f"{task['id']} {path} {digest}\n")
    return "".join(lines) + "".join(f"outside {path} {digest}\n" for path, digest in sorted(files.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    course = labs.load()
    wrong = labs.problems(course)
    tasks = {task["id"]: task for task in course["tasks"]}
    pages = sorted({labs.ROOT / task["chapter"].partition("#")[0] for task in course["tasks"]})
    unfit = [task for task in course["tasks"] if any(re.search(rf"task {re.escape(task['id'])}(?!\.?\w)", line) for line in wrong)]
    writable = {name: task for name, task in tasks.items() if task not in unfit}
    for path in pages:
        page = path.read_text()
        new = renewed(page, writable)
        here = [task for task in course["tasks"] if labs.ROOT / task["chapter"].partition("#")[0] == path]
        for task in here:
            name, boxed = task["id"], f"<!-- box {task['id']} -->\n"
            if page.count(f'<a id="{labs.anchor(name)}"></a>') != 1 or page.count(boxed) != 1:
                wrong.append(f"{path.relative_to(labs.ROOT)}: expected one anchor {labs.anchor(name)} and one box {name}")
            elif not task["given"] and mistakes_after(page, name) < 3:
                wrong.append(f"{path.relative_to(labs.ROOT)}: expected three common mistakes below the box of {name}")
        wrong += [f"{path.relative_to(labs.ROOT)}: a box of {name}, which is no task" for name in BOX.findall(page)
                  if name not in tasks]
        if new != page and arguments.check:
            wrong.append(f"{path.relative_to(labs.ROOT)}: boxes that are no longer true; tools/task_boxes.py writes them")
        elif new != page:
            path.write_text(new)
    path = labs.ROOT / "ROADMAP.md"
    page = path.read_text()
    if not course_graph.BLOCK.search(page):
        wrong.append("ROADMAP.md: expected a block between `<!-- course -->` and `<!-- /course -->`")
    elif (new := course_graph.renewed(page, course["labs"], tasks)) != page:
        if arguments.check:
            wrong.append("ROADMAP.md: its graph of the course is no longer true; tools/task_boxes.py draws it")
        else:
            path.write_text(new)
    hashes, written = labs.ROOT / "lab" / "regions.txt", region_hashes(course)
    if arguments.check and (not hashes.is_file() or hashes.read_text() != written):
        wrong.append("lab/regions.txt: not the regions as they are; tools/task_boxes.py writes it")
    elif not arguments.check:
        hashes.write_text(written)
    for line in wrong:
        print(f"task_boxes: {line}", file=sys.stderr)
    sys.exit(1 if wrong and arguments.check else 0)


if __name__ == "__main__":
    main()
