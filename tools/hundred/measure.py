#!/usr/bin/env python3
"""The rows of tools/quantization_table.py once more, on the model of 100 million parameters.

    python3 tools/hundred/measure.py --model /tmp/hundred --text /tmp/text --out FILE.json [--jobs 12 --threads 4]
    python3 tools/hundred/measure.py --from FILE.json              prints the table, tinyworld's divergences beside it
    python3 tools/hundred/measure.py --from FILE.json --orders     prints which orders of methods hold in both models

Recipes, outlier channels and formats of the cache are those of tinyworld's table. Calibration are the pieces of calibration.jsonl, the judges
those of heldout.jsonl, in f32. Rows run side by side; FILE.json is written after each, and rows that it has already are not measured
again. It has the divergence from the dense model of each held-out piece, since two rows are compared piece by piece: their ratio
is sharper than their own intervals are.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import re
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import quantization_table as tiny  # noqa: E402

TINY = ROOT / "bench/results/cpu/quantization_table.json"
# What is said, the row that should be nearer to the dense model, and the other one.
ORDERS = [
    ("a scale for 128 weights, not for a row", "RTN W4 g128", "RTN W4 channel"),
    ("... for 32, not for 128", "RTN W4 g32", "RTN W4 g128"),
    ("a zero point", "RTN W4 g128 asym", "RTN W4 g128"),
    ("NVFP4, not MXFP4", "RTN NVFP4A16", "RTN MXFP4A16"),
    ("GPTQ in order, not RTN: W4 channel", "GPTQ W4 channel", "RTN W4 channel"),
    ("... W4 g128", "GPTQ W4 g128", "RTN W4 g128"),
    ("... W3 g128", "GPTQ W3 g128", "RTN W3 g128"),
    ("GPTQ in order, not without: W4 channel", "GPTQ W4 channel", "GPTQ W4 channel, no order"),
    ("... W4 g128", "GPTQ W4 g128", "GPTQ W4 g128, no order"),
    ("GPTQ without order, not RTN: W4 channel", "GPTQ W4 channel, no order", "RTN W4 channel"),
    ("... W4 g128", "GPTQ W4 g128, no order", "RTN W4 g128"),
    ("AWQ, not RTN: W4 channel", "AWQ W4 channel", "RTN W4 channel"),
    ("... W4 g128", "AWQ W4 g128", "RTN W4 g128"),
    ("... W4 g128 asym", "AWQ W4 g128 asym", "RTN W4 g128 asym"),
    ("... W3 g128", "AWQ W3 g128", "RTN W3 g128"),
    ("AWQ, not RTN, with outlier channels", "outliers: AWQ W4 g128 asym", "outliers: RTN W4 g128 asym"),
    ("GPTQ, not RTN, with outlier channels", "outliers: GPTQ W4 g128 asym", "outliers: RTN W4 g128 asym"),
    ("inputs: integers, not FP8, by token", "RTN W8A8", "RTN FP8_DYNAMIC"),
    ("... FP8, not integers, with one scale", "RTN FP8 (static)", "RTN W8A8 (static)"),
    ("... by token, not with one scale", "RTN W8A8", "RTN W8A8 (static)"),
    ("SmoothQuant, not RTN, with one scale", "SmoothQuant W8A8 (static)", "RTN W8A8 (static)"),
    ("SmoothQuant, not RTN, with one scale and outlier channels", "outliers: SmoothQuant W8A8 (static)", "outliers: RTN W8A8 (static)"),
    ("2:4: Wanda, not magnitude", "2:4 Wanda", "2:4 magnitude"),
    ("... SparseGPT, not Wanda", "2:4 SparseGPT", "2:4 Wanda"),
    ("... W4 jointly, not RTN afterwards", "2:4 SparseGPT and W4 g128 jointly", "2:4 SparseGPT, then RTN W4 g128"),
    ("... W4 jointly, not GPTQ afterwards", "2:4 SparseGPT and W4 g128 jointly", "2:4 SparseGPT, then GPTQ W4 g128"),
    ("... jointly in order, not without", "2:4 SparseGPT and W4 g128 jointly", "2:4 SparseGPT and W4 g128 jointly, no order"),
    ("cache: int8, not fp8", "cache int8", "cache fp8"),
    ("... fp8, not int4", "cache fp8", "cache int4"),
]


def rows():
    return [row for row in tiny.rows() if row[0] != tiny.DENSE and not row[0].endswith(tiny.ALL_TEXTS)]


def in_turn(row):
    """Short ones first, then what matters most: if there is no time for all, less is lost."""
    name, _, stages, _ = row
    return stages is not None and tiny.is_calibrated(stages), not name.startswith(("2:4", "outliers"))


def samples_of(stages, args):
    # AWQ multiplies all its inputs by each of twenty candidates, and needs few of them.
    return args.awq_samples if any(stage["method"] == "awq" for stage in stages) else args.samples


def measured(args, name, outliers, stages, cache):
    options = ["--threads", args.threads, "--device", args.device]
    row = {"name": name, "device": args.device} | ({"outliers": outliers} if outliers else {})
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if stages is not None:
            limits = ["--max-seq-len", 1024] if tiny.is_calibrated(stages) else []
            samples = samples_of(stages, args)
            model, report, seconds = tiny.quantized(args.ladder, model, pathlib.Path(folder), args.text / "calibration.jsonl",
                                                    outliers, stages, options + limits, samples)
            row |= {"stages": stages, "seconds": round(seconds, 2), "bytes": report["bytes_after"]}
            row |= {"samples": samples} if tiny.is_calibrated(stages) else {}
        start = time.monotonic()
        lines = tiny.run([args.ladder, "eval", "--model", model, "--base", args.model, "--data", args.text / "heldout.jsonl",
                          "--max-documents", args.pieces, "--format", "jsonl", "--dtype", "f32", "--kv-cache-dtype", cache, *options]).splitlines()
    *clusters, last = map(json.loads, lines)
    row["eval_seconds"] = round(time.monotonic() - start, 2)
    row["eval"] = {key: value for key, value in last["summary"].items() if key not in ("model", "base", "data")}
    return row | {"kl_of_pieces": [float(f"{cluster['kl']:.6g}") for cluster in clusters]}


def measure(args):
    head = {"command": f"tools/hundred/measure.py --out {args.out}", "commit": tiny.run(["git", "rev-parse", "--short", "HEAD"]).strip(),
            "training": (args.model / "training_log.txt").read_text().splitlines(), "samples": args.samples, "threads": args.threads}
    names, results = [name for name, *_ in rows()], {}
    if args.out.exists():
        results = {row["name"]: row for row in json.loads(args.out.read_text())["results"]}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        wanted = [row for row in sorted(rows(), key=in_turn) if re.search(args.only, row[0]) and row[0] not in results]
        for future in concurrent.futures.as_completed([pool.submit(measured, args, *row) for row in wanted]):
            try:
                row = future.result()
            except SystemExit as error:  # one row less is no reason to lose the others
                print(error, file=sys.stderr, flush=True)
                continue
            results[row["name"]] = row
            print(f"{row['name']}: {tiny.distance(row['eval'])}", flush=True)
            done = sorted(results.values(), key=lambda row: names.index(row["name"]))
            args.out.write_text(json.dumps(head | {"results": done}) + "\n")


def print_table(results):
    beside = {row["name"]: row["eval"] for row in json.loads(TINY.read_text())["results"]}
    base = math.exp(results[0]["eval"]["base_nll"])
    print("| | MB | perplexity | ... against dense, % | KLD x 1000 | same top, % | tinyworld: KLD x 1000 |")
    print("|---|" + "---:|" * 6)
    print(f"| dense |  | {base:.3f} |  |  |  |  |")
    for row in results:
        one = row["eval"]
        print(f"| {row['name']} | " + (f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else "") + f" | {one['perplexity']:.3f} | "
              f"{100 * math.expm1(one['delta_nll']):+.2f} ± {196 * one['delta_nll_se']:.2f} | {tiny.distance(one)} | "
              f"{100 * one['same_top']:.1f} | {tiny.distance(beside[row['name']])} |")


def ratio(one, other):
    """Of two rows' divergences over the same pieces, with its standard error: (ratio, error)"""
    value = sum(one) / sum(other)
    squares = sum((a - value * b) ** 2 for a, b in zip(one, other, strict=True))
    return value, math.sqrt(squares * len(one) / (len(one) - 1)) / sum(other)


