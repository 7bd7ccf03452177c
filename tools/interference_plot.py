#!/usr/bin/env python3
"""What long prompts do to those who are being answered, as a picture: the gaps between their tokens, over time.

    tools/interference_plot.py --ladder build/release/ladder --out /tmp/interference.svg

Two engines' worth of GPUs answer 32 requests when three long prompts come. `ladder plan --token-times` simulates them, with the
engine's scheduler and measured step times: prompts computed whole, in chunks, and by an engine of their own. A panel each; a
dot is a token, as high as its reader waited for it. Prints the table of the chapter.
"""

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path

from ladder_plot import COLOURS, FAINT, GRID, INK, SMALL, Svg, WIDTH, time_of

NUM_ANSWERED, PROMPT, OUTPUT = 32, 512, 384
LONG_PROMPTS = [(1.0, 16000), (1.8, 8000), (2.4, 12000)]  # seconds, tokens
CHUNK = 512
TOP, HEIGHT, LEFT, GAP = 70, 300, 70, 34
LOW, HIGH = 3e-3, 3.0  # seconds


def simulated(ladder, step_times):
    requests = [{"arrival": 0.001 * i, "prompt_tokens": PROMPT, "output_tokens": OUTPUT} for i in range(NUM_ANSWERED)]
    requests += [{"arrival": when, "prompt_tokens": size, "output_tokens": 1} for when, size in LONG_PROMPTS]
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "requests.jsonl"), Path(folder, "tokens.json")
        file.write_text("".join(json.dumps(request) + "\n" for request in requests))
        subprocess.run([ladder, "plan", "--step-times", step_times, "--requests", file, "--ttft", "1e6", "--tpot", "1e6",
                        "--gpus", "2", "--chunk", str(CHUNK), "--layer-by-layer", "--token-times", out],
                       check=True, capture_output=True)
        return json.loads(out.read_text())["results"]


def gaps_of(tokens):
    """[(seconds, gap)] of those who were there before the long prompts, without their first tokens."""
    last, gaps = {}, []
    for request, when in sorted(tokens, key=lambda token: token[1]):
        if request < NUM_ANSWERED and request in last:
            gaps.append((when, when - last[request]))
        last[request] = when
    return gaps


def panel_of(rows, beginning, *needed):
    return next(row for row in rows if row["name"].startswith(beginning) and all(word in row["name"] for word in needed))


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladder", default="build/release/ladder", help="the program (default: build/release/ladder)")
    parser.add_argument("--step-times", default="bench/results/h100x2/step_times_llama-3.1-8b.json")
    parser.add_argument("--out", required=True, help="the SVG file")
    arguments = parser.parse_args()
    rows = simulated(arguments.ladder, arguments.step_times)
    panels = [("prompts whole", panel_of(rows, "2 engines", "whole")),
              (f"prompts in chunks of {CHUNK}", panel_of(rows, "2 engines", "chunks")),
              ("prompts on an engine of their own", panel_of(rows, "1P1D"))]
    all_gaps = [gaps_of(row["request_and_seconds"]) for _, row in panels]
    end = max(when for gaps in all_gaps for when, _ in gaps)

    svg = Svg()
    width = (WIDTH - LEFT - 24 - 2 * GAP) / 3

    def y_of(seconds):
        return TOP + HEIGHT - math.log(seconds / LOW) / math.log(HIGH / LOW) * HEIGHT

    print("| two GPUs | gap, 50 % | 99 % | longest | last of the 32 answers |\n|---|---|---|---|---|")
    for i, ((name, _), gaps) in enumerate(zip(panels, all_gaps)):
        left = LEFT + i * (width + GAP)
        svg.text(left, TOP - 14, name, bold=True)
        for mark in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0):
            svg.line(left, y_of(mark), left + width, y_of(mark), GRID)
            if i == 0:
                svg.text(left - 6, y_of(mark) + 4, time_of(mark), "end", FAINT, SMALL)
        for when, size in LONG_PROMPTS:
            x = left + when / end * width
            svg.line(x, TOP, x, TOP + HEIGHT, FAINT, dash="3 3")
            svg.text(x + 3, TOP + 12, f"{size // 1000}k", "start", FAINT, SMALL)
        places = {(round(left + when / end * width), round(y_of(min(max(gap, LOW), HIGH)))) for when, gap in gaps}
        for x, y in sorted(places):
            svg.rectangle(x - 1, y - 1, 2, 2, COLOURS[1 if i == 0 else 2 if i == 1 else 4])
        for second in range(int(end) + 1):
            svg.text(left + second / end * width, TOP + HEIGHT + 18, f"{second} s", "middle", FAINT, SMALL)
        svg.line(left, TOP + HEIGHT, left + width, TOP + HEIGHT, INK)
        values = [gap for _, gap in gaps]
        print(f"| {name} | {time_of(percentile(values, 0.5))} | {time_of(percentile(values, 0.99))} | {time_of(max(values))} | "
              f"{time_of(max(when for when, _ in gaps))} |")
    svg.text(LEFT, 28, f"{NUM_ANSWERED} answers, and three long prompts (dashed): how long each token was waited for", bold=True)
    Path(arguments.out).write_text(svg.page(TOP + HEIGHT + 40))


if __name__ == "__main__":
    main()
