#!/usr/bin/env python3
"""The tables of context parallelism in step7_parallel/README.md: a row a length, medians in milliseconds.

    tools/context_table.py --from bench/results/cpu/step7_context.json [--ranks N]    7.10: the methods on N ranks
    tools/context_table.py --from bench/results/cpu/step7_context.json --decode       7.11: one sequence that decodes
    tools/context_table.py --from FILE --gpus [--ranks N]                             7.10: the methods over N GPUs
"""
import argparse
import json
import re
import statistics
import sys

METHOD = re.compile(r"ContextAttention/(\w+)/ranks:(\d+)/tokens:(\d+)/")
GPUS = re.compile(r"Gpu" + METHOD.pattern)
DECODE = re.compile(r"BM_DecodeContext/shared:(\d+)/tokens:(\d+)/")


def measured(file, pattern):
    """{groups of the name: {a counter: its median over the repetitions}}"""
    runs = {}
    for row in json.load(open(file))["benchmarks"]:
        found = pattern.match(row["name"])
        if found and row.get("aggregate_name", "median") == "median" and not row.get("error_occurred"):
            runs.setdefault(found.groups(), []).append(row)
    if not runs:
        raise ValueError(f"no run of {pattern.pattern}")
    return {
        key: {name: statistics.median(row[name] for row in rows) for name in rows[0] if isinstance(rows[0][name], (int, float))}
        | {"ms": statistics.median(row["real_time"] for row in rows) / (1000 if rows[0]["time_unit"] == "us" else 1)}
        for key, rows in runs.items()
    }


def table(head, rows):
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---:|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)])


def methods(file, ranks, pattern=METHOD, unit=("KiB", 1)):
    runs = {(key[0], int(key[2])): run for key, run in measured(file, pattern).items() if int(key[1]) == ranks}
    names = list(dict.fromkeys(name for name, _ in runs))
    lengths = sorted({length for _, length in runs})
    rows = []
    for length in lengths:
        of = [runs[name, length] for name in names]
        one = [f"{of[0]['one_gpu_ms']:.3g}"] if pattern is GPUS else []
        rows.append([f"{length:,}", *one, *(f"{run['ms']:.3g} ({run['of_ideal']:.2f})" for run in of),
                     ", ".join(f"{run['sent_KiB'] / unit[1]:,.0f}" for run in of)])
    head = ["tokens", *(["one GPU, ms"] if pattern is GPUS else [])]
    return table([*head, *(f"`{name}`, ms (of ideal)" for name in names), f"a rank sends, {unit[0]}"], rows)


def decoding(file):
    runs = {(int(shared), int(length)): run for (shared, length), run in measured(file, DECODE).items()}
    sizes, lengths = sorted({shared for shared, _ in runs}), sorted({length for _, length in runs})
    names = {1: "each has all keys, ms"}
    return table(["tokens", *(names.get(size, f"{size} share them, ms") for size in sizes), "a rank sends, KiB"],
                 [[f"{length:,}", *(f"{runs[size, length]['ms']:.3g}" for size in sizes),
                   f"{runs[sizes[-1], length]['sent_KiB']:.2g}"] for length in lengths])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="file", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--gpus", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.decode:
            print(decoding(arguments.file))
        elif arguments.gpus:
            print(methods(arguments.file, arguments.ranks, GPUS, ("MiB", 1024)))
        else:
            print(methods(arguments.file, arguments.ranks))
    except (OSError, KeyError, ValueError, IndexError) as error:
        sys.exit(f"context_table: {arguments.file}: {error}")


if __name__ == "__main__":
    main()
