#!/usr/bin/env python3
"""Activation and RMSNorm at three plain shapes beside PyTorch, from raw results.

    python3 tools/shapes_table.py --device cuda bench/results/h200/shapes.json bench/results/h200/peers_shapes.json

The files are those of bench_step1 --benchmark_filter=shape: and of bench/peers/peers.py --only shapes; where one run was
repeated in several files the median counts. Ours is the rung that the engine takes, the last of the ladder. A ratio is
PyTorch's time over ours: above 1 ours is faster. On a CPU the time is the processor's, of one thread.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_results import DTYPES, read_results, seconds_of  # noqa: E402
from ladder_table import as_markdown, as_text, plain  # noqa: E402

PEERS = {"eager": "eager", "torch_compile": "torch.compile"}
SHAPE = "shape:"


def counted(rung):
    """Seconds; on a CPU of the processor, also of a peer that was measured there."""
    return rung.cpu_seconds or rung.seconds


def rows_of(results, device):
    rows = [["operator", "dtype", "shape", "ours", "us", "GB/s",
             *(cell for name in PEERS.values() for cell in (f"{name}, us", "ratio"))]]
    for op in results.ops(device):
        for problem, ladder in results.ladders(op, device, SHAPE).items():
            measured = [rung for rung in ladder if rung.seconds]
            if not measured:
                continue
            ours = measured[-1]
            parts = problem.split("/")
            dtype = next((part for part in parts if part in DTYPES), "bf16")  # our rungs on a GPU are measured in bf16
            kinds = [part for part in parts if part not in DTYPES and not part.startswith(SHAPE)]
            shape = next(part for part in parts if part.startswith(SHAPE)).removeprefix(SHAPE)
            seconds = counted(ours)
            moved = ours.more["bytes_per_second"] * seconds_of(ours.more)  # by one call
            row = [" ".join((f"`{op}`", *kinds)), dtype, f"({shape.replace('x', ', ')})", ours.variant,
                   plain(seconds * 1e6), plain(moved / seconds / 1e9)]
            theirs = {rung.variant: rung for rung in results.ladders(op, "peer").get(problem, []) if rung.seconds}
            for peer in PEERS:
                found = theirs.get(peer)
                row += [plain(counted(found) * 1e6), f"{counted(found) / seconds:.2f}"] if found else ["", ""]
            rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    try:
        rows = rows_of(read_results(*arguments.files), arguments.device)
    except (OSError, ValueError) as error:
        sys.exit(f"shapes_table: {error}")
    if len(rows) == 1:
        sys.exit(f"shapes_table: no shapes on the device {arguments.device} in {' '.join(arguments.files)}")
    print((as_markdown if arguments.markdown else as_text)(rows))


if __name__ == "__main__":
    main()
