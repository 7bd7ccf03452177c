#!/usr/bin/env python3
"""One operator's ladder as a table, and as a picture beside the roofline.

    ./ladder bench step1 --op rms_norm [--device cpu|cuda] [--problem REGEX] [--plot FILE.svg|png]
    python3 tools/ladder_table.py --from bench/results/h200/step1_layers.json --op rms_norm --markdown

The first form measures (bench_step1, whose Google Benchmark cases are the one source of numbers); the second reads
what was measured.
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_results import read_results, split_name  # noqa: E402
from ladder_plot import MOST_PROBLEMS, ladder_svg, no_picture, write_picture  # noqa: E402

NOT_TAKEN = "this rung does not take this problem"


def fail(message):
    print(f"ladder: {message}", file=sys.stderr)
    sys.exit(2)


def plain(value):
    """Three significant digits, never fewer than the whole part: 4.82, 50.1, 1412."""
    for bound, decimals in ((0.0995, 4), (0.995, 3), (9.95, 2), (99.5, 1)):
        if value < bound:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def table_of(ladder):
    """Rows of text, the head first. `ladder` is one problem's rungs, the slowest idea first.

    us: of one call. of B: bytes per second over the bandwidth, on a GPU that of a copy of as many bytes. of G:
    operations per second over its rate of matrix products. gain: how many times as fast as the rung below, the nearest
    one that was measured.
    """
    ladder = [rung for rung in ladder if rung.error != NOT_TAKEN]
    products = any(rung.flops for rung in ladder)
    unit, scale = ("GFLOP/s", 1e9) if all(rung.device == "cpu" for rung in ladder) else ("TFLOP/s", 1e12)
    rows = [["variant", "idea", "us", "GB/s", "of B", *([unit, "of G"] if products else []), "gain"]]
    below = None
    for rung in ladder:
        if rung.error:
            rows.append([rung.variant, rung.idea, rung.error, *[""] * (len(rows[0]) - 3)])
            continue
        row = [rung.variant, rung.idea, plain(rung.seconds * 1e6), plain(rung.bytes_per_second / 1e9),
               f"{rung.of_bandwidth:.2f}"]
        if products:
            row += [plain(rung.flops / scale), f"{rung.of_matmul_rate:.2f}"]
        gain = below.seconds / rung.seconds if below else 0
        rows.append([*row, f"{gain:.{2 if gain < 10 else 0}f}x" if below else ""])
        below = rung
    return rows


def is_number(cell):
    return re.fullmatch(r"[-+]?[\d.,]*x?", cell) is not None


def as_text(rows):
    """Columns of numbers to the right. A reason in place of a number widens no column."""
    def spills(row, i):
        return i > 0 and not any(row[i + 1:]) and row[i] and not is_number(row[i])

    kept = [[cell for row in rows if not spills(row, i) or row is rows[0] for cell in row[i:i + 1]]
            for i in range(len(rows[0]))]
    widths = [max(map(len, column)) for column in kept]
    numbers = [all(map(is_number, column[1:])) for column in kept]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if right and not spills(row, i) else cell.ljust(width)
                 for i, (cell, width, right) in enumerate(zip(row, widths, numbers))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows):
    columns = list(zip(*rows[1:]))
    rule = ["---:" if all(map(is_number, column)) and any(column) else "---" for column in columns]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:]))


def title_of(results, rung):
    machine = results.machine(rung)
    ceilings = [f"B = {machine.bandwidth / 1e9:.0f} GB/s"] if machine.bandwidth else []
    if rung.of_large_copy:
        of_size = rung.bytes_per_second / rung.of_bandwidth
        ceilings = [f"B = {plain(of_size / 1e9)} GB/s at this size, {machine.bandwidth / 1e9:.0f} GB/s at 4 GiB"]
    if rung.flops and machine.matmul_rate:
        unit, scale = ("GFLOP/s", 1e9) if rung.device == "cpu" else ("TFLOP/s", 1e12)
        ceilings.append(f"G = {machine.matmul_rate / scale:.0f} {unit}")
    return f"{rung.op}, {rung.problem}: " + ", ".join([machine.name or rung.device, *ceilings])


def gpu_is_there():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def names_of(binary):
    listed = subprocess.run([binary, "--benchmark_list_tests"], capture_output=True, text=True)
    if listed.returncode != 0:
        fail(f"{binary} --benchmark_list_tests: {listed.stderr.strip()}")
    return listed.stdout.split()


def choose(names, op, device, problem):
    """The benchmarks of one ladder. Without a choice of problems, of several dtypes bf16 alone."""
    rungs = [(name, split) for name in names if (split := split_name(name)) and split[0] == op and split[2] == device]
    if not problem and any("bf16" in split[1].split("/") for _, split in rungs):
        problem = r"\bbf16\b"
    return [name for name, split in rungs if not problem or re.search(problem, split[1])]


def measure(binary, names, op, device, problem, extra):
    """Results of a run of the chosen benchmarks and the ceilings."""
    chosen = choose(names, op, device, problem)
    if not chosen:
        problems = dict.fromkeys(s[1] for name in names if (s := split_name(name)) and s[0] == op and s[2] == device)
        fail(f"--problem {problem}: {op} has {', '.join(problems)}")
    ceilings = ["ceiling_of_gpu"] if device == "cuda" else ["ceiling_read_bandwidth", "ceiling_matmul_rate"]
    of_dtype = {part for name in chosen for part in split_name(name)[1].split("/")} & {"f32", "bf16"} or {"f32"}
    wanted = chosen + [name for name in names if name.startswith(tuple(ceilings)) and (
        not name.startswith("ceiling_matmul_rate") or name.split("/")[1] in of_dtype)]
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/results.json"
        command = [binary, f"--benchmark_filter=^({'|'.join(re.escape(name) for name in wanted)})$",
                   f"--benchmark_out={file}", "--benchmark_out_format=json"]
        if device == "cpu":
            command += ["--benchmark_min_time=0.05", "--benchmark_repetitions=3"]
        process = subprocess.Popen([*command, *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        done = 0
        for line in process.stdout:
            done += line.startswith(tuple(wanted)) and not re.search(r"_(mean|median|stddev|cv)\b", line)
            if sys.stderr.isatty():
                total = len(wanted) * (3 if device == "cpu" else 1)
                print(f"\rladder: measuring {op}, {done} of {total} ", end="", file=sys.stderr)
        problems = process.stderr.read().strip().split("\n")
        if sys.stderr.isatty():
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
        if process.wait() != 0 or not os.path.getsize(file):
            fail(f"the benchmarks of {op} failed: {problems[-1]}")
        return read_results(file)


def measured(arguments, extra):
    """(results, device): of the GPU where there is one, unless --device says otherwise."""
    names = names_of(arguments.binary)
    devices = {}
    for name in names:
        if (split := split_name(name)) and not name.startswith("ceiling_"):
            devices.setdefault(split[0], set()).add(split[2])
    if arguments.op not in devices:
        fail(f"--op {arguments.op}: no such operator; there are {', '.join(devices)}")
    device = arguments.device or ("cuda" if "cuda" in devices[arguments.op] and gpu_is_there() else "cpu")
    if device not in devices[arguments.op]:
        if arguments.device:
            here = ", ".join(devices[arguments.op])
            fail(f"--op {arguments.op} --device {device}: in this build it is measured on {here} only")
        fail(f"--op {arguments.op}: measured on a GPU only, and there is none here")
    if device == "cuda" and not gpu_is_there():
        fail("--device cuda: no GPU here")
    return measure(arguments.binary, names, arguments.op, device, arguments.problem, extra), device


def recorded(arguments):
    try:
        results = read_results(*arguments.recorded)
    except (OSError, ValueError) as error:
        fail(f"--from: {error}")
    devices = [arguments.device] if arguments.device else ["cuda", "cpu"]
    for device in devices:
        if arguments.op in results.ops(device):
            return results, device
    known = ", ".join(dict.fromkeys(op for device in devices for op in results.ops(device)))
    on = f" on the device {arguments.device}" if arguments.device else ""
    fail(f"--op {arguments.op}: no such operator{on} in {' '.join(arguments.recorded)}; there are {known or 'none'}")


def plot(file, results, op, ladders):
    """The problems with the most bytes where there are more than a picture holds."""
    drawn = {name: rungs for name, rungs in ladders.items() if any(rung.seconds for rung in rungs)}
    if not drawn:
        fail(f"--plot: no rung of {op} was measured")
    if len(drawn) > MOST_PROBLEMS:
        size = {name: max(rung.bytes_per_second * rung.seconds for rung in rungs) for name, rungs in drawn.items()}
        largest = max(size, key=size.get)
        print(f"ladder: --plot draws {largest}, the largest of {len(drawn)} problems; --problem REGEX chooses up to "
              f"{MOST_PROBLEMS}", file=sys.stderr)
        drawn = {largest: drawn[largest]}
    machine = results.machine(next(iter(drawn.values()))[0])
    write_picture(file, ladder_svg(op, machine, drawn))
    print(f"ladder: wrote {file}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message)


def main():
    parser = Parser(prog="ladder bench step1", allow_abbrev=False,
                    description="One operator's ladder as a table and as a picture.",
                    epilog="Other arguments go to Google Benchmark.")
    parser.add_argument("--op", required=True, help="the operator, as the benchmarks name it")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="cuda where there is a GPU, unless this says cpu")
    parser.add_argument("--problem", metavar="REGEX", help="the sizes whose name matches; on the CPU bf16 by default")
    parser.add_argument("--plot", metavar="FILE", help="draw the ladder beside the roofline: .svg or .png")
    parser.add_argument("--markdown", action="store_true", help="tables for a README")
    parser.add_argument("--binary", help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="recorded", nargs="+", metavar="FILE",
                        help="results to read instead of measuring")
    arguments, extra = parser.parse_known_args()
    if arguments.plot and (reason := no_picture(arguments.plot)):
        fail(f"--plot {arguments.plot}: {reason}")
    if arguments.problem:
        try:
            re.compile(arguments.problem)
        except re.error as error:
            fail(f"--problem {arguments.problem}: not a regular expression: {error}")
    unknown = [argument for argument in extra if not argument.startswith("--benchmark_")]
    if unknown:
        fail(f"{unknown[0]}: no such argument; see ./ladder bench step1 --op NAME --help")
    if not arguments.recorded and not arguments.binary:
        fail("expected --from FILE; ./ladder bench step1 --op measures")
    results, device = recorded(arguments) if arguments.recorded else measured(arguments, extra)
    ladders = results.ladders(arguments.op, device, arguments.problem)
    if not ladders:
        fail(f"--problem {arguments.problem}: {arguments.op} has {', '.join(results.ladders(arguments.op, device))}")
    for ladder in ladders.values():
        title = title_of(results, next((rung for rung in ladder if rung.seconds), ladder[0]))
        print(f"{title}\n\n{(as_markdown if arguments.markdown else as_text)(table_of(ladder))}\n")
    if not arguments.markdown:
        products = any(rung.flops for ladder in ladders.values() for rung in ladder)
        print("of B: of the bandwidth measured in the same run"
              + (", by a copy of as many bytes" if device == "cuda" else "")
              + (", of G: of the rate of matrix products" if products else "") + "; gain: over the rung below.")
    if arguments.plot:
        plot(arguments.plot, results, arguments.op, ladders)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it without a word
    main()
