"""How a peer is timed: as bench/support/bench_cuda.cpp times our rungs, with the same names in the results.

The calls of a problem, over operands that rotate past the L2 cache, are captured into one CUDA graph of a millisecond
or more; the time of a call is the median replay, by events, divided by the number of calls. Data is random.
"""

import math
import statistics

import torch

DEVICE = "cuda"
TYPE = torch.bfloat16


def sets_of(make, bytes_of_call):
    """Operands for successive calls: together at least twice the L2 cache, and never fewer than two sets."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(max(1 + 2 * l2 / max(bytes_of_call, 1), 2), 200)
    return [make() for _ in range(int(count))]


def random(*shape, dtype=TYPE):
    """Uniform in [-1, 1)."""
    return torch.empty(shape, dtype=dtype, device=DEVICE).uniform_(-1, 1)


def capture(run):
    """run() as a graph, after it has warmed up outside of one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    return graph, kept


def median_seconds(launch, repeat):
    """The median of `repeat` launches, by events, after one that does not count."""
    times = []
    for _ in range(repeat + 1):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3)
    return statistics.median(times[1:])


def seconds_of_call(function, operands, repeat=15):
    """Seconds of function(*operands[i]), the median over replays of a graph of one call per set.

    Where these are short the graph goes over the sets again, as graph_of in bench_cuda.cpp does. What the calls of one
    turn return stays alive meanwhile, so that no call writes where another has just written.
    """
    def turn():
        return [function(*one) for one in operands]

    graph, kept = capture(turn)
    turns = math.ceil(min(max(1e-3 / median_seconds(graph.replay, 1), 1), 100))
    if turns > 1:
        graph, kept = capture(lambda: [turn() for _ in range(turns)][-1])
    seconds = median_seconds(graph.replay, repeat) / len(operands) / turns
    del graph, kept
    return seconds


class Results:
    """Rows as Google Benchmark writes them, so that one script reads ours and theirs."""

    def __init__(self):
        self.rows = []
        self.copy_bandwidth = None
        self.matmul_rate = None

    def ceilings(self):
        """B: bytes read and written by a copy of 4 GiB. G: the rate of cuBLAS at 8192 cubed."""
        source = torch.randint(0, 256, (4 << 30,), dtype=torch.uint8, device=DEVICE)
        target = torch.empty_like(source)
        # Launched plainly, as in bench_cuda.cpp.
        seconds = median_seconds(lambda: target.copy_(source), 11)
        self.copy_bandwidth = 2 * source.numel() / seconds
        del source, target
        a, b, out = random(8192, 8192), random(8192, 8192), torch.empty(8192, 8192, dtype=TYPE, device=DEVICE)
        seconds = seconds_of_call(lambda: torch.mm(a, b.t(), out=out), [()], 11)
        self.matmul_rate = 2 * 8192**3 / seconds

    def add(self, name, label, seconds, bytes_of_call=0.0, flops=0.0, **more):
        row = {"name": name, "label": label, "run_type": "iteration", "time_unit": "us",
               "real_time": seconds * 1e6, "median_us": seconds * 1e6}
        if bytes_of_call:
            row["bytes_per_second"] = bytes_of_call / seconds
        if flops:
            row["flops"] = flops / seconds
        if bytes_of_call and self.copy_bandwidth:
            row |= {"copy_bandwidth": self.copy_bandwidth,
                    "of_copy_bandwidth": bytes_of_call / seconds / self.copy_bandwidth}
        if flops and self.matmul_rate:
            row |= {"matmul_rate": self.matmul_rate, "of_matmul_rate": flops / seconds / self.matmul_rate}
        self.rows.append(row | more)
        print(f"{name:58} {seconds * 1e6:10.1f} us", flush=True)

    def failed(self, name, label, error):
        message = str(error).strip().split("\n")[0]
        self.rows.append({"name": name, "label": label, "error_occurred": True, "error_message": message})
        print(f"{name:58} {message}", flush=True)
