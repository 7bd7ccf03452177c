#!/usr/bin/env python3
"""Two builds beside one another on one machine: does anything get slower?

    tools/compare_builds.py --old BUILD --new BUILD --out FILE.json [--runs 5] PART...

Both builds run every part in turn (old, new, new, old, ...), so that a machine that gets warmer or busier does so for
both. What counts is the median of the runs. FILE.json keeps every run's figure; the table goes to standard output.

Parts:
  kernels       on a GPU: the CUDA ladders of step 1 and the composites of step 2, without the naive rungs
  engine        on a GPU: decode, prefill and throughput of Qwen3-0.6B's and 8B's shapes, random weights
  cpu-kernels   the CPU ladders of step 1, without the naive rungs
  cpu-engine    the tiny model and Qwen3-0.6B's shape on the CPU

With --check the exit code says whether the bounds hold: engine figures within 2 %, each kernel within 5 %, kernels
within 1 % in the geometric mean.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_results import SUFFIX

ROOT = Path(__file__).resolve().parent.parent

# part: [(binary, arguments)]
BENCHMARKS = {
    "kernels": [
        ("bench_step1", "--benchmark_filter=-ceiling|cpu:|/[a-z0-9_]*(naive|loop|peer)|matmul.*/m:(2|3|32|64|256|2048)/"),
        ("bench_step2", "--benchmark_filter=^(norm_qkv|o_residual|norm_gate_up_silu|down_residual|layer)/.*cuda:"),
    ],
    "cpu-kernels": [
        ("bench_step1", "--benchmark_filter=-ceiling|cuda:|cpu:(naive|loop)|naive"),
    ],
}
GPU = ["--load-format", "dummy", "--device", "cuda"]
CPU = ["--device", "cpu"]
# part: {figure: (arguments of the program, field of its JSON, whether more is better)}
ENGINE = {
    "engine": {
        "0.6b, one request, tok/s": (["bench", "latency", "--model", "models/qwen3-0.6b", *GPU, "--prompt-len", "32",
                                      "--output-len", "96", "--repeat", "5"], "decode", True),
        "0.6b, 256 requests, tok/s": (["bench", "throughput", "--model", "models/qwen3-0.6b", *GPU, "--num-requests",
                                       "256", "--min-prompt-len", "32", "--max-prompt-len", "32", "--min-output-len",
                                       "96", "--max-output-len", "96", "--temperature", "0"],
                                      "output_tokens_per_second", True),
        "0.6b, common workload, tok/s": (["bench", "throughput", "--model", "models/qwen3-0.6b", *GPU],
                                         "output_tokens_per_second", True),
        "8b, one request, tok/s": (["bench", "latency", "--model", "models/qwen3-8b", *GPU, "--prompt-len", "32",
                                    "--output-len", "96", "--repeat", "3"], "decode", True),
        "8b, prompt of 8192, s": (["bench", "latency", "--model", "models/qwen3-8b", *GPU, "--prompt-len", "8192",
                                   "--output-len", "2", "--max-num-batched-tokens", "8192", "--max-model-len", "8200",
                                   "--repeat", "5"], "time_to_first_token_median", False),
    },
    "cpu-engine": {
        "tinyworld, one request, tok/s": (["bench", "latency", "--model", "models/tinyworld", *CPU], "decode", True),
        "tinyworld, throughput, tok/s": (["bench", "throughput", "--model", "models/tinyworld", *CPU],
                                         "output_tokens_per_second", True),
        "0.6b shape, one request, tok/s": (["bench", "latency", "--model", "models/qwen3-0.6b", "--load-format",
                                            "dummy", *CPU, "--kv-memory", "512MiB", "--repeat", "3"], "decode", True),
    },
}


def fail(message):
    print(f"compare_builds: {message}", file=sys.stderr)
    sys.exit(2)


def binary(build, name):
    for folder in (build, build / "tests", build / "bench"):
        if (folder / name).is_file():
            return folder / name
    fail(f"{build} has no {name}")


def run(command):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")


def kernel_times(build, name, arguments):
    """{benchmark: seconds} of one run."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run([binary(build, name), *arguments, f"--benchmark_out={file.name}", "--benchmark_out_format=json"])
        rows = json.load(open(file.name))["benchmarks"]
    unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    times = {}
    for row in rows:
        if row.get("error_occurred") or row.get("run_type") == "aggregate":
            continue
        label = "/".join(part for part in row["name"].split("/") if not SUFFIX.match(part))
        times.setdefault(label, []).append(row["real_time"] * unit[row["time_unit"]])
    return {label: statistics.median(values) for label, values in times.items()}


def engine_figure(build, arguments, field):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run([binary(build, "ladder"), *arguments, "--json", file.name])
        results = json.load(open(file.name))["results"]
    if field == "decode":  # tokens per second of one request after its first token
        return statistics.median(1.0 / row["inter_token_latency_mean"] for row in results)
    return statistics.median(row[field] for row in results)


