#!/usr/bin/env python3
"""The planner's simulation beside a measured run: the same requests, at the same moments, in virtual time with step times that
were measured by themselves, and through the servers of `tools/multi_gpu_check.sh disaggregation`.

    tools/plan_beside_served.py bench/results/h200x2 [--step-times FILE] [--markdown]

A row without a file of the run says so.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ladder_table import as_markdown, as_text  # noqa: E402

# A row, its file, how the plan calls it, and the size of its steps.
ROWS = [
    ("prompts whole", "served_whole", "2 engines (TP 1), prompts whole", 16768),
    ("prompts in chunks of 1,024", "served_replicas", "2 engines (TP 1), chunks of 1024", 1024),
    ("an engine for prompts, one for answers", "served_disaggregated", "1P1D (TP 1, TP 1)", 8192),
]
HEAD = ["", "gap, 50 %", "99 %", "first token, mean", "99 %", "good answers"]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def simulated(arguments, requests, chunk, ttft, tpot):
    """{deployment: its results}."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "requests.jsonl"), Path(folder, "tokens.json")
        file.write_text("".join(json.dumps({"arrival": request["sent"], "prompt_tokens": request["prompt_tokens"],
                                            "output_tokens": request["output_tokens"]}) + "\n" for request in requests))
        subprocess.run([arguments.ladder, "plan", "--step-times", arguments.step_times, "--requests", file, "--gpus", "2",
                        "--ttft", str(ttft), "--tpot", str(tpot), "--chunk", str(chunk), "--token-times", out],
                       check=True, capture_output=True)
        return {row["name"]: row for row in json.loads(out.read_text())["results"]}


def row_of(title, gaps, firsts, good, count):
    milliseconds = lambda seconds: f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:.2f} s"  # noqa: E731
    return [title, milliseconds(percentile(gaps, 0.5)), milliseconds(percentile(gaps, 0.99)),
            milliseconds(sum(firsts) / len(firsts)), milliseconds(percentile(firsts, 0.99)), f"{good} of {count}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ladder", default="build/release/ladder", help="the program (default: build/release/ladder)")
    parser.add_argument("--step-times", default="bench/results/h200/step_times_llama-3.1-8b.json")
    parser.add_argument("--ttft", type=float, default=2000)
    parser.add_argument("--tpot", type=float, default=8)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for title, name, deployment, chunk in ROWS:
        file = arguments.folder / f"{name}.json"
        if not file.exists():
            rows.append([title, "not measured"] + [""] * (len(HEAD) - 2))
            continue
        run = json.loads(file.read_text())["results"][0]
        found = simulated(arguments, run["requests"], chunk, arguments.ttft, arguments.tpot)
        if deployment not in found:
            sys.exit(f"plan_beside_served: no {deployment} among {', '.join(found)}")
        times = {}
        for request, when in sorted(found[deployment]["request_and_seconds"], key=lambda token: token[1]):
            times.setdefault(request, []).append(when)
        gaps = [after - before for one in times.values() for before, after in zip(one, one[1:])]
        firsts = [times[i][0] - run["requests"][i]["sent"] for i in times]
        good = sum(times[i][0] - run["requests"][i]["sent"] <= arguments.ttft / 1e3
                   and (times[i][-1] - times[i][0]) / (len(times[i]) - 1) <= arguments.tpot / 1e3 for i in times)
        itl, ttft = run["itl"], run["ttft"]
        rows.append(row_of(title + ", simulated", gaps, firsts, good, len(times)))
        measured = row_of("... measured", [itl["median"]], [ttft["mean"]],
                          round(run["good_requests_per_second"] * run["seconds"]), run["completed"])
        measured[2] = row_of("", [itl["p99"]], [1], 0, 0)[1]
        measured[4] = row_of("", [ttft["p99"]], [1], 0, 0)[1]
        rows.append(measured)
    print((as_markdown if arguments.markdown else as_text)([HEAD, *rows]))


if __name__ == "__main__":
    main()
