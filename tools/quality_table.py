#!/usr/bin/env python3
"""What each format and method costs in quality: quantizes a model in several ways and holds each against the model itself.

    tools/quality_table.py --ladder build/release/ladder --model models/tinyworld --data models/tinyworld/eval/text.jsonl \
        --calibration FILE.jsonl --json bench/results/cpu/quantization_quality.json
    tools/quality_table.py --from bench/results/cpu/quantization_quality.json

The first runs `ladder quantize` and `ladder eval --base` for every row of ROWS and keeps their commands and numbers; both print
the Markdown table. An interval is +- 1.96 standard errors over documents. Calibration texts must not be the ones measured on.
Needs nothing but Python.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# scheme, method
ROWS = [("W8A8", "rtn"), ("FP8_DYNAMIC", "rtn"), ("W8A16", "rtn"),
        ("W4A16", "rtn"), ("W4A16", "gptq"), ("W4A16", "awq"),
        ("W4A16_ASYM", "rtn"), ("W4A16_ASYM", "gptq"), ("W4A16_ASYM", "awq"),
        ("NVFP4A16", "rtn"), ("MXFP4A16", "rtn"),
        ("W3A16", "rtn"), ("W3A16", "gptq"), ("W3A16", "awq")]


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"quality_table: {shlex.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


def machine():
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {"cpu": found[1] if found else "unknown", "cores": os.cpu_count()}


def measure(args):
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"],
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    results = {"commit": commit, "machine": machine(), "rows": []}
    with tempfile.TemporaryDirectory() as work:
        for scheme, method in ROWS:
            folder = Path(work) / f"{scheme}-{method}"
            quantize = [args.ladder, "quantize", "--model", args.model, "--output", folder, "--scheme", scheme, "--method", method]
            if method != "rtn":
                quantize += ["--calibration", args.calibration, "--num-samples", args.num_samples, "--max-seq-len", 512]
            evaluate = [args.ladder, "eval", "--model", folder, "--base", args.model, "--data", args.data, "--format", "jsonl"]
            quantize, evaluate = ([str(part) for part in command] for command in (quantize, evaluate))
            said = run(quantize)
            summary = json.loads(run(evaluate).splitlines()[-1])["summary"]
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            results["rows"].append({
                "scheme": scheme, "method": method, "bytes": size, "summary": summary, "quantize_said": said.splitlines(),
                "commands": [shlex.join(command).replace(work, "OUT") for command in (quantize, evaluate)]})
            shutil.rmtree(folder)
            print(f"quality_table: {scheme} {method}", file=sys.stderr)
    return results


def interval(summary, name, scale, digits):
    return f"{scale * summary[name]:.{digits}f} ± {scale * 1.96 * summary[name + '_se']:.{digits}f}"


def table(results):
    head = ["scheme", "method", "MiB", "KL x 1000", "NLL x 100, more", "same likeliest token, %"]
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    for row in results["rows"]:
        summary = row["summary"]
        lines.append(f"| {row['scheme']} | {row['method']} | {row['bytes'] / 2**20:.1f} | {interval(summary, 'kl', 1000, 2)} | "
                     f"{interval(summary, 'delta_nll', 100, 2)} | {interval(summary, 'same_top', 100, 2)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="results", type=Path, metavar="FILE.json", help="only the table of this file")
    parser.add_argument("--ladder", type=Path, help="the program")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path, help="the texts to measure on")
    parser.add_argument("--calibration", type=Path, help="the texts of gptq and awq")
    parser.add_argument("--num-samples", type=int, default=128)
    parser.add_argument("--json", type=Path, help="keep commands and numbers here")
    args = parser.parse_args()
    if args.results:
        results = json.loads(args.results.read_text())
    else:
        missing = [name for name in ("ladder", "model", "data", "calibration", "json") if getattr(args, name) is None]
        if missing:
            parser.error(f"--{missing[0]}: expected it, or --from")
        results = measure(args)
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
