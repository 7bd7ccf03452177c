#!/usr/bin/env python3
"""The table of `ladder bench progression` for a chapter, from the file that its --json wrote.

    python3 tools/progression_table.py bench/results/cpu/progression.json
"""

import json
import sys


def seconds(value):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.2f} {unit}" if unit == "s" else f"{value * scale:.1f} {unit}"
    return "0"


def main():
    try:
        with open(sys.argv[1]) as file:
            report = json.load(file)
    except (OSError, IndexError, ValueError) as error:
        sys.exit(f"progression_table: {error}")
    on_gpu = report.get("gpu") is not None
    columns = ["", "tok/s", "time to first token", "inter-token latency", "longest", "live KV"]
    columns += ["of limit"] if on_gpu else []
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for rung in report["results"]:
        speed = rung["output_tokens_per_second"]
        row = [rung["name"], f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}",
               seconds(rung["time_to_first_token_mean"]), seconds(rung["inter_token_latency_mean"]),
               seconds(rung["inter_token_latency_max"]), f"{100 * rung['kv_live_share']:.0f} %"]
        row += [f"{rung['of_streaming_limit']:.3f}"] if on_gpu else []
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
