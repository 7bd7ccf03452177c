#!/usr/bin/env python3
"""Makes the table of the fastest kernels of one architecture from recorded benchmarks.

    cd bench/results/h200
    ../../../tools/make_kernel_table.py step1_layers.json step2_model.json \
        > ../../../step1_layers/core/kernel_table_sm90.inc

Reads Google Benchmark's JSON: matmul/<model>_<linear>/m:<rows>/cuda:<kernel> (bench_step1) and
layer_products/<model>/m:<rows>/cuda:<kernel> (bench_step2), the latter for the four pieces of a layer that have a fused
kernel: they are chosen together, since a piece in sequence leaves its addition to the next one, which then cannot be
fused. The shapes are those of models/qwen3-<model>/config.json. Per shape and number of rows the fastest kernel wins, but
the winner of the number of rows before stays where nothing is faster by 2 %, which is noise. Numbers of rows that follow
one another with the same winner become one line, the largest of them (kernel_table.h: the next larger number of rows
decides). More than 32 rows are the library's, whose rung serves them without a table.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"^(\w+)/([0-9.]+b)(?:_(\w+))?/m:(\d+)/cuda:(\w+)(?:/|$)")

FEW_ROWS = 32


def shapes(model):
    """[n, k] of every linear of a model."""
    config = json.loads((ROOT / f"models/qwen3-{model}/config.json").read_text())
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    return {
        "qkv": ((heads + 2 * kv_heads) * dim, hidden),
        "o": (hidden, heads * dim),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
        "lm_head": (config["vocab_size"], hidden),
    }


PIECES = {"norm_qkv": "qkv", "o_residual": "o", "norm_gate_up_silu": "gate_up", "down_residual": "down"}


def read(files):
    """{(op, n, k): {rows: {kernel: microseconds}}}"""
    times = {}
    for file in files:
        try:
            benchmarks = json.loads(Path(file).read_text())["benchmarks"]
        except OSError as error:
            sys.exit(f"make_kernel_table: {error}")
        except (ValueError, KeyError, TypeError):
            sys.exit(f"make_kernel_table: {file}: not Google Benchmark's JSON")
        for bench in benchmarks:
            match = NAME.match(bench["name"])
            if not match or "median_us" not in bench:
                continue
            op, model, linear, rows, kernel = match.groups()
            if op not in ("matmul", "layer_products") or int(rows) > FEW_ROWS or kernel == "chosen":
                continue
            for name, part in PIECES.items() if op == "layer_products" else [(op, linear)]:
                n, k = shapes(model)[part]
                times.setdefault((name, n, k), {}).setdefault(int(rows), {})[kernel] = bench["median_us"]
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="RESULTS.json")
    times = read(parser.parse_args().results)
    if not times:
        sys.exit("no benchmark of a matrix product or of a layer's pieces in these files")
    print("// Made by tools/make_kernel_table.py: operator, weight [n, k], rows up to, fastest kernel.")
    for (op, n, k), by_rows in sorted(times.items()):
        winners = []
        for rows, kernels in sorted(by_rows.items()):
            best = min(kernels, key=kernels.get)
            before = winners[-1][1] if winners else best
            keep = kernels.get(before, float("inf")) < 1.02 * kernels[best]
            winners.append((rows, before if keep else best))
        for i, (rows, kernel) in enumerate(winners):
            if i + 1 == len(winners) or winners[i + 1][1] != kernel:
                print(f'{{"{op}", {n}, {k}, {rows}, "{kernel}"}},')


if __name__ == "__main__":
    main()
