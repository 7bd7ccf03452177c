"""The course as ROADMAP.md draws it: the core path and the optional labs as graphs, and a table of all tasks."""
import re

BLOCK = re.compile(r"<!-- course -->\n.*?<!-- /course -->\n", re.DOTALL)


def node(task_id):
    return "t" + task_id.replace(".", "_")


def graph(labs, tasks):
    """Mermaid: a box per lab, an arrow from what is needed to what needs it; what other labs provide is dashed."""
    inside = [name for lab in labs for name in lab["tasks"]]
    lines = ["```mermaid", "flowchart LR"]
    for lab in labs:
        hours = sum(tasks[name]["hours"] for name in lab["tasks"])
        weeks = f"week {lab['weeks'][0]} to {lab['weeks'][-1]}, " if len(lab["weeks"]) > 1 else \
            f"week {lab['weeks'][0]}, " if lab["weeks"] else ""
        lines.append(f'  subgraph {lab["id"]}["{lab["title"]} ({weeks}{hours} h)"]')
        lines += [f'    {node(name)}["{name}<br>{tasks[name]["hours"]} h{", given" if tasks[name]["given"] else ""}"]'
                  for name in lab["tasks"]]
        lines.append("  end")
    outside = sorted({need for name in inside for need in tasks[name]["needs"]} - set(inside))
    lines += [f'  {node(name)}(["{name}"]):::other' for name in outside]
    lines += [f"  {node(need)} --> {node(name)}" for name in inside for need in tasks[name]["needs"]]
    return lines + ["  classDef other stroke-dasharray: 4", "```"]


def table(labs, tasks):
    lines = ["| task | what you build | hours | needs |", "|---|---|---:|---|"]
    for lab in labs:
        for name in lab["tasks"]:
            task = tasks[name]
            notes = "".join([", given" if task["given"] else "", ", on a GPU" if task["gpu"] else ""])
            lines.append(f"| [{name}]({task['chapter']}) | {task['title']}{notes} | {task['hours']} | {', '.join(task['needs'])} |")
    return lines


def course(labs, tasks):
    core = [lab for lab in labs if lab["weeks"]]
    rest = [lab for lab in labs if not lab["weeks"]]
    hours = [sum(tasks[name]["hours"] for lab in of for name in lab["tasks"]) for of in (core, rest)]
    return "\n".join([
        f"The core path, {hours[0]} hours, in an order in which nothing needs what comes later:", "",
        *graph(core, tasks), "", *table(core, tasks), "",
        f"The optional labs, {hours[1]} hours, in any order that the arrows allow; dashed: tasks of other labs.", "",
        *graph(rest, tasks), "", *table(rest, tasks), ""])


def renewed(page, labs, tasks):
    return BLOCK.sub(lambda _: f"<!-- course -->\n{course(labs, tasks)}<!-- /course -->\n", page)
