#!/usr/bin/env python3
"""Which kernels of two builds differ in their machine code? The others need no measurement.

    tools/compare_code.py OLD/ladder NEW/ladder

Both built for the same architectures, by the same compiler. Wants cuobjdump, of the CUDA Toolkit, and c++filt. Kernels
are compared by their instructions alone: one that was only renamed is the same.
"""
import re
import subprocess
import sys

FUNCTION = re.compile(r"\s*Function : (\S+)")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*/\* 0x[0-9a-f]+ \*/")


def kernels(binary):
    """{mangled name: its instructions}."""
    done = subprocess.run(["cuobjdump", "-sass", binary], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"compare_code: {binary}: {done.stderr.strip()}")
    found, body = {}, None
    for line in done.stdout.splitlines():
        if name := FUNCTION.match(line):
            body = found.setdefault(name[1], [])
        elif body is not None and (instruction := INSTRUCTION.match(line)):
            body.append(instruction[1])
    return {name: "\n".join(body) for name, body in found.items()}


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    old, new = map(kernels, sys.argv[1:])
    known = set(old.values())
    changed = [name for name, body in new.items() if body not in known]
    print(f"{len(new) - len(changed)} of {len(new)} kernels have the machine code that they had; with other code, or new:")
    names = subprocess.run(["c++filt"], input="\n".join(changed), capture_output=True, text=True, check=True).stdout
    print("".join(sorted(f"  {name}\n" for name in names.splitlines())), end="")


if __name__ == "__main__":
    main()
