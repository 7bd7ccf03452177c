#!/usr/bin/env python3
"""What `ladder bench balancers --json FILE` has written as a picture: tail latency, imbalance and hits against load.

    tools/balancers_plot.py bench/results/cpu/balancers_sessions.json --replicas 8 --out /tmp/balancers.svg

A panel each for the time to first token (99 of 100 requests wait less; logarithmic), the most loaded replica over the mean,
and the share of prompt tokens found in a cache. A line for each balancer.
"""

import argparse
import json
import math
from pathlib import Path

from ladder_plot import COLOURS, FAINT, GRID, INK, SMALL, Svg, WIDTH, time_of

TOP, HEIGHT, LEFT, GAP = 70, 300, 70, 66
PANELS = [  # what, its key, whether it is logarithmic, how a number is written
    ("time to first token, 99 %", "time_to_first_token_p99", True, time_of),
    ("most loaded replica / mean", "imbalance", False, lambda value: f"{value:g}"),
    ("prompt tokens found in a cache", "hit_rate", False, lambda value: f"{100 * value:.0f} %"),
]


def ticks(low, high, logarithmic):
    if logarithmic:
        wanted = [scale * 10.0 ** power for power in range(-6, 4) for scale in (1, 3)]
        below = max((tick for tick in wanted if tick <= low), default=wanted[0])
        above = min((tick for tick in wanted if tick >= high), default=wanted[-1])
        return [tick for tick in wanted if below <= tick <= above]
    step = 10.0 ** math.floor(math.log10(max(high, 1e-9)))
    step *= 0.2 if high / step < 2 else 0.5 if high / step < 5 else 1
    return [step * i for i in range(math.ceil(high / step) + 1)]


def draw_panel(svg, left, width, panel, lines, loads):
    what, key, logarithmic, written = panel
    values = [row[key] for rows in lines.values() for row in rows]
    marks = ticks(min(values), max(values), logarithmic)
    scale = math.log if logarithmic else float

    def x_of(load):
        return left + (load - loads[0]) / (loads[-1] - loads[0]) * width

    def y_of(value):
        low, high = scale(marks[0]), scale(marks[-1])
        return TOP + HEIGHT - (scale(value) - low) / (high - low) * HEIGHT

    svg.text(left, TOP - 14, what, bold=True)
    for mark in marks:
        svg.line(left, y_of(mark), left + width, y_of(mark), GRID)
        svg.text(left - 6, y_of(mark) + 4, written(mark), "end", FAINT, SMALL)
    labelled = -math.inf
    for load in loads:
        svg.line(x_of(load), TOP + HEIGHT, x_of(load), TOP + HEIGHT + 4, FAINT)
        if x_of(load) - labelled > 24:  # else the numbers overlap
            svg.text(x_of(load), TOP + HEIGHT + 18, f"{load:g}", "middle", FAINT, SMALL)
            labelled = x_of(load)
    svg.text(left + width / 2, TOP + HEIGHT + 36, "load offered / what the replicas can answer", "middle", FAINT, SMALL)
    svg.line(left, TOP + HEIGHT, left + width, TOP + HEIGHT, INK)
    for number, rows in enumerate(lines.values()):
        points = [(x_of(row["load"]), y_of(row[key])) for row in sorted(rows, key=lambda row: row["load"])]
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            svg.line(x1, y1, x2, y2, COLOURS[2 * number + 1], 2.0)
        for x, y in points:
            svg.dot(x, y, COLOURS[2 * number + 1])


def picture(results, replicas):
    rows = [row for row in results if row["replicas"] == replicas]
    if not rows:
        raise SystemExit(f"no results of {replicas} replicas")
    loads = sorted({row["load"] for row in rows})
    lines = {}
    for row in rows:
        lines.setdefault(row["name"], []).append(row)
    svg = Svg()
    svg.text(LEFT, 24, f"{replicas} replicas, {rows[0]['workload']}; simulated", bold=True, size=14)
    width = (WIDTH - LEFT - 20 - 2 * GAP) / 3
    for number, panel in enumerate(PANELS):
        draw_panel(svg, LEFT + number * (width + GAP), width, panel, lines, loads)
    x = LEFT
    for number, name in enumerate(lines):
        svg.line(x, TOP + HEIGHT + 62, x + 24, TOP + HEIGHT + 62, COLOURS[2 * number + 1], 3.0)
        svg.text(x + 30, TOP + HEIGHT + 66, name)
        x += 60 + 8 * len(name)
    return svg.page(TOP + HEIGHT + 84)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.write_text(picture(json.loads(arguments.results.read_text())["results"], arguments.replicas))


if __name__ == "__main__":
    main()
