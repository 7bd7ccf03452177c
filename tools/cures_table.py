#!/usr/bin/env python3
"""The cures of what a long prompt does to everybody else, beside each other: the same load on the same GPUs, from the raw results
of `tools/multi_gpu_check.sh disaggregation` in one folder.

    python3 tools/cures_table.py bench/results/h200x2 [--markdown]

Cost is in GPU-seconds per million output tokens: of all of them, which at a load that all can carry is the same for each, and of those
of good answers, whose first token and whose mean gap are within the promise of the load (--goodput). A row without a file says so.
"""
import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ladder_table import as_markdown, as_text  # noqa: E402

CURES = [
    ("prompts whole", "served_whole"),
    ("prompts in chunks", "served_replicas"),
    ("an engine for prompts, one for answers", "served_disaggregated"),
    ("... one after the other", "served_prefill_first"),
    ("... layer by layer", "served_layer_by_layer"),
    ("both within each GPU", "served_lanes"),
]
HEAD = ["two GPUs", "gap, 50 %", "99 %", "longest", "first token, mean", "good answers", "GPU-s per M tokens", "of good answers"]


def row(title, file, gpus):
    if not file.exists():
        return [title] + ["not measured"] + [""] * (len(HEAD) - 2)
    result = json.loads(file.read_text())["results"][0]
    tokens_each = result["output_tokens"] / result["completed"]
    good = result["good_requests_per_second"]
    milliseconds = lambda seconds: f"{seconds * 1e3:.3g} ms"  # noqa: E731
    itl = result["itl"]
    return [
        title, milliseconds(itl["median"]), milliseconds(itl["p99"]), milliseconds(itl["max"]), milliseconds(result["ttft"]["mean"]),
        f"{round(good * result['seconds'])} of {result['completed']}", f"{gpus * result['seconds'] / result['output_tokens'] * 1e6:,.0f}",
        f"{gpus / (good * tokens_each) * 1e6:,.0f}" if good > 0 else "none is good"
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = [row(title, arguments.folder / f"{name}.json", arguments.gpus) for title, name in CURES]
    print((as_markdown if arguments.markdown else as_text)([HEAD, *rows]))


if __name__ == "__main__":
    main()
