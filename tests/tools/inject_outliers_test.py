"""Outlier channels: products stay equal bit by bit, and dividing gives the file back."""

import contextlib
import io
import json
import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import inject_outliers  # noqa: E402

HIDDEN, LAYERS, CHANNELS = 6, 2, [1, 4]
LINEARS = {"self_attn.q_proj": 4, "self_attn.k_proj": 2, "self_attn.v_proj": 2, "mlp.gate_proj": 5, "mlp.up_proj": 5}
NORM_OF = {name: "input_layernorm" if "attn" in name else "post_attention_layernorm" for name in LINEARS}


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def encode(values, dtype):
    bits = [struct.unpack("<I", struct.pack("<f", x))[0] for x in values]
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    return struct.pack(f"<{len(bits)}I", *bits) if dtype == "F32" else struct.pack(f"<{len(bits)}H", *(b >> 16 for b in bits))


def decode(data, dtype):
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    bits = struct.unpack(f"<{len(data) // 4}I", data) if dtype == "F32" else [
        b << 16 for b in struct.unpack(f"<{len(data) // 2}H", data)]
    return [struct.unpack("<f", struct.pack("<I", b))[0] for b in bits]


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    return {name: decode(data[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]], e["dtype"])
            for name, e in header.items()}


def write_model(folder, dtype, config=None, change=lambda tensors: None):
    draw = random.Random(5)
    shapes = {f"model.layers.{i}.{norm}.weight": [HIDDEN] for i in range(LAYERS) for norm in set(NORM_OF.values())}
    shapes |= {f"model.layers.{i}.{name}.weight": [rows, HIDDEN] for i in range(LAYERS) for name, rows in LINEARS.items()}
    shapes |= {f"model.layers.{i}.self_attn.o_proj.weight": [HIDDEN, 4] for i in range(LAYERS)}
    tensors = {}
    for name, shape in sorted(shapes.items()):
        tensors[name] = [draw.choice((-1, 1)) * draw.uniform(0.1, 2) for _ in range(shape[0] * (shape[1] if len(shape) == 2 else 1))]
    change(tensors)
    header, data = {}, b""
    for name in tensors:
        part = encode(tensors[name], dtype)
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(
        config or {"model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}))


def run(*arguments):
    """Its exit code and what it said."""
    said = io.StringIO()
    with mock.patch("sys.argv", ["inject_outliers", *map(str, arguments)]), contextlib.redirect_stderr(said), \
            contextlib.redirect_stdout(said):
        return inject_outliers.main(), said.getvalue()


class InjectOutliers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model, self.out = self.folder / "model", self.folder / "out"

    def test_the_products_stay_equal_bit_by_bit(self):
        for dtype in inject_outliers.FLOATS:
            with self.subTest(dtype):
                model, out = self.folder / dtype, self.folder / (dtype + "_out")
                write_model(model, dtype, change=lambda t: t["model.layers.0.mlp.up_proj.weight"].__setitem__(4, -0.0))
                self.assertEqual(run(model, out, "--factor", "64", "--channels", "4,1")[0], 0)
                before, after = read(model / "model.safetensors"), read(out / "model.safetensors")
                x = [f32(random.Random(9).gauss(0, 1)) for _ in range(HIDDEN)]
                for layer in range(LAYERS):
                    for name, norm in NORM_OF.items():
                        linear, gain = (f"model.layers.{layer}.{part}.weight" for part in (name, norm))
                        for at in range(len(before[linear])):
                            column = at % HIDDEN
                            products = [f32(f32(x[column] * t[gain][column]) * t[linear][at]) for t in (before, after)]
                            self.assertEqual(*products)
                            changed = column in CHANNELS and before[linear][at] != 0
                            self.assertEqual(before[linear][at] / 64 if changed else before[linear][at], after[linear][at])
                            self.assertEqual(after[gain][column], before[gain][column] * (64 if column in CHANNELS else 1))
                    other = f"model.layers.{layer}.self_attn.o_proj.weight"
                    self.assertEqual(before[other], after[other])

    def test_dividing_gives_the_file_back(self):
        for dtype in inject_outliers.FLOATS:
            with self.subTest(dtype):
                model, out, back = (self.folder / (dtype + end) for end in ("", "_out", "_back"))
                write_model(model, dtype)
                self.assertEqual(run(model, out, "--factor", "8", "--count", "3")[0], 0)
                self.assertNotEqual((model / "model.safetensors").read_bytes(), (out / "model.safetensors").read_bytes())
                self.assertEqual(run(out, back, "--factor", "1/8", "--count", "3")[0], 0)
                for file in "model.safetensors", "config.json":
                    self.assertEqual((model / file).read_bytes(), (back / file).read_bytes())

    def refuses(self, part, *arguments, **model):
        write_model(self.model, model.pop("dtype", "F16"), **model)
        code, said = run(self.model, self.out, *arguments)
        self.assertEqual(code, 2)
        self.assertIn(part, said)
        self.assertEqual(said.count("\n"), 1)
        self.assertFalse(self.out.exists())

    def test_a_factor_that_is_no_power_of_two_is_refused(self):
        self.refuses("--factor 3/2: expected a power of two", "--factor", "3/2", "--channels", "1")

    def test_a_number_without_room_for_the_factor_is_refused_by_name(self):
        self.refuses("model.layers.1.mlp.gate_proj.weight[1, 4]: times 2^-6 it is no F16", "--factor", "64", "--channels", "4",
                     change=lambda t: t["model.layers.1.mlp.gate_proj.weight"].__setitem__(10, 0.001))

    def test_a_layer_without_what_must_read_the_norm_is_refused_by_name(self):
        self.refuses("model.layers.1.mlp.up_proj.weight: not in the checkpoint", "--factor", "2", "--channels", "4",
                     change=lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))

    def test_another_family_and_a_quantized_model_are_refused(self):
        config = {"model_type": "opt", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}
        self.refuses("model_type opt, expected one of llama", "--factor", "2", "--channels", "4", config=config)

    def test_a_channel_that_the_model_has_not_is_refused(self):
        self.refuses("channel 6: the model has channels 0 to 5", "--factor", "2", "--channels", "6")


if __name__ == "__main__":
    unittest.main()
