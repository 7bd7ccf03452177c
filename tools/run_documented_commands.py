#!/usr/bin/env python3
"""Runs the commands that the *.md files show, so that none of them rots.

    tools/run_documented_commands.py                  the quick ones
    tools/run_documented_commands.py --kind slow      those that tools/documented_commands.txt lists as slow; or gpu
    tools/run_documented_commands.py --list           every command, and its kind

A command is a line of an indented or fenced block that begins (after NAME=value, or `$ `) with ./ladder, tools/,
build/, python3, cmake, echo or printf. It is run from the top folder, as it stands, and must end with exit code 0.
tools/documented_commands.txt says which are not quick, and why; an entry there that fits no command is an error too.
"""
import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
KINDS = ("quick", "slow", "gpu", "elsewhere")
COMMAND = re.compile(r"(?:\$ )?((?:[A-Z_]+=\S* )*(?:\./ladder|tools/|build/|python3 |cmake |echo |printf ).*)")


@dataclasses.dataclass
class Command:
    where: str  # "README.md:12"
    text: str
    kind: str = "quick"
    reason: str = ""


def commands_of(name, text):
    """The commands in a page, lines that end with a backslash joined."""
    found, fenced, lines = [], False, text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            continue
        match = COMMAND.fullmatch(line.strip())
        if not match:
            continue
        where, command = f"{name}:{number}", match.group(1)
        while command.endswith("\\") and number < len(lines):
            command = command[:-1].rstrip() + " " + lines[number].strip()
            number += 1
        found.append(Command(where, re.sub(r"\s+# .*", "", command)))
    return found


def read_list(text):
    """Lines `KIND: BEGINNING OF A COMMAND   # REASON`, and `NAME = VALUE` for what stands in a command for something."""
    entries, names = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if match := re.fullmatch(r"([A-Z]+) = (\S+)", line.strip()):
            names[match.group(1)] = match.group(2)
        elif (match := re.fullmatch(r"(\w+): (.+?)\s+# (.+)", line)) and match.group(1) in KINDS[1:]:
            entries.append(match.groups())
        else:
            sys.exit(f"documented_commands.txt:{number}: expected KIND: COMMAND  # REASON with a kind of {KINDS[1:]}, "
                     f"or NAME = VALUE; found {line!r}")
    return entries, names


def classify(commands, entries):
    """Gives each command the kind of the longest entry that it begins with. Returns the entries that fit none."""
    unused = {beginning for _, beginning, _ in entries}
    for command in commands:
        fitting = [entry for entry in entries if command.text.startswith(entry[1])]
        if fitting:
            command.kind, beginning, command.reason = max(fitting, key=lambda entry: len(entry[1]))
            unused.discard(beginning)
    return sorted(unused)


def run(command, names, limit):
    """None, or what is wrong."""
    text = command.text
    for name, value in names.items():
        text = re.sub(rf"\b{name}\b", value, text)
    try:
        result = subprocess.run(["bash", "-c", text], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"still running after {limit} s"
    if result.returncode == 0:
        return None
    end = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()[-3:]
    return f"exit code {result.returncode}: " + " / ".join(end)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("quick", "slow", "gpu"), default="quick")
    parser.add_argument("--list", action="store_true", help="print every command with its kind, run none")
    parser.add_argument("--limit", type=int, help="seconds that one command may take [60, slow ones 1200]")
    arguments = parser.parse_args()
    limit = arguments.limit or (60 if arguments.kind == "quick" else 1200)

    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    commands = [command for page in pages for command in commands_of(page, (ROOT / page).read_text())]
    entries, names = read_list((ROOT / "tools" / "documented_commands.txt").read_text())
    failed = 0
    for beginning in classify(commands, entries):
        print(f"FAILED  documented_commands.txt: no page shows a command that begins with: {beginning}")
        failed += 1
    done, start = {}, time.time()
    for command in commands:
        if arguments.list:
            print(f"{command.kind:10}{command.where:32}{command.text}" + (f"    # {command.reason}" if command.reason else ""))
            continue
        if command.kind != arguments.kind or command.text in done:
            continue
        began = time.time()
        fault = done[command.text] = run(command, names, limit)
        print(f"{'FAILED' if fault else 'ok':8}{time.time() - began:6.1f} s  {command.where:28} {command.text}", flush=True)
        if fault:
            print(f"        {fault}")
            failed += 1
    if not arguments.list:
        print(f"documented commands: {len(done)} {arguments.kind} ones run in {time.time() - start:.0f} s, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
