#!/usr/bin/env python3
"""Step times of Llama-3.1-8B's shape on one and two H100, for `ladder plan`, from what bench/results/h100x2 has.

    tools/step_times_h100.py          writes bench/results/h100x2/step_times_llama-3.1-8b.json

Each row is a committed run: its work follows from the lengths in its command, its time is that of the file that `source`
names. The KV tokens that the common workload reads, 125 million, are a sum over its lengths
(step7_parallel/data/simulation/step_time_model.h).
"""

import json
import re
import statistics
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "bench" / "results" / "h100x2"


def runs_of(name):
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def row(steps, sequences, prompt_tokens, kv_tokens, pairs, seconds, source):
    return {"steps": steps, "sequences": sequences, "prompt_tokens": prompt_tokens, "kv_tokens": kv_tokens,
            "prompt_pairs": pairs, "seconds": seconds, "source": source}


def prompt(length, chunk, seconds, source):
    starts = range(0, length, chunk)
    sizes = [min(chunk, length - start) for start in starts]
    pairs = sum(size * start + size * (size - 1) // 2 for start, size in zip(starts, sizes))
    return row(len(sizes), len(sizes), length - 1, sum(starts), pairs, seconds, source)


def engine(size, suffix):
    latency, prefill, deep = (runs_of(f"{name}_{suffix}") for name in ("latency", "prefill", "deep"))
    common = runs_of(f"common_{suffix}")[0]
    first, each = "time_to_first_token_mean", "inter_token_latency_mean"
    text = (RESULTS / f"common_{suffix}.txt").read_text()
    blocks = int(re.search(r"most KV blocks in use +[\d,]+ of ([\d,]+)", text)[1].replace(",", ""))
    rows = [
        row(1, 1, 0, 80, 0, median(latency, each), f"latency_{suffix}.json: {each}"),
        prompt(32, 32, median(latency, first), f"latency_{suffix}.json: {first}"),
        row(1, 1, 0, 8192, 0, median(prefill, each), f"prefill_{suffix}.json: {each}"),
        prompt(8192, 8192, median(prefill, first), f"prefill_{suffix}.json: {first}"),
        row(1, 1, 0, 130032, 0, median(deep, each), f"deep_{suffix}.json: {each}"),
        prompt(130000, 16384, median(deep, first), f"deep_{suffix}.json: {first}"),
        row(common["steps"], common["output_tokens"], common["computed_tokens"] - common["output_tokens"], 125_000_000,
            0, common["step_seconds"], f"common_{suffix}.json: step_seconds of all its steps"),
    ]
    return {"tensor_parallel_size": size, "kv_tokens": 16 * blocks, "max_num_seqs": 256, "steps": rows}


def main():
    times = {"model": "llama-3.1-8b's shape, bf16", "device": "NVIDIA H100 80GB HBM3",
             "command": "tools/step_times_h100.py", "kv_bytes_per_token": 131072, "num_layers": 32,
             "engines": [engine(1, "1"), engine(2, "tp2")]}
    (RESULTS / "step_times_llama-3.1-8b.json").write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
