"""PyTorch at the three plain shapes of bench/step1_layers/shapes_bench.cpp: eager, and torch.compile.

The functions are what a user of PyTorch writes. On a GPU calls are replayed from a CUDA graph (measure.py), on a CPU
they are timed plainly; operands and results rotate past the last cache on both. What a call returns lies in memory
that an earlier call has used: new pages would cost more than the operator.
"""

import ctypes
import math
import resource
import time

import torch
import torch.nn.functional as F

SHAPES = ((400, 800), (4000, 8000), (8, 4000, 8000))
ROTATION_BYTES = 64 << 20  # as rotation_bytes() of bench_support.cpp, for caches of up to half as much


def silu_and_mul(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def gelu(x):
    return F.gelu(x)


def rms_norm(x, weight):
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def fused_add_rms_norm(x, residual, weight):
    residual.add_(x)
    return rms_norm(residual, weight)


# name: the function, values read and written per value of the input, how many tensors of the shape it takes, weight
OPERATORS = {
    "silu_and_mul": (silu_and_mul, 1.5, 1, False),
    "gelu": (gelu, 2, 1, False),
    "rms_norm": (rms_norm, 2, 1, True),
    "fused_add_rms_norm": (fused_add_rms_norm, 4, 2, True),
}


def keep_freed_memory():
    """glibc gives large blocks back to the kernel when they are freed, and every call pays for new pages."""
    trim_threshold, mmap_max = -1, -4  # as malloc.h numbers them
    ctypes.CDLL(None).mallopt(mmap_max, 0)
    ctypes.CDLL(None).mallopt(trim_threshold, -1)


def give_back_freed_memory():
    """Between two problems: what is kept for one does not fit the next."""
    ctypes.CDLL(None).malloc_trim(0)


def seconds_on_cpu(function, operands):
    """Of one call, on the clock and of the processor: the first decile of half a second or more.

    Not the median: now and then results come in new pages all the same, which no kernel could help.
    """
    results = [None] * len(operands)

    def page_faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    for _ in range(10):  # compiles, and goes on until the results find their places in memory
        before = page_faults()
        for i, one in enumerate(operands):
            results[i] = function(*one)
        if page_faults() - before < 100:
            break
    elapsed, worked, begin = [], [], time.perf_counter()
    while time.perf_counter() - begin < 0.5 or len(elapsed) < 5:
        i = len(elapsed) % len(operands)
        start, start_of_work = time.perf_counter(), time.process_time()
        results[i] = function(*operands[i])
        worked.append(time.process_time() - start_of_work)
        elapsed.append(time.perf_counter() - start)
    return tuple(sorted(times)[len(times) // 10] for times in (elapsed, worked))


def operand_sets(device, dtype, shape, tensors, weight, traffic):
    def random(*size):
        return torch.empty(size, dtype=dtype, device=device).uniform_(-1, 1)

    def make():
        return tuple(random(*shape) for _ in range(tensors)) + ((random(shape[-1]),) if weight else ())

    if device == "cuda":
        from measure import sets_of
        return sets_of(make, traffic)
    fewest = 1 if traffic > 16 * ROTATION_BYTES else 2
    return [make() for _ in range(int(min(max(1 + ROTATION_BYTES / traffic, fewest), 512)))]


def shapes(results, device):
    if device == "cuda":
        from measure import seconds_of_call
        dtypes = {"": torch.bfloat16}  # as our rungs are measured there
    else:
        keep_freed_memory()
        dtypes = {"/f32": torch.float32, "/bf16": torch.bfloat16}

    def add(name, label, function, operands, traffic):
        if device == "cuda":
            results.add(name, label, seconds_of_call(function, operands), traffic)
        else:
            elapsed, worked = seconds_on_cpu(function, operands)
            results.add(name, label, elapsed, traffic, cpu_time=worked * 1e6)

    for shape in SHAPES:
        for op, (function, values, tensors, weight) in OPERATORS.items():
            for suffix, dtype in dtypes.items():
                traffic = values * math.prod(shape) * dtype.itemsize
                operands = operand_sets(device, dtype, shape, tensors, weight, traffic)
                kind = "/erf" if op == "gelu" else ""
                problem = f"{op}/shape:{'x'.join(map(str, shape))}{kind}{suffix}"
                torch._dynamo.reset()
                compiled = torch.compile(function, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")
                add(f"{problem}/peer:eager", "PyTorch, eager", function, operands, traffic)
                add(f"{problem}/peer:torch_compile", "torch.compile, max-autotune", compiled, operands, traffic)
                del operands
                if device == "cuda":
                    torch.cuda.empty_cache()
                else:
                    give_back_freed_memory()
