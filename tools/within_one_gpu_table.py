#!/usr/bin/env python3
"""The tables of chapter 8.7.border, of what tools/within_one_gpu.sh has written.

    tools/within_one_gpu_table.py --from FOLDER shares     steps alone and beside each other, by share
    tools/within_one_gpu_table.py --from FOLDER long       every cure under a load (long, short or full): milliseconds, throughput
    tools/within_one_gpu_table.py --from FOLDER long --plot FILE       the same as a picture: first tokens, and gaps
    tools/within_one_gpu_table.py --from FOLDER fit        the model of sm_border.h beside the measured steps
"""
import argparse
import json
import math
import sys
from pathlib import Path

from ladder_plot import COLOURS, FAINT, GRID, INK, SMALL, Svg, WIDTH, time_of

CURES = {"chunks_256": "chunks of 256", "chunks_512": "chunks of 512", "chunks_1024": "chunks of 1,024",
         "chunks_2048": "chunks of 2,048", "chunks_8192": "chunks of 8,192 (default)", "streams": "lanes, two streams",
         "shares_9": "lanes, shares, 9 ms", "shares_9_6000": "lanes, shares, 9 ms, mixed from 6 s",
         "shares_9_4000": "lanes, shares, 9 ms, mixed from 4 s", "shares_9_1000": "lanes, shares, 9 ms, mixed from 1 s",
         "shares_20": "lanes, shares, 20 ms", "two": "two processes"}
# Llama-3.1-8B: operations of a row and of a pair, bytes of the weights and of a token's keys.
PARAMETERS, PAIR, WEIGHTS, KEY = 8.03e9, 4 * 32 * 32 * 128, 16.06e9, 131072
KEYS, CHUNK = 8192, 2048


def table(rows):
    text = ["| " + " | ".join(rows[0]) + " |", "|---" + "|---:" * (len(rows[0]) - 1) + "|"]
    return "\n".join(text + ["| " + " | ".join(row) + " |" for row in rows[1:]])


def read_shares(folder):
    """{(what, share, answers): counters}"""
    found = {}
    for row in json.loads((folder / "shares.json").read_text())["benchmarks"]:
        parts = row["name"].split("/")  # sm_partition/decode/16/answers:8/iterations:1/real_time
        if row.get("error_occurred"):
            continue
        answers = next((int(part.split(":")[1]) for part in parts if part.startswith("answers:")), 0)
        found[parts[1], parts[2], answers] = row
    return found


def shares(folder):
    found = read_shares(folder)
    rows = [["answers have", "1 alone", "8 alone", "32 alone", "prompt alone, on the rest", "8 beside it", "99 %",
             "prompt beside 8", "32 beside it", "prompt beside 32"]]
    for share in sorted({key[1] for key in found}, key=lambda name: int(name) if name.isdigit() else 1000 + ("all", "plain", "priority").index(name)):
        def cell(what, answers, counter):
            row = found.get((what, share, answers))
            return f"{row[counter]:.2f}" if row else ""
        rows.append([{"all": "all", "plain": "two plain streams", "priority": "the same, answers first"}.get(share, share),
                     *(cell("decode", count, "decode_ms") for count in (1, 8, 32)), cell("prefill", 0, "prefill_ms"),
                     cell("together", 8, "decode_ms"), cell("together", 8, "decode_p99_ms"), cell("together", 8, "prefill_ms"),
                     cell("together", 32, "decode_ms"), cell("together", 32, "prefill_ms")])
    return table(rows)


def read_load(folder, name):
    """{cure: milliseconds of gaps (median, 99 %, longest) and of first tokens (median, 99 %), tokens per second}, in the order of CURES"""
    found = {}
    for row in json.loads((folder / "one_gpu.json").read_text())["benchmarks"]:
        _, cure, of, *_ = row["name"].split("/")  # one_gpu/chunks_512/long/iterations:1/real_time
        if of == name and not row.get("error_occurred"):
            found[cure] = [row[key] for key in ("gap_ms", "gap_p99_ms", "gap_max_ms", "first_ms", "first_p99_ms", "tokens_per_second")]
    served = folder / f"{name}_two_processes.json"
    if served.exists():
        run = json.loads(served.read_text())["results"][0]
        found["two"] = [*(1e3 * run["itl"][key] for key in ("median", "p99", "max")),
                        *(1e3 * run["ttft"][key] for key in ("median", "p99")), run["output_tokens_per_second"]]
    return {cure: found[cure] for cure in CURES if cure in found}


