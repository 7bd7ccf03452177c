"""Quantized checkpoints read by the letter, in double precision: what a stored tensor means, and no more.

exact_model(folder) is the transformers model in torch.float64 whose quantized linears are ExactLinear: the weight
dequantized from the stored codes and scales without rounding, the input quantized as the scheme says. Formats:
compressed-tensors (int-, float-, naive-, pack-quantized, nvfp4, mxfp4, mxfp8, mixed-precision, sparse-24-bitmask), GPTQ v1 and v2, as
AutoRound's own form has it too, AWQ gemm, ModelOpt's FP8, fp8 (by tensor, and blocks with weight_scale_inv). Experts as Qwen3's are called.
Needs torch and transformers.
"""

import json
import re

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def unpack(words, bits):
    """The unsigned fields of rows of 32-bit words, lowest bits first, a field may lie in two words."""
    words = words.to(torch.int64) & 0xFFFFFFFF
    count = words.shape[-1] * 32 // bits
    start = torch.arange(count) * bits
    padded = torch.nn.functional.pad(words, (0, 1))
    two = padded[..., start // 32] | (padded[..., start // 32 + 1] << 32)
    return (two >> (start % 32)) & ((1 << bits) - 1)


def expand(scales, shape, rows=1, columns=1):
    """A grid of scales, each for rows x columns, as large as the weight."""
    return scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:shape[0], :shape[1]]


def read_plain(t, args):
    weight = t["weight"].double()
    scale = t["weight_scale_inv" if "weight_scale_inv" in t else "weight_scale"].double()
    zero = t["weight_zero_point"].double() if "weight_zero_point" in t else torch.zeros_like(scale)
    if args["strategy"] == "block":
        rows, columns = args["block_structure"]
        return weight * expand(scale, weight.shape, rows, columns)
    if args["strategy"] == "group":
        return (weight - expand(zero, weight.shape, 1, args["group_size"])) * expand(scale, weight.shape, 1, args["group_size"])
    return (weight - zero) * scale  # [1] or [N, 1]


def read_two_of_four(t):
    """What is kept of each row, where its bits are set, lowest first."""
    n, k = t["shape"].flatten().tolist()
    mask = (t["bitmask"].unsqueeze(-1) >> torch.arange(8) & 1).flatten(1)[:, :k].bool()
    weight = torch.zeros(n, k, dtype=torch.float64)
    weight[mask] = t["compressed"].double().flatten()
    return weight


