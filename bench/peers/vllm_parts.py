"""vLLM's parts on quantized weights: Marlin, CUTLASS on 8-bit codes, and the whole engine for one request.

Needs vLLM in PYTHONPATH (measured with 0.24). Names and traffic are those of the benchmarks beside which they stand
(bench/step8_advanced/quantized_matmul_bench.cpp). Random weights.
"""

import os
import statistics
import time
from pathlib import Path

import torch

from measure import DEVICE, TYPE, random, seconds_of_call, sets_of

MODELS = Path(__file__).resolve().parents[2] / "models"
SHAPES = ((8192, 8192), (28672, 4096), (4096, 14336), (6144, 4096), (4096, 4096))
GROUP = 128


def marlin(results):
    """y = x W^T, 4-bit weights in groups of 128 with scales of x's type, symmetric."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.quantization.utils.marlin_utils import (marlin_make_workspace_new,
                                                                            marlin_permute_scales)
    from vllm.scalar_type import scalar_types
    workspace = marlin_make_workspace_new(torch.device(DEVICE, 0))
    none = torch.empty(0, dtype=torch.int, device=DEVICE)
    for n, k in SHAPES:
        def make():
            packed = torch.randint(-2**31, 2**31 - 1, (k // 8, n), dtype=torch.int, device=DEVICE)
            scales = random(k // GROUP, n) / 100
            return (_custom_ops.gptq_marlin_repack(packed, none, k, n, 4),
                    marlin_permute_scales(scales, k, n, GROUP))
        weights = sets_of(make, n * k // 2)
        for m in (1, 4, 8, 16, 32, 64, 1024):
            def multiply(x, codes, scales):
                return _custom_ops.marlin_gemm(x, None, codes, None, scales, None, None, none, none, none, workspace,
                                               scalar_types.uint4b8, x.size(0), n, k, use_fp32_reduce=True)
            seconds = seconds_of_call(multiply, [(random(m, k), *weight) for weight in weights])
            results.add(f"quantized_matmul/w4_g128/{n}x{k}/m:{m}/peer:marlin", "vllm marlin_gemm", seconds,
                        n * k / 2 + 2 * n * k / GROUP + 2.0 * m * (n + k), 2.0 * m * n * k)
        del weights


def cutlass(results):
    """FP8 on both sides, a scale per row of either: the product alone, and with the rounding of x in front of it."""
    from vllm import _custom_ops

    def with_codes(codes, x_scales, w, w_scales):
        return _custom_ops.cutlass_scaled_mm(codes, w, x_scales, w_scales, TYPE)

    def with_rounding(x, w, w_scales):
        codes, scales = _custom_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        return _custom_ops.cutlass_scaled_mm(codes, w, scales, w_scales, TYPE)

    for n, k in SHAPES:
        weights = sets_of(lambda: (random(n, k).to(torch.float8_e4m3fn).t(),
                                   torch.full((1, n), 0.01, device=DEVICE)), n * k)
        for m in (1, 8, 16, 32, 64, 512, 8192) if n == k == 8192 else (1, 16, 32, 512):
            rows = [(random(m, k), w, w_scales) for w, w_scales in weights]
            rounded = [(*_custom_ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True), w, w_scales)
                       for x, w, w_scales in rows]
            traffic, flops = n * k + 2.0 * m * (n + k), 2.0 * m * n * k
            name = f"quantized_matmul/fp8_w8a8/{n}x{k}/m:{m}/peer:cutlass"
            results.add(name + "_codes", "vllm cutlass_scaled_mm", seconds_of_call(with_codes, rounded), traffic, flops)
            results.add(name, "vllm scaled_fp8_quant, cutlass_scaled_mm", seconds_of_call(with_rounding, rows), traffic,
                        flops)
            del rows, rounded
        del weights


def one_request(results, models):
    """The engine, LLM.generate in this process: seconds a token, by what 96 tokens more take; the median of five.

    One request meets only the smallest CUDA graphs, so room for 16 is enough, and it starts the sooner. 4 bits go to
    Machete on Hopper; VLLM_DISABLED_KERNELS=MacheteLinearKernel takes Marlin.
    """
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM, SamplingParams
    for model in models:
        start = time.time()
        engine = LLM(model=str(MODELS / model), load_format="dummy", skip_tokenizer_init=True, max_model_len=2048,
                     max_num_seqs=16, max_num_batched_tokens=2048, gpu_memory_utilization=0.85)
        loaded = time.time() - start
        prompt = [{"prompt_token_ids": list(range(100, 132))}]

        def seconds(num_tokens):
            sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
            times = []
            for _ in range(5):
                begin = time.perf_counter()
                engine.generate(prompt, sampling, use_tqdm=False)
                times.append(time.perf_counter() - begin)
            return statistics.median(times)

        seconds(32)
        few, many = seconds(32), seconds(128)
        results.add(f"latency/{model}/in:32/peer:vllm", f"vLLM, one request; it took {loaded:.0f} s to start",
                    (many - few) / 96, tokens_per_second=128 / many)
        del engine
        torch.cuda.empty_cache()
