"""Peers of single operators: cuBLAS, scaled_dot_product_attention, torch.compile, sampling in plain PyTorch.

Each problem has the name and the traffic of the benchmark that it stands beside (bench/step1_layers/cuda_bench.cpp).
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from measure import DEVICE, TYPE, random, seconds_of_call, sets_of

VOCABULARY = 151936


def matmul(results):
    """cuBLAS, by torch.mm, at the weights of the models; y = x W^T, all bf16."""
    weights = {"8b_gate_up": (24576, 4096), "8b_down": (4096, 12288), "8b_qkv": (6144, 4096), "8b_o": (4096, 4096),
               "0.6b_gate_up": (6144, 1024), "0.6b_down": (1024, 3072), "0.6b_o": (1024, 2048),
               "0.6b_qkv": (4096, 1024), "0.6b_lm_head": (VOCABULARY, 1024)}
    for name, (n, k) in weights.items():
        matrices = sets_of(lambda: random(n, k), 2 * n * k)
        for m in (1, 2, 4, 8, 16, 32, 64):
            operands = [(random(m, k), w.t(), torch.empty(m, n, dtype=TYPE, device=DEVICE)) for w in matrices]
            seconds = seconds_of_call(lambda x, w, y: torch.mm(x, w, out=y), operands)
            results.add(f"matmul/{name}/m:{m}/peer:cublas", "torch.mm", seconds,
                        2.0 * (m * k + n * k + m * n), 2.0 * m * n * k)
        del matrices, operands
    results.add("matmul/square/m:8192/peer:cublas", "torch.mm", 2 * 8192**3 / results.matmul_rate,
                6.0 * 8192**2, 2.0 * 8192**3)


def codes(results):
    """cuBLAS on 8-bit codes, which x is rounded to before: torch._scaled_mm with a scale per row, and torch._int_mm, whose
    sums have no scales yet; beside torch.mm in bf16."""
    n = k = 8192
    for m in (17, 32, 64, 128, 512, 1024, 8192):
        flops, name = 2.0 * m * n * k, f"{n}x{k}/m:{m}"
        dense = [(random(m, k), w.t()) for w in sets_of(lambda: random(n, k), 2 * n * k)]
        results.add(f"quantized_matmul/bf16/{name}/peer:cublas", "torch.mm", seconds_of_call(torch.mm, dense),
                    2.0 * (m * k + n * k + m * n), flops)
        del dense
        x_scale, w_scale = (torch.full(shape, 0.01, device=DEVICE) for shape in ((m, 1), (1, n)))
        floats = [(random(m, k).to(torch.float8_e4m3fn), w.t())
                  for w in sets_of(lambda: random(n, k).to(torch.float8_e4m3fn), n * k)]
        for fast in (False, True):
            seconds = seconds_of_call(lambda x, w: torch._scaled_mm(
                x, w, x_scale, w_scale, out_dtype=TYPE, use_fast_accum=fast), floats)
            results.add(f"quantized_matmul/fp8_w8a8/{name}/peer:scaled_mm{'_fast' if fast else ''}",
                        f"torch._scaled_mm, rowwise scales, use_fast_accum={fast}", seconds,
                        1.0 * (m * k + n * k + 2 * m * n), flops)
        del floats
        integers = [(torch.randint(-128, 128, (m, k), dtype=torch.int8, device=DEVICE), w.t())
                    for w in sets_of(lambda: torch.randint(-128, 128, (n, k), dtype=torch.int8, device=DEVICE), n * k)]
        results.add(f"quantized_matmul/w8a8/{name}/peer:int_mm", "torch._int_mm, sums of 32 bits",
                    seconds_of_call(torch._int_mm, integers), 1.0 * (m * k + n * k + 4 * m * n), flops)
        del integers


def attention(results):
    """Causal scaled_dot_product_attention over contiguous keys, 32 query and 8 key/value heads of 128.

    A backend that does not take groups of query heads gets every key and value head four times instead: the same
    operations, and four times the keys to read.
    """
    heads, kv_heads, dim = 32, 8, 128
    backends = {"sdpa_cudnn": (SDPBackend.CUDNN_ATTENTION, "cuDNN"),
                "sdpa_flash": (SDPBackend.FLASH_ATTENTION, "FlashAttention-2")}
    for length in (2048, 4096, 8192, 16384):
        flops = 4.0 * heads * dim * length * (length + 1) / 2
        for peer, (backend, library) in backends.items():
            for keys in (kv_heads, heads):
                operands = [tuple(random(1, count, length, dim) for count in (heads, keys, keys)) for _ in range(2)]
                grouped = keys < heads
                name = f"paged_attention/prefill/{length}/peer:{peer}"
                label = f"scaled_dot_product_attention, {library} backend, contiguous, {keys} KV heads"
                try:
                    with sdpa_kernel(backend):
                        seconds = seconds_of_call(lambda q, k, v: F.scaled_dot_product_attention(
                            q, k, v, is_causal=True, enable_gqa=grouped), operands)
                except RuntimeError as error:  # no such backend in this PyTorch, or none that takes the groups
                    refused = error
                    continue
                results.add(name, label, seconds, 4.0 * length * (heads + keys) * dim, flops)
                break
            else:
                results.failed(name, label, refused)


def rms_norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def fused_add_rms_norm(x, residual, weight):
    residual = residual + x
    return rms_norm(residual, weight), residual


def silu_and_mul(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate.float()).to(x.dtype) * up


def rotate(x, cosine, sine):
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype)


def rotary_embedding(positions, q, k, table):
    cosine, sine = table[positions].unsqueeze(1).chunk(2, -1)
    return rotate(q, cosine, sine), rotate(k, cosine, sine)


def elementwise(results):
    """torch.compile: one fused kernel each, where it can."""
    for rows in (16384, 1):
        hidden, width, heads, kv_heads, dim = 4096, 12288, 32, 8, 128
        weight, table = random(hidden), random(4096, dim, dtype=torch.float32)
        positions = torch.arange(rows, device=DEVICE) % 4096
        problems = {
            f"silu_and_mul/tokens:{rows}/width:{width}":
                (silu_and_mul, 6.0 * rows * width, lambda: (random(rows, 2 * width),)),
            f"rms_norm/rows:{rows}/width:{hidden}":
                (rms_norm, 4.0 * rows * hidden, lambda: (random(rows, hidden), weight)),
            f"fused_add_rms_norm/rows:{rows}/width:{hidden}":
                (fused_add_rms_norm, 8.0 * rows * hidden,
                 lambda: (random(rows, hidden), random(rows, hidden), weight)),
            f"rotary_embedding/tokens:{rows}":
                (rotary_embedding, 4.0 * rows * (heads + kv_heads) * dim,
                 lambda: (positions, random(rows, heads, dim), random(rows, kv_heads, dim), table)),
        }
        for name, (function, traffic, make) in problems.items():
            torch._dynamo.reset()
            compiled = torch.compile(function, dynamic=False, fullgraph=True, mode="max-autotune-no-cudagraphs")
            seconds = seconds_of_call(compiled, sets_of(make, traffic))
            results.add(f"{name}/peer:torch_compile", "torch.compile, max-autotune", seconds, traffic)


def sample_by_sorting(logits, k, p):
    """Sort, cut, scatter back: what engines do without a kernel of their own."""
    values, ids = logits.sort(dim=-1)
    kth = values.gather(1, values.size(1) - k.unsqueeze(1))
    values = values.masked_fill(values < kth, float("-inf"))
    cut = values.softmax(-1).cumsum(-1) <= 1 - p.unsqueeze(1)
    cut[:, -1] = False
    values = values.masked_fill(cut, float("-inf"))
    probabilities = torch.empty_like(values).scatter_(1, ids, values).softmax(-1)
    return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)


def sample_of_largest(logits, k, p):
    """The 50 largest first, and the rest within them; needs one k that holds for all rows."""
    values, ids = logits.topk(50, dim=-1)
    cut = values.softmax(-1).cumsum(-1) - values.softmax(-1) >= p.unsqueeze(1)
    probabilities = values.masked_fill(cut, float("-inf")).softmax(-1)
    best = (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1, keepdim=True)
    return ids.gather(1, best)


def sampling(results):
    """Top-k 50 and top-p 0.95 over rows of 151,936 logits, and the plain draw."""
    for rows in (1, 128):
        traffic = 4.0 * rows * VOCABULARY

        def make():
            parts = [random(rows, VOCABULARY, dtype=torch.float32) for _ in range(4)]
            return (2 * sum(parts), torch.full((rows,), 50, device=DEVICE), torch.full((rows,), 0.95, device=DEVICE))

        operands = sets_of(make, traffic)[:20]
        for peer, function in {"torch_sort": sample_by_sorting, "torch_topk": sample_of_largest}.items():
            seconds = seconds_of_call(function, operands, 5)
            results.add(f"draw/top_k_top_p/rows:{rows}/peer:{peer}", function.__doc__.split(":")[0].split(";")[0],
                        seconds, traffic)