def read_packed(t, args):
    n, k = t["weight_shape"].tolist()
    half = 1 << (args["num_bits"] - 1)
    codes = unpack(t["weight_packed"], args["num_bits"])[:, :k].double() - half
    scale = t["weight_scale"].double()
    zero = torch.zeros_like(scale)
    if "weight_zero_point" in t:
        zero = unpack(t["weight_zero_point"].T, args["num_bits"])[:, :n].T.double() - half
    if args["strategy"] != "group":
        return (codes - zero) * scale
    group = t.get("weight_g_idx", torch.arange(k) // args["group_size"]).long()
    return (codes - zero[:, group]) * scale[:, group]


def read_e2m1(packed):
    return E2M1[torch.stack([packed & 15, packed >> 4], -1).flatten(1).long()]


def read_nvfp4(t, args):
    weight = read_e2m1(t["weight_packed"])
    return weight * expand(t["weight_scale"].double() / t["weight_global_scale"].double(), weight.shape, 1, 16)


def read_mx(t, args):
    weight = read_e2m1(t["weight_packed"]) if "weight_packed" in t else t["weight"].double()
    return weight * expand(torch.exp2(t["weight_scale"].double() - 127), weight.shape, 1, 32)


def read_gptq(t, args):
    """A stored zero of v1 is the zero less one, in its own bits.

    GPTQModel makes v1's words of v2's by subtracting 0x11111111 from the whole: a zero of 0 then borrows from its
    neighbour. No case has such a file.
    """
    bits = args["bits"]
    codes = unpack(t["qweight"].T, bits).T  # [K, N]
    zeros = unpack(t["qzeros"], bits)
    if args.get("checkpoint_format", "gptq") == "gptq":
        zeros = (zeros + 1) & ((1 << bits) - 1)
    group = t["g_idx"].long() if "g_idx" in t else torch.arange(codes.shape[0]) // args["group_size"]
    return ((codes - zeros[group]).double() * t["scales"].double()[group]).T


def read_awq(t, args):
    order = torch.tensor([AWQ_ORDER.index(i) for i in range(8)])

    def columns(words):
        fields = unpack(words, 4)
        return fields.unflatten(1, (-1, 8))[:, :, order].flatten(1)

    codes = columns(t["qweight"])
    group = torch.arange(codes.shape[0]) // (args["group_size"] if args["group_size"] > 0 else codes.shape[0])
    return ((codes - columns(t["qzeros"])[group]).double() * t["scales"].double()[group]).T


def round_e4m3(x):
    """Half to even, saturated."""
    exponent = (torch.frexp(x.abs().clamp(min=2.0**-40)).exponent - 1).clamp(min=-6)
    step = torch.exp2((exponent - 3).double())
    return (torch.round(x / step) * step).clamp(-448, 448), step


class ExactLinear(torch.nn.Module):
    """y = quantized(x) W^T in double precision.

    Watches how near the numbers come to the middle between two codes: smallest_tie, as a share of the row's root mean
    square, over those numbers for which it matters (codes at least 1e-4 of it apart). disturbance: noise of so much,
    before rounding.
    """

    disturbance = 0.0

    def __init__(self, weight, inputs=None, input_scale=None):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.inputs = inputs
        self.input_scale = input_scale
        self.smallest_tie = float("inf")

    def quantized(self, x):
        args = self.inputs
        rms = x.square().mean(-1, keepdim=True).sqrt()
        groups = x.unflatten(-1, (-1, args["group_size"])) if args["strategy"] == "group" else x.unsqueeze(-2)
        largest = 448.0 if args["type"] == "float" else 127.5
        if args["dynamic"]:
            scale = groups.abs().amax(-1, keepdim=True) / largest
        else:
            scale = self.input_scale.double()
        y = groups / scale
        if args["type"] == "float":
            codes, step = round_e4m3(y)
        else:
            codes, step = torch.round(y).clamp(-128, 127), torch.ones_like(y)
        inside = (y > -largest - 0.5) & (y < largest - 0.5) & (step * scale > 1e-4 * rms.unsqueeze(-1))
        tie = (0.5 - (y / step - torch.round(y / step)).abs()) * step * scale / rms.unsqueeze(-1)
        self.smallest_tie = min([self.smallest_tie, *tie[inside].tolist()])
        return (codes * scale).reshape(x.shape)

    def forward(self, x):
        return torch.nn.functional.linear(self.quantized(x) if self.inputs else x, self.weight)


class ExactNorm(torch.nn.Module):
    """RMSNorm in double precision; transformers' rounds to float32 inside."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


class ExactExperts(torch.nn.Module):
    """In place of transformers' module of all experts: gate, up and down of each, linears of their own."""

    def __init__(self, experts):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.ModuleList(expert) for expert in experts)

    def forward(self, x, chosen, weights):
        out = torch.zeros_like(x)
        for number, (gate, up, down) in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            inner = torch.nn.functional.silu(gate(x[token])) * up(x[token])
            out.index_add_(0, token, down(inner) * weights[token, place, None])
        return out


def matches(name, patterns):
    return any(name == p or (p.startswith("re:") and re.match(p[3:], name)) for p in patterns)


def compressed_tensors_scheme(name, config):
    if matches(name, config["ignore"]):
        return None
    for group in config["config_groups"].values():
        if matches(name, group["targets"]):
            return group
    return next((group for group in config["config_groups"].values() if "Linear" in group["targets"]), None)


