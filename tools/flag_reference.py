#!/usr/bin/env python3
"""The tables of flags in cli/README.md, from what the program's --help says.

    tools/flag_reference.py [--binary PATH]            writes them anew
    tools/flag_reference.py --check [--binary PATH]    exits with 1 if they differ
"""
import argparse
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "cli" / "README.md"
BEGIN = "<!-- flags: tools/flag_reference.py -->"
END = "<!-- end -->"
COMMANDS = ["generate", "chat", "score", "eval", "quantize", "tokenize", "info", "serve", "trace", "plan", "demo", "bench throughput", "bench latency",
            "bench progression", "bench graph-replay", "bench serve", "bench canned", "bench serve-overhead",
            "bench balancers"]

# A default may be several words, so what follows is told from it by two spaces, or by its column.
OPTION = re.compile(r"  (?:-\w,)?(--[\w-]+(?:,--[\w-]+)*)(?: ([A-Z][\w.,]*|x[A-Z]\w*)(?::\{[^}]*\})?(?:=(\S+(?: \S+)*?))?)?(?: \.\.\.)?( REQUIRED)?"
                    r"(?: (\(Env:\w+\)))?(?:(?: {2,}|(?<=^.{29}) )(.*))?")


def parse_help(text):
    """{group: {flag: (value, default, description)}} in the order of the help.

    An option is `  --name TYPE:{choices}=default REQUIRED ...   description`; the description may begin on a line of its
    own, which is indented further.
    """
    groups, group, flag = {}, None, None
    for line in text.splitlines():
        if re.fullmatch(r"\S.*:", line):
            group, flag = groups.setdefault(line[:-1], {}), None
        elif group is None or not line.strip() or not line.startswith("  "):
            flag = None
        elif found := OPTION.fullmatch(line):
            flag, value, default, required, environment, description = found.groups(default="")
            if default.isupper():  # OP=NAME: a value of that form, no default
                value, default = f"{value}={default}", ""
            group[flag] = [value, "must be given" if required else default, f"{environment} {description}".strip()]
        elif flag is not None:
            group[flag][2] = (group[flag][2] + " " + line.strip()).strip()
    return {group: flags for group, flags in groups.items() if flags}  # "Positionals" have none


def table(rows):
    lines = ["| flag | default | |", "|---|---|---|"]
    for flag, (value, default, description) in rows.items():
        if not default:
            found = re.search(r" \[([^\]]+)\]$", description)
            if found:
                description, default = description[: found.start()], found.group(1)
        name = f"{flag} {value}".strip()
        lines.append(f"| `{name}` | {default.replace('|', chr(92) + '|')} | {description.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def reference(helps):
    """Markdown: the groups that commands share once, then of each command what is its own or differs."""
    parsed = {command: parse_help(text) for command, text in helps.items()}
    shared, users = {}, {}
    for command, groups in parsed.items():
        for name, flags in groups.items():
            if name != "Options":
                shared.setdefault(name, flags)
                users.setdefault(name, []).append(command)
    parts = []
    for command, groups in parsed.items():
        own = {flag: row for flag, row in groups.get("Options", {}).items() if flag != "--help"}
        for name, flags in groups.items():
            if name != "Options":
                own |= {flag: row for flag, row in flags.items() if shared[name].get(flag) != row}
        parts.append(f"### ladder {command}\n\n{table(own)}")
        also = [name for name in groups if name != "Options"]
        if also:
            parts.append("And those of " + ", ".join(f'"{name}"' for name in also) + ".")
    for name, flags in shared.items():
        parts.append(f"### {name}\n\nOf {', '.join(f'`{user}`' for user in users[name])}.\n\n{table(flags)}")
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "release" / "ladder")
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if the page is not up to date")
    arguments = parser.parse_args()
    helps = {}
    for command in COMMANDS:
        run = subprocess.run([arguments.binary.resolve(), *command.split(), "--help"], cwd=ROOT, capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(f"flag_reference: {command} --help: {run.stderr.strip()}")
        helps[command] = run.stdout
    page = PAGE.read_text()
    if page.count(BEGIN) != 1 or END not in page.split(BEGIN)[1]:
        sys.exit(f"flag_reference: {PAGE} has no {BEGIN} ... {END}")
    before, rest = page.split(BEGIN)
    after = rest.split(END, 1)[1]
    new = f"{before}{BEGIN}\n\n{reference(helps)}\n\n{END}{after}"
    if not arguments.check:
        PAGE.write_text(new)
    elif new != page:
        sys.stdout.writelines(difflib.unified_diff(page.splitlines(True), new.splitlines(True), str(PAGE), "--help"))
        sys.exit("flag_reference: cli/README.md is not what --help says: run tools/flag_reference.py")


if __name__ == "__main__":
    main()
