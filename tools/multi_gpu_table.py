#!/usr/bin/env python3
"""What several GPUs brought, from the raw results of tools/multi_gpu_check.sh in one folder: each against one GPU in the
same run.

    python3 tools/multi_gpu_table.py FOLDER [--markdown]

A row whose files are missing says so.
"""
import argparse
import json
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ladder_table import as_markdown, as_text  # noqa: E402

MISSING = "not measured"


class Folder:
    def __init__(self, path):
        self.path = Path(path)

    def value(self, name, key):
        """Of the runs in a file of `ladder bench` the median; None: there is none."""
        file = self.path / f"{name}.json"
        try:
            return statistics.median(result[key] for result in json.loads(file.read_text())["results"])
        except (OSError, ValueError, KeyError):
            return None

    def names(self, pattern):
        return sorted(file.stem for file in self.path.glob("*.json") if re.fullmatch(pattern, file.stem))

    def text(self, name):
        file = self.path / f"{name}.txt"
        return file.read_text(errors="replace") if file.exists() else ""


def rate(value):
    return f"{value:,.0f} tok/s"


def row(what, must, aim, more, fewer, show, ratio):
    if not more or not fewer:
        return [what, must, aim, MISSING, "", ""]
    return [what, must, aim, show(fewer), show(more), f"{ratio(more, fewer):.2f} x"]


def ranks(grid):
    """tp2_pp2: 2 tensor ranks x 2 stages."""
    kinds = {"tp": "tensor ranks", "pp": "stages", "dp": "replicas", "cp": "GPUs that share its rows", "ep": "ranks of experts",
             "re": "redundant experts, by load"}
    return " x ".join(f"{part[2:]} {kinds[part[:2]]}" for part in grid.split("_"))


def rows(folder):
    def faster(more, fewer):
        return more / fewer

    def shorter(more, fewer):
        return fewer / more

    def us(value):
        return f"{value * 1e6:,.0f} us"

    def ms(value):
        return f"{value * 1e3:,.0f} ms"

    each, first, output = "inter_token_latency_mean", "time_to_first_token_mean", "output_tokens_per_second"
    value = folder.value

    def compared(kind, what, key, show, ratio, bounds, base=None):
        """A row for each grid of a kind of run, beside that kind's run on one GPU."""
        for name in folder.names(rf"{kind}_(tp|pp|dp|cp|ep)\d+(_(pp|dp|ep|re)\d+)*"):
            grid = name.removeprefix(f"{kind}_")
            yield row(f"{what}, {ranks(grid)}", *bounds.get(grid, ("", "")), value(name, key), value(base or f"{kind}_1", key),
                      show, ratio)

    yield from compared("latency", "one request, 8B", each, us, shorter, {"tp2": ("1.55 x", "1.70 x"), "tp4": ("2.4 x", "2.9 x")})
    yield from compared("latency_32b", "one request, 32B", each, us, shorter, {"tp4": ("3.0 x", "3.5 x")})
    yield from compared("prefill", "prompt of 8,192 tokens, 8B", first, ms, shorter,
                        {"tp2": ("1.70 x", "1.85 x"), "tp4": ("2.9 x", "3.4 x")})
    yield from compared("long", "prompt of 65,536 tokens, 8B", first, ms, shorter, {"cp2": ("1.75 x", "1.9 x")})
    yield from compared("longest", "prompt of 131,000 tokens, 8B", first, ms, shorter, {"cp4": ("3.4 x", "3.7 x")})
    yield from compared("common", "common workload, 8B", output, rate, faster, {"tp2": ("1.6 x", "1.75 x")})
    for name in folder.names(r"deep_tp\d+"):
        grid = name.removeprefix("deep_")

        def of_cache(deep, short):  # what reading 130,000 tokens' keys and values adds to a token
            deep, short = value(deep, each), value(short, each)
            return deep - short if deep and short else None

        yield row(f"attention to 130,000 tokens, one request, 8B, {ranks(grid)}",
                  *{"tp2": ("1.7 x", ""), "tp4": ("3.0 x", "3.5 x")}.get(grid, ("", "")), of_cache(name, f"latency_{grid}"),
                  of_cache("deep_1", "latency_1"), us, shorter)
    yield from compared("many", "1,024 requests, 8B, against one GPU", output, rate, faster, {"pp2": ("1.6 x", "1.75 x")})
    for name in folder.names(r"many_pp\d+_naive"):
        yield row("... against one step at a time", "1.6 x", "1.75 x", value(name.removesuffix("_naive"), output),
                  value(name, output), rate, faster)
    yield from compared("data", "512 requests a replica, 0.6B", output, rate, faster,
                        {"dp2": ("1.85 x", "1.93 x"), "dp4": ("3.5 x", "3.7 x")})
    if folder.names("sessions_prefix_aware"):
        yield row("sessions, prefix_aware against round_robin", "1.2 x", "1.4 x", value("sessions_prefix_aware", output),
                  value("sessions_round_robin", output), rate, faster)

        def hits(name):
            prompt_tokens = value(name, "prompt_tokens")
            return value(name, "cached_tokens") / prompt_tokens if prompt_tokens else None

        yield row("... prompt tokens found in the cache", "1.5 x", "1.9 x", hits("sessions_prefix_aware"),
                  hits("sessions_round_robin"), lambda share: f"{100 * share:.1f} %", faster)
    yield from compared("expert", "common workload, 30B-A3B", output, rate, faster, {"ep2": ("1.6 x", "")})


def printed(folder):
    """What the runs said of themselves: communication and bubbles."""
    for name in sorted(file.stem for file in folder.path.glob("*_[tp]p*.txt")):
        for line in folder.text(name).splitlines():
            if line.startswith(("communication's share", "bubbles")):
                yield f"{name}: {' '.join(line.split())}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    folder = Folder(arguments.folder)
    table = [["what", "must", "aim", "with fewer", "with more", "ratio"], *rows(folder)]
    print((as_markdown if arguments.markdown else as_text)(table))
    lines = list(printed(folder))
    print("\n".join(["", *(f"- {line}" for line in lines)] if lines else []))


if __name__ == "__main__":
    main()
