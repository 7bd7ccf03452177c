"""The rungs in a JSON file of Google Benchmark (ours), or of bench/peers/peers.py (theirs).

A benchmark is called "<op>/<problem>/<variant>", the variant "cuda:<name>" on a GPU and "peer:<name>" of a peer; its
label is the rung's idea. Bytes and operations come as rates, and the machine's ceilings as fractions of them, all from
the same run.
"""

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

SUFFIX = re.compile(r"^(iterations|repeats|min_time|min_warmup_time|threads):|^(real|manual|process)_time$|^process$")
DTYPES = {"f32", "bf16", "f16"}


@dataclass
class Rung:
    op: str
    problem: str
    device: str  # "cpu", "cuda" or "peer"
    variant: str
    idea: str = ""
    error: str = ""  # why it was not measured
    seconds: float = 0.0  # the median where the run was repeated
    cpu_seconds: float = 0.0  # of the calling thread: on a busy machine the fairer of the two
    bytes_per_second: float = 0.0
    flops: float = 0.0  # per second, of matrix products
    operations: float = 0.0  # per second, other arithmetic
    of_bandwidth: float = 0.0  # on a GPU: of a copy of as many bytes
    of_large_copy: float = 0.0  # of a copy of 4 GiB
    of_matmul_rate: float = 0.0
    more: dict = field(default_factory=dict)  # everything else in the row

    @property
    def arithmetic(self):
        """Operations per second of any kind."""
        return self.flops or self.operations

    @property
    def intensity(self):
        """Operations per byte: where the problem stands under the roofline. 0: no arithmetic to speak of."""
        return self.arithmetic / self.bytes_per_second if self.bytes_per_second else 0.0


@dataclass
class Machine:
    """What the rungs are measured against."""
    name: str = ""
    bandwidth: float = 0.0  # bytes per second: B
    matmul_rate: float = 0.0  # operations per second: G


@dataclass
class Results:
    rungs: list
    machines: dict  # by device; of the CPU one per dtype too: "cpu/bf16"
    context: dict

    def machine(self, rung):
        for dtype in DTYPES.intersection(rung.problem.split("/")):
            if f"{rung.device}/{dtype}" in self.machines:
                return self.machines[f"{rung.device}/{dtype}"]
        return self.machines.get(rung.device, Machine())

    def ops(self, device):
        return list(dict.fromkeys(rung.op for rung in self.rungs if rung.device == device))

    def ladders(self, op, device, problem=None):
        """The rungs of each problem whose name matches the regular expression, in table order."""
        ladders = {}
        for rung in self.rungs:
            if rung.op == op and rung.device == device and (not problem or re.search(problem, rung.problem)):
                ladders.setdefault(rung.problem, []).append(rung)
        return ladders


def split_name(name):
    """(op, problem, device, variant), or None where it is not the name of a rung."""
    parts = [part for part in name.split("/") if not SUFFIX.match(part)]
    if len(parts) < 3:
        return None
    device, _, variant = parts[-1].rpartition(":")
    return parts[0], "/".join(parts[1:-1]), device or "cpu", variant


def median_of(rows, key):
    values = [row[key] for row in rows if key in row]
    return statistics.median(values) if values else 0.0


def seconds_of(row, clock="real_time"):
    return row.get(clock, 0.0) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[row["time_unit"]]


def rung_of(rows):
    """One rung from the repetitions of its benchmark."""
    op, problem, device, variant = split_name(rows[0]["name"])
    rung = Rung(op, problem, device, variant, idea=rows[0].get("label", ""), more=rows[0])
    failed = [row for row in rows if row.get("error_occurred") or row.get("skipped")]
    if failed:
        rung.error = failed[0].get("error_message") or failed[0].get("skip_message") or "not measured"
        return rung
    rung.seconds = statistics.median(seconds_of(row) for row in rows)
    if device != "cuda":  # there the calling thread prepares and waits, and events measure
        rung.cpu_seconds = statistics.median(seconds_of(row, "cpu_time") for row in rows)
    rung.bytes_per_second = median_of(rows, "bytes_per_second")
    rung.flops = median_of(rows, "flops")
    rung.operations = median_of(rows, "operations")
    rung.of_bandwidth = median_of(rows, "of_read_bandwidth" if device == "cpu" else "of_copy_bandwidth")
    rung.of_large_copy = median_of(rows, "of_large_copy")
    rung.of_matmul_rate = median_of(rows, "of_matmul_rate")
    return rung


def machines_of(by_name, rungs):
    """The ceilings: from their own benchmarks, else from the fractions that the rungs give."""
    machines = {}
    for name, rows in by_name.items():
        parts = [part for part in name.split("/") if not SUFFIX.match(part)]
        if not parts[0].startswith("ceiling_") or rows[0].get("error_occurred"):
            continue
        device = "cuda" if parts[0] == "ceiling_of_gpu" else "cpu"
        dtype = f"/{parts[1]}" if device == "cpu" and len(parts) > 1 else ""
        machine = machines.setdefault(device + dtype, Machine())
        machine.name = rows[0].get("label", "")
        machine.bandwidth = median_of(rows, "bytes_per_second") or machine.bandwidth
        machine.matmul_rate = median_of(rows, "flops") or machine.matmul_rate
    for key, machine in machines.items():
        machine.bandwidth = machine.bandwidth or machines.get(key.split("/")[0], Machine()).bandwidth
    for rung in rungs:
        machine = machines.setdefault(rung.device, Machine())
        if not machine.bandwidth and (of_bandwidth := rung.of_large_copy or rung.of_bandwidth):
            machine.bandwidth = rung.bytes_per_second / of_bandwidth
        if not machine.matmul_rate and rung.of_matmul_rate and rung.device != "cpu":
            machine.matmul_rate = rung.flops / rung.of_matmul_rate
    return machines


def read_results(*files):
    by_name, context = {}, {}
    for file in files:
        try:
            data = json.loads(Path(file).read_text())
        except ValueError as error:
            raise ValueError(f"{file}: not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ValueError(f"{file}: not a result of Google Benchmark")
        context |= data.get("context", {})
        for row in data.get("benchmarks", []):
            if row.get("run_type") != "aggregate":
                by_name.setdefault(row["name"], []).append(row)
    rungs = [rung_of(rows) for name, rows in by_name.items() if split_name(name) and not name.startswith("ceiling_")]
    return Results(rungs, machines_of(by_name, rungs), context)