def measure(builds, parts, runs, min_time, note):
    """{part: {figure: {"old": [...], "new": [...], "more_is_better": bool}}}"""
    figures = {part: {} for part in parts}

    def keep(part, name, side, value, more):
        entry = figures[part].setdefault(name, {"old": [], "new": [], "more_is_better": more})
        entry[side].append(value)

    for index in range(runs):
        for side in ("old", "new") if index % 2 == 0 else ("new", "old"):
            begin = time.time()
            for part in parts:
                for name, argument in BENCHMARKS.get(part, []):
                    arguments = [argument] + ([f"--benchmark_min_time={min_time}"] if min_time else [])
                    for label, seconds in kernel_times(builds[side], name, arguments).items():
                        keep(part, label, side, seconds, False)
                for label, (arguments, field, more) in ENGINE.get(part, {}).items():
                    keep(part, label, side, engine_figure(builds[side], arguments, field), more)
            note(f"run {index + 1} of {runs}, {side}: {time.time() - begin:.0f} s")
    return figures


def ratio(entry):
    """How much slower the new build is: 1.05 is 5 % slower."""
    old, new = statistics.median(entry["old"]), statistics.median(entry["new"])
    return old / new if entry["more_is_better"] else new / old


def spread(values):
    return max(values) / min(values) - 1.0


def report(figures):
    """Prints the table; returns what breaks a bound."""
    broken = []
    for part, entries in figures.items():
        both = {name: entry for name, entry in entries.items() if entry["old"] and entry["new"]}
        only = [f"{'old' if entry['old'] else 'new'}: {name}" for name, entry in entries.items() if name not in both]
        if not both:
            broken.append(f"{part}: nothing to compare")
            continue
        if part in ENGINE:
            print(f"\n{part} (medians of {len(next(iter(both.values()))['old'])} runs)")
            for name, entry in both.items():
                slower = ratio(entry)
                print(f"  {name:34} old {statistics.median(entry['old']):12.5g}  new "
                      f"{statistics.median(entry['new']):12.5g}  {(1 / slower - 1) * 100:+6.2f} %  "
                      f"(spread {spread(entry['old']) * 100:.1f} / {spread(entry['new']) * 100:.1f} %)")
                if slower > 1.02:
                    broken.append(f"{part}: {name} is {(slower - 1) * 100:.1f} % slower")
            continue
        ratios = {name: ratio(entry) for name, entry in both.items()}
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        print(f"\n{part}: {len(both)} kernels, geometric mean of new / old time {mean:.4f}")
        for name, slower in sorted(ratios.items(), key=lambda item: -item[1])[:12]:
            print(f"  {slower:6.3f}  {name}  (spread {spread(both[name]['old']) * 100:.1f} / "
                  f"{spread(both[name]['new']) * 100:.1f} %)")
        broken += [f"{part}: {name} is {(slower - 1) * 100:.1f} % slower"
                   for name, slower in ratios.items() if slower > 1.05]
        if mean > 1.01:
            broken.append(f"{part}: {(mean - 1) * 100:.1f} % slower in the geometric mean")
        if only:
            print(f"  in one build only: {len(only)}: {', '.join(only[:6])}{', ...' if len(only) > 6 else ''}")
    return broken


def machine():
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True,
                         capture_output=True) if os.path.exists("/dev/nvidia0") else None
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {"cpu": cpu, "cores": os.cpu_count(), "gpu": gpu.stdout.strip() if gpu and gpu.returncode == 0 else None}


def main():
    every = [*BENCHMARKS, *ENGINE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(every))
    parser.add_argument("--old", type=Path, help="build folder, or a folder with the binaries")
    parser.add_argument("--new", type=Path)
    parser.add_argument("--old-commit", default="", help="what --old was built from, for the record")
    parser.add_argument("--new-commit", default="")
    parser.add_argument("--out", type=Path, help="where every run's figures go; with --report: where they are read")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--filter", help="a Google Benchmark filter in place of the kernels' own")
    parser.add_argument("--min-time", type=float, help="seconds of a kernel's measurement, if not Google Benchmark's own")
    parser.add_argument("--figures", default="", help="a regular expression: of the engine's figures only these")
    parser.add_argument("--report", action="store_true", help="print the table of an --out of before")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a bound is broken")
    options = parser.parse_args()
    if options.out is None:
        fail("--out FILE.json is missing")
    if options.report:
        broken = report(json.loads(options.out.read_text())["figures"])
    else:
        unknown = [part for part in options.parts if part not in every]
        if unknown or not options.parts:
            fail(f"expected some of {', '.join(every)}, got {' '.join(options.parts) or 'none'}")
        if options.old is None or options.new is None:
            fail("--old and --new are needed, a build folder each")
        if options.filter:
            for part in BENCHMARKS:
                BENCHMARKS[part] = [(BENCHMARKS[part][0][0], f"--benchmark_filter={options.filter}")]
        for part, figures in ENGINE.items():
            ENGINE[part] = {name: figure for name, figure in figures.items() if re.search(options.figures, name)}
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        builds = {"old": options.old.resolve(), "new": options.new.resolve()}
        figures = measure(builds, options.parts, options.runs, options.min_time, lambda text: print(text, flush=True))
        commits = {"old": options.old_commit, "new": options.new_commit}
        options.out.write_text(json.dumps({"command": " ".join(sys.argv), "machine": machine(), "commits": commits,
                                           "figures": figures}, indent=1) + "\n")
        broken = report(figures)
    for line in broken:
        print(f"BROKEN {line}")
    print("every bound holds" if not broken else f"{len(broken)} bounds are broken")
    sys.exit(1 if broken and options.check else 0)


if __name__ == "__main__":
    main()