def load(folder, name):
    rows = [["", "gap, median", "99 %", "longest", "first token, median", "99 %", "tokens/s"]]
    for cure, values in read_load(folder, name).items():
        rows.append([CURES[cure], *(f"{value:.1f}" for value in values[:3]), *(f"{value:,.0f}" for value in values[3:])])
    return table(rows)


def plot(folder, name, file):
    """A row for each cure: from the median (a dot) to 99 % (a bar's end) and the longest gap (a line's end). Two panels, logarithmic."""
    found, svg, top, step, left = read_load(folder, name), Svg(), 64, 26, 240
    panels = [("gaps between tokens", 0, (2, 5, 10, 20, 50, 100, 200, 500, 1000)),
              ("first tokens", 3, (200, 500, 1000, 2000, 5000, 10000))]
    width, bottom = (WIDTH - left - 90) / 2, top + step * len(found)
    for number, (what, first, marks) in enumerate(panels):
        begin = left + number * (width + 50)

        def x_of(value):
            low, high = math.log(marks[0]), math.log(marks[-1])
            return begin + (min(max(math.log(value), low), high) - low) / (high - low) * width

        svg.text(begin, top - 22, what + ": median, 99 %" + (", longest" if first == 0 else ""), bold=True)
        for mark in marks:
            svg.line(x_of(mark), top - 8, x_of(mark), bottom, GRID)
            svg.text(x_of(mark), bottom + 16, time_of(mark / 1e3), "middle", FAINT, SMALL)
        for row, (cure, values) in enumerate(found.items()):
            y = top + step * row + 6
            colour = COLOURS[4 if cure.startswith("shares") else 6 if cure == "streams" else 7 if cure == "two" else 1]
            if first == 0:
                svg.text(left - 12, y + 4, CURES[cure], "end")
                svg.line(x_of(values[1]), y, x_of(values[2]), y, colour)
            svg.rectangle(x_of(values[first]), y - 3, x_of(values[first + 1]) - x_of(values[first]), 6, colour)
            svg.dot(x_of(values[first]), y, INK)
    file.write_text(svg.page(bottom + 30))


def fit(folder):
    steps = []  # is prefill, multiprocessors, operations, bytes, seconds
    found = read_shares(folder)
    total = 132
    for (what, share, answers), row in found.items():
        sms = total if share == "all" else int(share) if share.isdigit() else 0
        if what == "decode":
            steps.append((False, sms, answers * (2 * PARAMETERS + KEYS * PAIR), WEIGHTS + answers * KEYS * KEY,
                          row["decode_ms"] / 1e3))
        if what == "prefill":
            pairs = CHUNK * (KEYS - CHUNK) + CHUNK * (CHUNK + 1) / 2
            steps.append((True, total if share == "all" else total - sms, CHUNK * 2 * PARAMETERS + pairs * PAIR, WEIGHTS + KEYS * KEY,
                          row["prefill_ms"] / 1e3))
    shown = [(flops / sms / seconds, 0 if prefill else size / sms / seconds, size / seconds)
             for prefill, sms, flops, size, seconds in steps]
    rates = [max(row[i] for row in shown) for i in range(3)]
    for _ in range(20):
        limits = [max(range(3), key=lambda i: row[i] / rates[i]) for row in shown]
        for i in range(3):
            logs = [math.log(row[i]) for row, limit in zip(shown, limits) if limit == i]
            if logs:
                rates[i] = math.exp(sum(logs) / len(logs))
    errors = [abs(max(row[i] / rates[i] for i in range(3)) - 1) for row in shown]
    return (f"c = {rates[0] / 1e12:.2f} TFLOP/s, w = {rates[1] / 1e9:.1f} GB/s, W = {rates[2] / 1e12:.2f} TB/s; off by "
            f"{100 * sum(errors) / len(errors):.1f} % in the mean, {100 * max(errors):.1f} % at worst")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, required=True)
    parser.add_argument("table", choices=("shares", "long", "short", "full", "fit"))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="an SVG file of a load")
    arguments = parser.parse_args()
    try:
        if arguments.table in ("shares", "fit"):
            print({"shares": shares, "fit": fit}[arguments.table](arguments.folder))
        elif arguments.plot:
            plot(arguments.folder, arguments.table, arguments.plot)
        else:
            print(load(arguments.folder, arguments.table))
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"within_one_gpu_table: {error}")


if __name__ == "__main__":
    main()
