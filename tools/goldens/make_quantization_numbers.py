#!/usr/bin/env python3
"""What compressed-tensors makes of a small weight: scales, zero points, codes and packed words for each kind of scheme.

    tools/goldens/make_quantization_numbers.py >tests/goldens/quantization_numbers.json

Floats are written as their bits (uint32 of f32), so that a test can ask for equality. Needs torch and compressed-tensors.
"""
import json
import struct

import compressed_tensors
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

ROWS, COLUMNS = 5, 64


def bits_of(tensor):
    return [struct.unpack("<I", struct.pack("<f", x))[0] for x in tensor.to(torch.float32).flatten().tolist()]


def weight():
    generator = torch.Generator().manual_seed(8)
    w = torch.randn(ROWS, COLUMNS, generator=generator)
    w[1] *= 100  # rows of other sizes
    w[2] *= 1e-3
    w[3] = w[3].abs() + 0.5  # all above 0
    w[4, 3] = 40  # an outlier
    return w


def blocks(w, rows, columns):
    """Smallest and largest number of every block, the last ones smaller."""
    parts = [[w[r:r + rows, c:c + columns] for c in range(0, w.shape[1], columns)] for r in range(0, w.shape[0], rows)]
    return tuple(torch.tensor([[getattr(part, name)().item() for part in row] for row in parts]) for name in ("min", "max"))


def case(w, **keys):
    args = QuantizationArgs(**keys)
    strategy, group = args.strategy, args.group_size
    if strategy == "tensor":
        low, high = w.min().reshape(1), w.max().reshape(1)
    elif strategy == "channel":
        low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    elif strategy == "block":
        low, high = blocks(w, *args.block_structure)
    else:
        parts = w.unflatten(1, (-1, group))
        low, high = parts.amin(2), parts.amax(2)
    global_scale = generate_gparam(w.min(), w.max()) if strategy == "tensor_group" else None
    scale, zero = calculate_qparams(low, high, args, global_scale=global_scale)
    if args.scale_dtype in (torch.bfloat16, torch.float16):
        scale = scale.to(args.scale_dtype).to(torch.float32)
    codes = quantize(w, scale, zero.to(torch.float32) if not args.symmetric else None, args, global_scale=global_scale)
    made = {"args": json.loads(args.model_dump_json(exclude={"observer", "observer_kwargs", "zp_dtype"})),
            "scales": bits_of(scale)}
    if global_scale is not None:
        made["global_scale"] = bits_of(global_scale)[0]
    if args.type == "float" and args.num_bits == 4:
        made["packed"] = pack_fp4_to_uint8(codes).flatten().tolist()
    elif args.type == "float":
        made["packed"] = codes.to(torch.float8_e4m3fn).view(torch.uint8).flatten().tolist()
    else:
        made["codes"] = codes.to(torch.int32).flatten().tolist()
        made["packed"] = pack_to_int32(codes.to(torch.int8), args.num_bits).flatten().tolist()
        if not args.symmetric:
            made["zeros"] = zero.to(torch.int32).flatten().tolist()
            if strategy in ("group", "channel"):
                made["packed_zeros"] = pack_to_int32(zero.to(torch.int8), args.num_bits, packed_dim=0).flatten().tolist()
    return made


def main():
    w = weight()
    cases = []
    for bits in (2, 3, 4, 5, 8):
        for symmetric in (True, False):
            for place in ({"strategy": "tensor"}, {"strategy": "channel"}, {"strategy": "group", "group_size": 16}):
                cases.append(case(w, num_bits=bits, type="int", symmetric=symmetric, **place))
    for dtype in ("bfloat16", "float16"):
        for symmetric in (True, False):
            cases.append(case(w, num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=32,
                              scale_dtype=f"torch.{dtype}"))
    for place in ({"strategy": "tensor"}, {"strategy": "channel"}, {"strategy": "block", "block_structure": [2, 24]}):
        cases.append(case(w, num_bits=8, type="float", **place))
    cases.append(case(w, num_bits=8, type="float", strategy="channel", scale_dtype="torch.bfloat16"))
    cases.append(case(w, num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype="torch.float8_e4m3fn"))
    for bits in (4, 8):
        cases.append(case(w, num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype="torch.uint8"))
    golden = {"oracle": f"compressed-tensors {compressed_tensors.__version__}, torch {torch.__version__}",
              "rows": ROWS, "columns": COLUMNS, "weight": bits_of(w), "cases": cases}
    print(json.dumps(golden, separators=(",", ":")).replace(',"cases":', ',\n"cases":').replace('{"args"', '\n{"args"'))


if __name__ == "__main__":
    main()
