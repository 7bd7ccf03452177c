#!/usr/bin/env python3
"""What `ladder plan` predicts beside what its simulation finds, for several shapes of requests, as JSON and as a table.

    tools/plan_grid.py --step-times FILE --out FILE [--binary build/release/ladder] [plan's flags, the same for all shapes]

Of each shape two promises: 3 times, and 1.5 times, what a step of 8 answers takes for a token, and 6 times what the prompt takes
alone for the first one, so that some deployments keep them and others do not.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

# Prompt and output tokens, in the mean.
SHAPES = [(32, 128), (128, 128), (512, 128), (512, 32), (1024, 64), (1536, 32)]
STEPS_PER_TOKEN = [3, 1.5]


def seconds_of(times, prompt, batch):
    """The fit is the program's own; here the row that is nearest is enough to choose promises by."""
    rows = times["engines"][0]["steps"]
    prompts = [row for row in rows if row["prompt_tokens"] > 0]
    nearest = min(prompts, key=lambda row: abs(row["prompt_tokens"] - prompt))
    answers = [row for row in rows if row["prompt_tokens"] == 0]
    answer = min(answers, key=lambda row: abs(row["sequences"] / row["steps"] - batch))
    return nearest["seconds"] * prompt / max(nearest["prompt_tokens"], 1), answer["seconds"] / answer["steps"]


def run(arguments, shape, steps, times):
    prompt, output = shape
    first, each = seconds_of(times, prompt, 8)
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "plan.json"
        command = [arguments.binary, "plan", "--step-times", arguments.step_times, "--simulate", "--json", str(rows),
                   "--prompt-len", str(prompt), "--output-len", str(output), "--request-rate", "1",
                   "--ttft", f"{6e3 * (first + each):.1f}", "--tpot", f"{1e3 * steps * each:.2f}", *arguments.more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        command[command.index(str(rows))] = "plan.json"
        return {"prompt": prompt, "output": output, "steps_per_token": steps, "command": " ".join(command),
                "deployments": json.loads(rows.read_text())["results"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/ladder")
    parser.add_argument("--step-times", required=True)
    parser.add_argument("--out", required=True)
    arguments, arguments.more = parser.parse_known_args()
    times = json.loads(Path(arguments.step_times).read_text())
    grid = [run(arguments, shape, steps, times) for steps in STEPS_PER_TOKEN for shape in SHAPES]
    Path(arguments.out).write_text(json.dumps(grid, indent=1) + "\n")
    print("| prompt, answer | steps a token | plan | predicted | simulated | of the best simulated | worst ratio of all |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for row in grid:
        good = [one for one in row["deployments"] if one["simulated_goodput"] > 0]
        best = max(one["simulated_goodput"] for one in good)
        chosen = next(one for one in row["deployments"] if one["chosen"])
        worst = max((one["predicted_goodput"] / one["simulated_goodput"] for one in good),
                    key=lambda ratio: max(ratio, 1 / ratio) if ratio > 0 else float("inf"))
        print(f"| {row['prompt']}, {row['output']} | {row['steps_per_token']} | {chosen['name']} | {chosen['predicted_goodput']:.2f} | "
              f"{chosen['simulated_goodput']:.2f} | {chosen['simulated_goodput'] / best:.2f} | {worst:.2f} |")


if __name__ == "__main__":
    main()
