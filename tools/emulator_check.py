#!/usr/bin/env python3
"""Compares what the emulator lane counts and reports (lab/EMULATOR.md) with a GPU, and writes lab/reports/emulator.txt.

    tools/emulator_check.py              on a machine with a GPU, ncu and compute-sanitizer
    tools/emulator_check.py --no-gpu     the emulator's side alone; the report says so

Both sides run lab/emulator/problems.cpp and planted.cu, the same sizes and values. The emulator's are built in
build/course, the GPU's in build/emulator-gpu. Sectors and bank conflicts agree where they are within 5 % of the GPU's.
Requests are shown beside them: nvcc unrolls loops, and where a part of a warp leaves one a round early, the two parts ask
one after the other. Each of the planted races on shared memory must be found by racecheck too, and clean kernels by
neither. Exit code 1 where something does not agree ("!").
"""
import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys

import labs

ROOT = labs.ROOT
REPORT = ROOT / "lab" / "reports" / "emulator.txt"
METRICS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}
RACES = ["race_sum_without_barrier", "race_partial_sums", "race_next_tile", "race_histogram", "race_inside_a_warp",
         "race_two_writers"]
CLEAN = ["clean_sum", "clean_warp_exchange", "conflicts_column", "conflicts_padded"]
TOLERANCE = 0.05


def run(command, may_fail=False):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0 and not may_fail:
        sys.exit(f"emulator_check: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done


def build(folder, options):
    if not (folder / "build.ninja").exists():
        run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Release", "-DLADDER_BENCH=OFF", *options])
    run(["ninja", "-C", folder, "emulator_problems"])
    return folder / "lab" / "emulator" / "emulator_problems"


def on_gpu(binary, problem):
    """The GPU's counters of all kernels that a problem launches."""
    printed = run(["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--metrics", ",".join(METRICS.values()), binary, "run",
                   problem]).stdout
    return counters(printed)


def counters(printed):
    """The sums of ncu's CSV output, by the names of METRICS."""
    names = {metric: name for name, metric in METRICS.items()}
    sums = dict.fromkeys(METRICS, 0)
    table = printed[printed.index('"ID"'):]
    for row in csv.DictReader(io.StringIO(table)):
        sums[names[row["Metric Name"]]] += round(float(row["Metric Value"].replace(",", "")))
    return sums


def agrees(emulated, measured):
    return abs(emulated - measured) <= TOLERANCE * measured


def emulator_reports(binary, kernel):
    """What the emulator says of a planted kernel; "" for nothing."""
    return run([binary, "run", kernel]).stdout.strip()


def racecheck_finds(binary, kernel):
    done = run(["compute-sanitizer", "--tool", "racecheck", "--error-exitcode", "9", binary, "run", kernel], may_fail=True)
    if done.returncode not in (0, 9):
        sys.exit(f"emulator_check: racecheck of {kernel} failed:\n{done.stdout}{done.stderr}")
    return done.returncode == 9


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--no-gpu", action="store_true", help="the emulator's side alone")
    no_gpu = arguments.parse_args().no_gpu

    emulator = build(ROOT / "build" / "course", ["-DLADDER_CUDA=OFF"])
    counted = json.loads(run([emulator, "count"]).stdout)
    gpu = None if no_gpu else build(ROOT / "build" / "emulator-gpu", ["-DLADDER_CUDA=ON"])
    lines = [labs.made_by("tools/emulator_check.py" + (" --no-gpu" if no_gpu else ""))]
    if no_gpu:
        lines.append("# NOT compared with a GPU: none was at hand. The columns are the emulator's alone.\n")
    else:
        lines.append("# GPU: " + run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).stdout)
    lines.append(f"{'problem':30}" + "".join(f"{name:>30}" for name in METRICS) + "\n")
    wrong = 0
    for problem, emulated in sorted(counted.items()):
        measured = None if no_gpu else on_gpu(gpu, problem)
        cells, differs = [], False
        for name in METRICS:
            if no_gpu:
                cells.append(str(emulated[name]))
                continue
            same = agrees(emulated[name], measured[name]) or name.endswith("requests")
            differs |= not same
            cells.append(f"{emulated[name]} of {measured[name]}" + ("" if same else " !"))
        wrong += differs
        lines.append(f"{problem:30}" + "".join(f"{cell:>30}" for cell in cells) + "\n")

    lines.append("\nplanted kernel: the emulator; racecheck\n")
    for kernel in RACES + CLEAN:
        said = emulator_reports(emulator, kernel)
        by_emulator = "a race" in said
        by_racecheck = None if no_gpu else racecheck_finds(gpu, kernel)
        expected = kernel in RACES
        fits = by_emulator == expected and by_racecheck in (None, expected)
        wrong += not fits
        other = "not run" if no_gpu else "race" if by_racecheck else "clean"
        lines.append(f"{kernel:30}{'race' if by_emulator else 'clean'}; {other}{'' if fits else ' !'}\n")
    lines.append(f"\n{wrong} problems or kernels do not agree\n" if not no_gpu else "")
    REPORT.write_text("".join(lines))
    print(REPORT.read_text(), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