def read_linear(name, t, config):
    """The ExactLinear of the tensors t, by their names after the layer's."""
    method = config["quant_method"]
    if "compressed" in t:
        t["weight"] = read_two_of_four(t)
        if "weight_scale" not in t:
            return ExactLinear(t["weight"])
    if method == "gptq" or config.get("packing_format") == "auto_round:auto_gptq":
        return ExactLinear(read_gptq(t, config))
    if method == "awq":
        return ExactLinear(read_awq(t, config))
    if method == "fp8":
        block = config.get("weight_block_size")
        weights = {"strategy": "block", "block_structure": block} if block else {"strategy": "tensor"}
        dynamic = config["activation_scheme"] == "dynamic"
        inputs = {"type": "float", "dynamic": dynamic, "strategy": "group" if block else "token" if dynamic else "tensor"}
        if block:
            inputs["group_size"] = block[1]
        return ExactLinear(read_plain(t, weights), inputs, t.get("input_scale"))
    if method == "modelopt":
        inputs = {"type": "float", "dynamic": False, "strategy": "tensor"}
        return ExactLinear(read_plain(t, {"strategy": "tensor"}), inputs, t["input_scale"])
    group = compressed_tensors_scheme(name, config)
    form = group.get("format") or config["format"]
    readers = {"pack-quantized": read_packed, "nvfp4-pack-quantized": read_nvfp4, "mxfp4-pack-quantized": read_mx,
               "mxfp8-quantized": read_mx}
    return ExactLinear(readers.get(form, read_plain)(t, group["weights"]), group["input_activations"], t.get("input_scale"))


def is_kv_scale(name):
    """Of a cache in 8 bits; here keys and values are as they are."""
    return name.endswith((".self_attn.k_scale", ".self_attn.v_scale", ".k_proj.k_scale", ".v_proj.v_scale"))


def exact_model(folder):
    """The model in float64, and its quantized linears by name."""
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization_config")
    plain = AutoConfig.for_model(**config)
    model = AutoModelForCausalLM.from_config(plain, dtype=torch.float64, attn_implementation="sdpa").eval()
    for name in [name for name, module in model.named_modules() if type(module).__name__.endswith("RMSNorm")]:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, ExactNorm(model.get_submodule(name)))
    tensors = {key: value for key, value in load_file(folder / "model.safetensors").items() if not is_kv_scale(key)}
    linears = {}

    def take_parts(name):
        return {key[len(name) + 1:]: tensors.pop(key) for key in list(tensors) if key.startswith(name + ".")}

    for name, module in [(n, m) for n, m in model.named_modules() if type(m).__name__.endswith("Experts")]:
        for expert in range(module.num_experts):
            for matrix in "gate_proj", "up_proj", "down_proj":
                linear = f"{name}.{expert}.{matrix}"
                linears[linear] = read_linear(linear, take_parts(linear), quantization)
        parent, _, child = name.rpartition(".")
        of_experts = [linear for key, linear in linears.items() if key.startswith(name + ".")]
        setattr(model.get_submodule(parent), child, ExactExperts(zip(*[iter(of_experts)] * 3)))
    for name in [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]:
        parts = take_parts(name)
        if set(parts) == {"weight"} and parts["weight"].dtype in (torch.float32, torch.bfloat16, torch.float16):
            tensors[name + ".weight"] = parts["weight"]
        elif parts:
            linears[name] = read_linear(name, parts, quantization)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, linears[name])
    missing, unexpected = model.load_state_dict({k: v.double() for k, v in tensors.items()}, strict=False)
    left = {key for key in missing if key.rpartition(".")[0] not in linears and ".experts." not in key}
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    if left - tied or unexpected:
        raise SystemExit(f"{folder}: missing {sorted(left - tied)}, not read {unexpected}")
    return model, linears
