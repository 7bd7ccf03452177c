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
    for name in folder.names(r"latency_tp\d+"):
        n = name.removeprefix("latency_tp")
        yield row(f"one request, 8B, {n} tensor ranks", *(("1.55 x", "1.70 x") if n == "2" else ("", "")),
                  value(name, each), value("latency_1", each), us, shorter)
        yield row(f"prompt of 8,192 tokens, 8B, {n} tensor ranks", *(("1.70 x", "1.85 x") if n == "2" else ("", "")),
                  value(f"prefill_tp{n}", first), value("prefill_1", first), ms, shorter)
        yield row(f"common workload, 8B, {n} tensor ranks", *(("1.6 x", "1.75 x") if n == "2" else ("", "")),
                  value(f"common_tp{n}", output), value("common_1", output), rate, faster)
    for name in folder.names(r"deep_tp\d+"):
        n = name.removeprefix("deep_tp")

        def of_cache(deep, short):  # what reading 130,000 tokens' keys and values adds to a token
            deep, short = value(deep, each), value(short, each)
            return deep - short if deep and short else None

        yield row(f"attention to 130,000 tokens, one request, 8B, {n} tensor ranks",
                  *(("1.7 x", "") if n == "2" else ("", "")), of_cache(name, f"latency_tp{n}"), of_cache("deep_1", "latency_1"),
                  us, shorter)
    for name in folder.names(r"many_pp\d+"):
        n = name.removeprefix("many_pp")
        bounds = ("1.6 x", "1.75 x") if n == "2" else ("", "")
        yield row(f"1,024 requests, 8B, {n} stages, against one GPU", *bounds, value(name, output), value("many_1", output),
                  rate, faster)
        yield row("... against one step at a time", *bounds, value(name, output), value(f"{name}_naive", output), rate, faster)
    for name in folder.names(r"common_tp\d+_pp\d+"):
        yield row(f"common workload, 8B, {name.removeprefix('common_')}", "", "", value(name, output),
                  value("common_1", output), rate, faster)
    for name in folder.names(r"data_dp\d+"):
        n = name.removeprefix("data_dp")
        yield row(f"1,024 requests, 0.6B, {n} replicas", *(("1.85 x", "1.93 x") if n == "2" else ("", "")),
                  value(name, output), value("data_1", output), rate, faster)
    yield row("sessions, prefix_aware against round_robin", "1.2 x", "1.4 x", value("sessions_prefix_aware", output),
              value("sessions_round_robin", output), rate, faster)

    def hits(name):
        prompt_tokens = value(name, "prompt_tokens")
        return value(name, "cached_tokens") / prompt_tokens if prompt_tokens else None

    yield row("... prompt tokens found in the cache", "1.5 x", "1.9 x", hits("sessions_prefix_aware"),
              hits("sessions_round_robin"), lambda share: f"{100 * share:.1f} %", faster)
    for name in folder.names(r"expert_ep\d+"):
        n = name.removeprefix("expert_ep")
        yield row(f"common workload, 30B-A3B, experts on {n} ranks", *(("1.6 x", "") if n == "2" else ("", "")),
                  value(name, output), value("expert_1", output), rate, faster)
    for name in folder.names(r"long_cp\d+"):
        n = name.removeprefix("long_cp")
        yield row(f"prompt of 65,536 tokens, 8B, rows shared by {n} GPUs", *(("1.75 x", "1.9 x") if n == "2" else ("", "")),
                  value(name, first), value("long_1", first), ms, shorter)


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
