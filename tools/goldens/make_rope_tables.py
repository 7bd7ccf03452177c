#!/usr/bin/env python3
"""Rotary tables as transformers makes them.

    python3 tools/goldens/make_rope_tables.py tests/goldens/rope_tables.json

Each case holds what a config.json would say (head_dim, max_position_embeddings, rope: the entries of
rope_parameters), for dynamic NTK and longrope the seq_len that fixes the base or the factors, and the oracle's float32 answer: inv_freq
[head_dim / 2], attention_scaling (it multiplies cos and sin), and rows of cos and sin [head_dim / 2] at some positions,
scaling included. Needs torch and transformers.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA31 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}

LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 32.0, "original_max_position_embeddings": 4096,
            "short_factor": [1.0 + 0.03 * i for i in range(32)], "long_factor": [1.0 + 0.07 * i * i for i in range(32)]}

# name: (head_dim, max_position_embeddings, rope parameters, seq_len)
CASES = {
    "default_128": (128, 40960, {"rope_type": "default", "rope_theta": 1000000.0}, None),
    "default_64": (64, 2048, {"rope_type": "default", "rope_theta": 10000.0}, None),
    "default_20": (20, 512, {"rope_type": "default", "rope_theta": 500000.0}, None),
    "default_2": (2, 512, {"rope_type": "default", "rope_theta": 10000.0}, None),
    "linear_4": (64, 8192, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, None),
    "linear_3": (24, 512, {"rope_type": "linear", "rope_theta": 500000.0, "factor": 3.0}, None),
    "dynamic_at_original": (64, 2048, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 2048),
    "dynamic_below_original": (64, 2048, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 700),
    "dynamic_double": (64, 2048, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}, 4096),
    "dynamic_odd_length": (32, 64, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.5}, 257),
    "dynamic_factor_8": (128, 4096, {"rope_type": "dynamic", "rope_theta": 1000000.0, "factor": 8.0}, 32768),
    "yarn_qwen3": (128, 131072, YARN, None),
    "yarn_small": (24, 256, YARN | {"original_max_position_embeddings": 64}, None),
    "yarn_attention_factor": (64, 16384, YARN | {"rope_theta": 10000.0, "factor": 8.0, "attention_factor": 1.25,
                                                 "original_max_position_embeddings": 2048}, None),
    "yarn_betas": (64, 16384, YARN | {"rope_theta": 50000.0, "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0,
                                      "original_max_position_embeddings": 2048}, None),
    "yarn_mscale": (64, 163840, YARN | {"rope_theta": 10000.0, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707,
                                        "original_max_position_embeddings": 4096}, None),
    "yarn_not_truncated": (64, 131072, YARN | {"rope_theta": 150000.0, "factor": 32.0, "truncate": False,
                                               "original_max_position_embeddings": 4096}, None),
    "yarn_factor_1": (32, 4096, YARN | {"rope_theta": 10000.0, "factor": 1.0,
                                        "original_max_position_embeddings": 4096}, None),
    "llama31": (128, 131072, LLAMA31, None),
    "llama32": (64, 131072, LLAMA31 | {"factor": 32.0}, None),
    "llama3_small": (32, 512, LLAMA31 | {"rope_theta": 10000.0, "original_max_position_embeddings": 64}, None),
    "llama3_other_bands": (32, 1024, LLAMA31 | {"factor": 4.0, "low_freq_factor": 2.0, "high_freq_factor": 16.0,
                                                "original_max_position_embeddings": 256}, None),
    "longrope_short": (64, 131072, LONGROPE, 4096),
    "longrope_long": (64, 131072, LONGROPE, 4097),
    "longrope_attention_factor": (64, 131072, LONGROPE | {"attention_factor": 1.1}, 131072),
    "longrope_factor_1": (64, 4096, LONGROPE | {"factor": 1.0}, 700),
}


def rounded(tensor):
    return [float(f"{x:.9g}") for x in tensor.tolist()]


def make_case(head_dim, max_positions, rope, seq_len):
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
                         max_position_embeddings=max_positions, rope_parameters=dict(rope))
    rotary = LlamaRotaryEmbedding(config)
    if seq_len is not None:
        inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=seq_len)
        rotary.inv_freq.copy_(inv_freq)
        rotary.rope_type = "default"  # what seq_len fixed stays
    original = rope.get("original_max_position_embeddings", max_positions)
    positions = sorted({0, 1, 2, 17, original - 1, original, original + 1, 2 * original + 3, 4 * original - 1})
    cos, sin = rotary(torch.zeros(1), torch.tensor([positions]))
    case = {"head_dim": head_dim, "max_position_embeddings": max_positions, "rope": rope}
    if seq_len is not None:
        case["seq_len"] = seq_len
    half = head_dim // 2
    case |= {"inv_freq": rounded(rotary.inv_freq), "attention_scaling": float(rotary.attention_scaling)}
    case["rows"] = [
        {"position": p, "cos": rounded(cos[0, i, :half]), "sin": rounded(sin[0, i, :half])}
        for i, p in enumerate(positions)
    ]
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tables = {"oracle": {"transformers": transformers.__version__, "torch": torch.__version__}, "cases": []}
    for name, case in CASES.items():
        tables["cases"].append({"name": name} | make_case(*case))
    args.out.write_text(json.dumps(tables, separators=(",", ":")) + "\n")
    print(f"{args.out}: {len(CASES)} cases, {args.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
