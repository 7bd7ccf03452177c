#!/usr/bin/env python3
"""Gives a model outlier channels that change nothing of what it computes, or takes them away again.

    python3 tools/inject_outliers.py MODEL OUT --factor 64 (--channels 3,17 | --count 2 [--seed 7])

In every layer, on the chosen channels: the gains of the norms before attention and before the MLP times F, the columns of
the linears that read those norms divided by F, a power of two. Products of floats with a power of two are exact, so
in float32 the model's logits stay the same bit by bit, while a quantizer sees activations F times as large. Dividing
(--factor 1/64) is SmoothQuant's direction and undoes it: OUT is then MODEL's bytes again. A number whose exponent
has no room for F is an error, as is a layer in which something that must read the norm is not found.

MODEL: a folder with config.json and *.safetensors in float32, float16 or bfloat16. Needs nothing but Python.
"""

import argparse
import json
import mmap
import random
import re
import shutil
import struct
import sys
from fractions import Fraction
from pathlib import Path

# (bytes, bits of the mantissa, bits of the exponent)
FLOATS = {"F32": (4, 23, 8), "BF16": (2, 7, 8), "F16": (2, 10, 5)}

# What reads a layer's two norms, by model_type: names within the layer, each of which must exist.
DENSE = (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.gate_proj", "mlp.up_proj"])
READERS = {family: DENSE for family in ("llama", "mistral", "qwen2", "qwen3")}
NORMS = ["input_layernorm.weight", "post_attention_layernorm.weight"]


class Mistake(Exception):
    pass


def exponent_of(text):
    try:
        factor = Fraction(text)
    except (ValueError, ZeroDivisionError):
        factor = Fraction(0)
    up, down = factor.numerator, factor.denominator
    if up <= 0 or up & (up - 1) or down & (down - 1):
        raise Mistake(f"--factor {text}: expected a power of two, as 64 or 1/64")
    return up.bit_length() - down.bit_length()


class Tensors:
    """The tensors of a folder's *.safetensors, changed in place."""

    def __init__(self, folder):
        self.where = {}
        for path in sorted(folder.glob("*.safetensors")):
            with open(path, "r+b") as file:
                data = mmap.mmap(file.fileno(), 0)
            length = struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:8 + length])
            for name, entry in header.items():
                if name != "__metadata__":
                    self.where[name] = (data, 8 + length + entry["data_offsets"][0], entry["dtype"], entry["shape"])
        if not self.where:
            raise Mistake(f"{folder}: no *.safetensors in it")

    def shape(self, name):
        if name not in self.where:
            raise Mistake(f"{name}: not in the checkpoint")
        return self.where[name][3]

    def multiply(self, name, columns, exponent):
        """Elements of these columns (the last dimension) times 2^exponent."""
        data, start, dtype, shape = self.where[name]
        if dtype not in FLOATS:
            raise Mistake(f"{name}: is {dtype}, expected F32, F16 or BF16")
        size, mantissa, bits = FLOATS[dtype]
        layout, mask = "<I" if size == 4 else "<H", (1 << bits) - 1
        rows = shape[0] if len(shape) == 2 else 1
        for row in range(rows):
            for column in columns:
                at = start + (row * shape[-1] + column) * size
                number = struct.unpack_from(layout, data, at)[0]
                if number << 1 & ((1 << 8 * size) - 1) == 0:
                    continue  # 0, -0
                old = number >> mantissa & mask
                if not 0 < old < mask or not 0 < old + exponent < mask:
                    raise Mistake(f"{name}[{row}, {column}]: times 2^{exponent} it is no {dtype} without rounding")
                struct.pack_into(layout, data, at, number + (exponent << mantissa))


def inject(folder, channels, exponent):
    """Changes the checkpoint in `folder`."""
    config = json.loads((folder / "config.json").read_text())
    readers = READERS.get(config.get("model_type"))
    if readers is None:
        raise Mistake(f"{folder}: model_type {config.get('model_type')}, expected one of {', '.join(READERS)}")
    if "quantization_config" in config:
        raise Mistake(f"{folder}: is quantized already")
    hidden = config["hidden_size"]
    wrong = [channel for channel in channels if not 0 <= channel < hidden]
    if wrong:
        raise Mistake(f"channel {wrong[0]}: the model has channels 0 to {hidden - 1}")
    tensors = Tensors(folder)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm, linears in zip(NORMS, readers):
            for name in [norm] + [linear + ".weight" for linear in linears]:
                if tensors.shape(prefix + name)[-1] != hidden:
                    raise Mistake(f"{prefix}{name}: expected {hidden} columns")
            tensors.multiply(prefix + norm, channels, exponent)
            for linear in linears:
                tensors.multiply(prefix + linear + ".weight", channels, -exponent)


def what_to_do(args):
    """Channels, exponent."""
    exponent = exponent_of(args.factor)
    if not (args.model / "config.json").exists():
        raise Mistake(f"{args.model}: no config.json in it")
    if args.out.exists():
        raise Mistake(f"{args.out}: exists already")
    if args.channels is not None:
        if not re.fullmatch(r"\d+(,\d+)*", args.channels):
            raise Mistake(f"--channels {args.channels}: expected numbers with commas between them")
        return sorted({int(channel) for channel in args.channels.split(",")}), exponent
    hidden = json.loads((args.model / "config.json").read_text())["hidden_size"]
    if not 0 < args.count <= hidden:
        raise Mistake(f"--count {args.count}: expected 1 to {hidden}")
    return sorted(random.Random(args.seed).sample(range(hidden), args.count)), exponent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, help="a folder that does not exist")
    parser.add_argument("--factor", required=True, metavar="F", help="a power of two, as 64 or 1/64")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--channels", metavar="C,C", help="these channels of the hidden size")
    which.add_argument("--count", type=int, metavar="N", help="so many, drawn with --seed")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    try:
        channels, exponent = what_to_do(args)
    except Mistake as mistake:
        print(f"inject_outliers: {mistake}", file=sys.stderr)
        return 2
    shutil.copytree(args.model, args.out)
    try:
        inject(args.out, channels, exponent)
    except Mistake as mistake:
        shutil.rmtree(args.out)
        print(f"inject_outliers: {mistake}", file=sys.stderr)
        return 2
    print(f"{args.out}: channels {','.join(map(str, channels))} times 2^{exponent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
