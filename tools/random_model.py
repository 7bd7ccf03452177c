#!/usr/bin/env python3
"""Random weights for a model's shape, to try on a size what reads and writes whole checkpoints.

    tools/random_model.py models/qwen3-0.6b --out /tmp/qwen3-0.6b

The folder's config.json says the shape (Qwen3 and Llama, dense); OUT gets it and model.safetensors in bfloat16. Weights are normal
numbers with the config's initializer_range as standard deviation, norms are 1. They come from one sequence of 65,537 numbers, over and
over, which no row's length divides: a gigabyte takes seconds. Needs nothing but Python.
"""
import argparse
import json
import random
import shutil
import struct
import sys
from pathlib import Path

NUM = 65537
FAMILIES = {"Qwen3ForCausalLM": True, "LlamaForCausalLM": False}  # whether queries and keys have norms


def bf16(x):
    return struct.pack("<f", x)[2:]


def tensors_of(config):
    """(name, shape), in the order of the file; a shape of one number is a norm's."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    dim = config.get("head_dim") or hidden // heads
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.self_attn.q_proj.weight", (heads * dim, hidden)
        yield f"{at}.self_attn.k_proj.weight", (kv_heads * dim, hidden)
        yield f"{at}.self_attn.v_proj.weight", (kv_heads * dim, hidden)
        yield f"{at}.self_attn.o_proj.weight", (hidden, heads * dim)
        if FAMILIES[config["architectures"][0]]:
            yield f"{at}.self_attn.q_norm.weight", (dim,)
            yield f"{at}.self_attn.k_norm.weight", (dim,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{at}.mlp.gate_proj.weight", (width, hidden)
        yield f"{at}.mlp.up_proj.weight", (width, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, width)
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", False):
        yield "lm_head.weight", (config["vocab_size"], hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=Path, help="a folder with config.json")
    parser.add_argument("--out", type=Path, required=True, help="must not be there")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    config = json.loads((arguments.shape / "config.json").read_text())
    if config.get("architectures", [None])[0] not in FAMILIES or config.get("quantization_config") or config.get("attention_bias"):
        sys.exit(f"random_model: {arguments.shape}: expected a dense model of {' or '.join(FAMILIES)} without biases")
    if arguments.out.exists():
        sys.exit(f"random_model: --out {arguments.out}: is there already")
    draw = random.Random(arguments.seed)
    numbers = b"".join(bf16(draw.gauss(0, config.get("initializer_range", 0.02))) for _ in range(NUM)) * 16
    header, end = {}, 0
    for name, shape in tensors_of(config):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    arguments.out.mkdir(parents=True)
    for path in arguments.shape.iterdir():
        shutil.copy(path, arguments.out / path.name)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(arguments.out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in header.values():
            left = entry["data_offsets"][1] - entry["data_offsets"][0]
            if len(entry["shape"]) == 1:
                file.write(bf16(1.0) * entry["shape"][0])
                continue
            at = 2 * draw.randrange(NUM)
            while left > 0:
                left -= file.write(numbers[at:at + left])
                at = 0


if __name__ == "__main__":
    main()