def print_orders(results):
    """The ratio of divergences: below 1 where the order holds."""
    pieces = {row["name"]: row["kl_of_pieces"] for row in results}
    beside = {row["name"]: row["eval"]["kl"] for row in json.loads(TINY.read_text())["results"]}
    print("| | 100 million: ratio of KLD | holds | tinyworld: ratio | holds |")
    print("|---|---:|---|---:|---|")
    for text, one, other in ORDERS:
        if one not in pieces or other not in pieces:
            continue
        value, error = ratio(pieces[one], pieces[other])
        verdict = "yes" if value + 1.96 * error < 1 else "no" if value - 1.96 * error > 1 else "not to be told"
        small = beside[one] / beside[other]
        print(f"| {text} | {value:.3g} ± {1.96 * error:.2g} | {verdict} | {small:.3g} | {'yes' if small < 1 else 'no'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--out", type=pathlib.Path, metavar="FILE.json", help="measures")
    files.add_argument("--from", type=pathlib.Path, metavar="FILE.json", dest="source", help="prints what was measured")
    parser.add_argument("--orders", action="store_true")
    parser.add_argument("--model", type=pathlib.Path, help="the folder of train.py")
    parser.add_argument("--text", type=pathlib.Path, help="the folder of make_text.py")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows in whose names it is found")
    parser.add_argument("--pieces", type=int, default=100, help="held-out ones to judge by, the first")
    parser.add_argument("--samples", type=int, default=128, help="pieces of calibration")
    parser.add_argument("--awq-samples", type=int, default=32)
    parser.add_argument("--device", default="cpu", help="where the texts go through the model: cpu or cuda")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each")
    parser.add_argument("--ladder", default=ROOT / "ladder", help="the binary, or the script that builds and calls it")
    args = parser.parse_args()
    if args.source:
        return (print_orders if args.orders else print_table)(json.loads(args.source.read_text())["results"])
    measure(args)


if __name__ == "__main__":
    main()
