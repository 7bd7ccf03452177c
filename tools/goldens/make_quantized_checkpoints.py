#!/usr/bin/env python3
"""Small quantized checkpoints made by the tools that people use, and what they answer in exact arithmetic.

    python3 tools/goldens/make_quantized_checkpoints.py tests/goldens/quantized

writes one folder per case, <case>/{config.json, generation_config.json, model.safetensors, golden.json}: a random
model as make_checkpoints.py draws them (bfloat16 or float16), quantized by llm-compressor, by GPTQModel, or, where no
tool runs without a GPU, by this script (with_this_script; golden.json's "made_by" says which).

The logits are those of the stored numbers in double precision (quantized_reader.py): weights dequantized without
rounding, inputs quantized as the scheme says. The reading is checked against the tools': compressed-tensors' with
transformers in float32 on every prompt, GPTQModel's dequantized weights one by one, transformers' own of fp8 blocks
(whose inputs are rounded as ct_fp8_block's are, and fp8_static's as ct_fp8_static's: those compressed-tensors ran);
golden.json's "checked_with" says against what and how near it came. And as in make_checkpoints.py each tensor of the
file in turn is disturbed, and the logits must move.

Rounding an input to its code is not continuous: where a number lies in the middle between two codes, float32 may take
the other one. So models with quantized inputs have short prompts and short answers in which no number, in any layer, lies
nearer to a middle than MIN_TIE of its row's root mean square.
And int8's scale by token is absmax / 127.5: the number that gives a row its scale, if negative, lies in the middle between
-128 and -127 always. See positive_outliers.

Needs torch, transformers, llmcompressor and gptqmodel; everything runs on the CPU. Two kinds of cases want other versions, so
an environment of their own and --only: ct_w4a16_actorder_group llmcompressor 0.8.1, as later ones refuse it; awq_* and *_experts gptqmodel
7.7.0, as 7.6.0, the newest beside llmcompressor 0.14, asks for CUDA there. And *_sparse_24 compressed-tensors 0.12.2, the
last that writes that format; modelopt_* nvidia-modelopt, auto_round_* auto-round.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # it wants two, whatever the machine has

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from make_checkpoints import (MIN_EFFECT, MIN_GAP, all_logits, config_file, golden_prompt, randomize, router_gap, sizes,
                              write_json)
from quantized_reader import exact_model, is_kv_scale, round_e4m3

NUM_GREEDY, NUM_GREEDY_INPUTS = 12, 3
MIN_TIE = 2e-6
WEIGHT_LENGTHS = [1, 2, 5, 9, 21]
INPUT_LENGTHS = [1, 2, 3, 4]

SMALL = dict(hidden=64, heads=4, kv_heads=2, intermediate=128, vocab=128)
WIDE = dict(hidden=128, heads=4, kv_heads=2, intermediate=128, vocab=128)
HEAD = ["lm_head"]


def weights(bits, strategy="group", **keys):
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy} | keys


def float_weights(strategy, **keys):
    return weights(8, strategy, type="float", **keys)


def inputs(strategy, dynamic, kind="int", **keys):
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": strategy, "dynamic": dynamic} | keys


def scheme(weights, inputs=None, targets=("Linear",)):
    return {"targets": list(targets), "weights": weights} | ({"input_activations": inputs} if inputs else {})


def ct(*schemes, preset=None, ignore=HEAD, gptq=False, kv=None):
    return {"tool": "llmcompressor", "schemes": schemes, "preset": preset, "ignore": ignore, "gptq": gptq, "kv": kv}


def gptq(bits, group_size, desc_act=False, sym=True, form="gptq"):
    keys = {"bits": bits, "group_size": group_size, "desc_act": desc_act, "sym": sym, "format": form}
    if group_size < 0:
        keys["act_group_aware"] = False  # an order of groups
    return {"tool": "gptqmodel"} | keys


def awq(group_size):
    return {"tool": "gptqmodel", "bits": 4, "group_size": group_size, "sym": False, "format": "gemm", "quant_method": "awq"}


def sparse_24(preset=None):
    return {"tool": "sparse_24", "preset": preset}


QKV = r"re:.*self_attn\.(q|k|v)_proj$"
MLP = r"re:.*mlp\..*_proj$"

# Norms of q and k, which Qwen3 has, take away what a single scale of a whole q_proj does: such cases are Llamas.
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
           "decoder_sparse_step": 1, "mlp_only_layers": []}

# Each case: what quantizes, family, sizes; optional: dtype, tied, layers, one_sided, outliers (see those functions).
CASES = {
    "ct_w8a8_dynamic": dict(by=ct(preset="W8A8"), family="qwen3", outliers=True, **SMALL),
    "ct_w8a8_static_tensor": dict(
        by=ct(scheme(weights(8, "tensor"), inputs("tensor", False))), family="llama", **SMALL),
    "ct_w4a16_g32_sym": dict(by=ct(scheme(weights(4, group_size=32)), gptq=True), family="qwen3", **SMALL),
    "ct_w4a16_g32_asym": dict(
        by=ct(scheme(weights(4, group_size=32, symmetric=False)), gptq=True), family="llama", one_sided=32, **SMALL),
    "ct_w4a16_g128_actorder_weight": dict(
        by=ct(scheme(weights(4, group_size=128, actorder="weight")), gptq=True), family="qwen3", tied=True, **WIDE),
    "ct_w4a16_g128_asym": dict(
        by=ct(preset="W4A16_ASYM"), family="qwen3", dtype="float16", one_sided=128, **WIDE),
    "ct_w3a16_g32": dict(by=ct(scheme(weights(3, group_size=32)), gptq=True), family="llama", **SMALL),
    "ct_w8a16_channel": dict(by=ct(scheme(weights(8, "channel"))), family="qwen3", tied=True, **SMALL),
    "ct_fp8_dynamic": dict(by=ct(preset="FP8_DYNAMIC"), family="qwen3", **SMALL),
    "ct_fp8_static": dict(by=ct(preset="FP8"), family="llama", **SMALL),
    "gptq_w4_g128_sym": dict(by=gptq(4, 128), family="llama", **WIDE),
    "gptq_w4_g32_desc_act_asym": dict(
        by=gptq(4, 32, True, False), family="qwen3", dtype="float16", one_sided=32, **SMALL),
    "gptq_w4_g32_asym_v2": dict(by=gptq(4, 32, False, False, "gptq_v2"), family="qwen3", tied=True, one_sided=32, **SMALL),
    "gptq_w8_channel": dict(by=gptq(8, -1), family="qwen3", tied=True, **SMALL),
    "gptq_w3_g32_asym": dict(by=gptq(3, 32, False, False), family="llama", one_sided=32, **SMALL),
    "gptq_w4_channel_desc_act": dict(by=gptq(4, -1, True), family="llama", **SMALL),
    "awq_g32": dict(by=awq(32), family="qwen3", dtype="float16", one_sided=32, **SMALL),
    "awq_g128_bf16": dict(by=awq(128), family="llama", **WIDE),
    "fp8_block": dict(by={"tool": "fp8", "block": [128, 128]}, family="llama", tied=True, **WIDE),
    "fp8_static": dict(by={"tool": "fp8", "block": None}, family="llama", **SMALL),
    "ct_fp8_block": dict(by=ct(preset="FP8_BLOCK"), family="llama", tied=True, **WIDE),
    "ct_nvfp4a16": dict(by=ct(preset="NVFP4A16"), family="llama", tied=True, **SMALL),
    "ct_mxfp4a16": dict(by=ct(preset="MXFP4A16"), family="llama", **SMALL),
    "ct_mxfp8a16": dict(by=ct(preset="MXFP8A16"), family="qwen3", **SMALL),
    # Two widths; the regular expression of one group would match what the other's class does.
    "ct_mixed_widths": dict(
        by=ct(scheme(weights(8, "channel"), targets=[r"re:.*down_proj$"]), scheme(weights(4, group_size=32)),
              ignore=["lm_head", "model.layers.1.self_attn.o_proj", r"re:.*layers\.0\.mlp\.(gate|up)_proj"]),
        family="qwen3", tied=True, **SMALL),
    # Two formats: "mixed-precision".
    "ct_mixed_formats": dict(
        by=ct(scheme(float_weights("channel"), inputs("token", True, "float"), targets=[QKV]),
              scheme(weights(4, group_size=32), targets=[MLP]), ignore=["lm_head", r"re:.*o_proj"]),
        family="llama", **SMALL),
    "ct_w8a16_with_head": dict(by=ct(scheme(weights(8, "channel")), ignore=[]), family="llama", **SMALL),
    # Halves of the rows' inputs (80) are not whole groups, halves of its 160 columns not whole blocks.
    "ct_w4a16_g32_odd": dict(
        by=ct(scheme(weights(4, group_size=32))), family="qwen3", tied=True, **SMALL | dict(intermediate=160)),
    "ct_fp8_block_odd": dict(
        by=ct(scheme(float_weights("block", block_structure=[128, 128]))), family="llama",
        **SMALL | dict(hidden=96, intermediate=160)),
    # 192 columns for each of two ranks: one and a half blocks.
    "fp8_block_odd": dict(
        by={"tool": "fp8", "block": [128, 128]}, family="llama", tied=True, layers=1, **WIDE | dict(intermediate=384)),
    "gptq_w4_g32_odd": dict(by=gptq(4, 32, True), family="qwen3", tied=True, **SMALL | dict(intermediate=160)),
    # At the end, because a case's seed is its place. Made by an older llm-compressor.
    "ct_w4a16_actorder_group": dict(
        by=ct(scheme(weights(4, group_size=32, actorder="group")), gptq=True), family="qwen3", tied=True, **SMALL),
    # With scales of keys and values, which the logits do not depend on: they are for a cache in 8 bits.
    "ct_w4a16_g32_kv_fp8": dict(
        by=ct(scheme(weights(4, group_size=32)), kv=inputs("tensor", False, "float")), family="qwen3", **SMALL | dict(vocab=64)),
    # Two of every four weights are kept, as bf16 or as codes.
    "ct_sparse_24": dict(by=sparse_24(), family="qwen3", tied=True, layers=1, **SMALL | dict(vocab=64)),
    "ct_fp8_dynamic_sparse_24": dict(by=sparse_24("FP8_DYNAMIC"), family="qwen3", layers=1, **SMALL | dict(vocab=64)),
    # Scales without a dimension, and those of keys and values below their projections.
    "modelopt_fp8_kv_fp8": dict(by={"tool": "modelopt"}, family="llama", layers=1, **SMALL | dict(vocab=64)),
    # Scales of both signs, no g_idx, and a linear that its list of exceptions leaves dense.
    "auto_round_w4_g32": dict(
        by={"tool": "auto_round", "dense": "model.layers.0.mlp.down_proj"}, family="llama", layers=1, **SMALL | dict(vocab=64)),
    # Experts, whose inputs and so whose orders are their own.
    "gptq_w4_g16_desc_act_experts": dict(
        by=gptq(4, 16, True, False), family="qwen3_moe", layers=1, **SMALL | dict(vocab=64)),
}


def versions(*packages):
    return {package: importlib.metadata.version(package) for package in packages}


def one_sided(model, group):
    """In some rows a group without negative numbers and one without positive: zero points at both ends."""
    for name, parameter in model.named_parameters():
        if name.endswith(("v_proj.weight", "up_proj.weight")):
            half = parameter.data[:, :group].abs()
            parameter.data[3:6, :group], parameter.data[8:11, :group] = half[3:6], -half[8:11]


def positive_outliers(model):
    """A channel of the residual that is large and positive in all tokens, and one of what o and down read."""
    model.model.embed_tokens.weight.data[:, 0] = 10.0
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm in layer.input_layernorm, layer.post_attention_layernorm:
            norm.weight.data[0] = 1.25
        for linear, rows, value in ((attention.v_proj, [0, 32], 1.0), (mlp.gate_proj, [0], 1.0), (mlp.up_proj, [0], 1.0)):
            linear.weight.data[rows] = 0.0
            linear.weight.data[rows, 0] = value
        attention.o_proj.weight.data[0] = mlp.down_proj.weight.data[0] = 0.0
        attention.o_proj.weight.data[:, ::32] *= 0.05
        mlp.down_proj.weight.data[:, 0] *= 0.05


def write_tokenizer(folder, vocab):
    """Both tools ask for one, and use it for nothing."""
    Tokenizer(WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t0")).save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json",
               {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t1", "eos_token": "t2", "pad_token": "t2"})


def base_model(case, folder, generator):
    size = {key: case[key] for key in ("hidden", "heads", "kv_heads", "intermediate", "vocab")}
    shape = sizes(layers=case.get("layers", 2), head_dim=32, tied=case.get("tied", False), **size)
    dtype = case.get("dtype", "bfloat16")
    extra = {"bos_token_id": 1, "eos_token_id": 2} | (EXPERTS if case["family"] == "qwen3_moe" else {})
    config = config_file(case["family"], "old", dtype, shape, {"rope_theta": 10000.0}, extra)
    write_json(folder / "config.json", config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    randomize(model, generator)
    if "one_sided" in case:
        one_sided(model, case["one_sided"])
    if case.get("outliers"):
        positive_outliers(model)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    write_tokenizer(folder, case["vocab"])
    return model


def calibration(vocab, generator):
    return [{"input_ids": torch.randint(0, vocab, (64,), generator=generator).tolist(), "attention_mask": [1] * 64}
            for _ in range(32)]


def with_llmcompressor(case, model, base, out, generator):
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    by = case["by"]
    modifier = GPTQModifier if by["gptq"] else QuantizationModifier
    if by["preset"]:
        recipe = modifier(targets="Linear", scheme=by["preset"], ignore=by["ignore"])
    else:
        groups = {f"group_{i}": group for i, group in enumerate(by["schemes"])}
        recipe = modifier(config_groups=groups, ignore=by["ignore"], kv_cache_scheme=by["kv"])
    data = Dataset.from_list(calibration(case["vocab"], generator))
    oneshot(model=model, tokenizer=AutoTokenizer.from_pretrained(base), dataset=data, recipe=[recipe],
            num_calibration_samples=len(data), max_seq_length=64)
    model.save_pretrained(out)
    return versions("llmcompressor", "compressed-tensors")


def with_gptqmodel(case, model, base, out, generator):
    from gptqmodel import GPTQModel, QuantizeConfig

    config = {key: value for key, value in case["by"].items() if key != "tool"}
    quantizer = GPTQModel.load(str(base), QuantizeConfig(offload_to_disk=False, pack_impl="original", **config), device="cpu", dtype=model.dtype)
    quantizer.quantize(calibration(case["vocab"], generator), batch_size=1)
    quantizer.save(str(out))
    return versions("gptqmodel")


def to_e4m3(weight, scale):
    return round_e4m3(weight.double() / scale)[0].to(torch.float8_e4m3fn)  # exact: rounded already


def with_this_script(case, model, base, out, generator):
    """DeepSeek-V3's blocks, and the weights and inputs by tensor that preceded compressed-tensors."""
    block, tensors = case["by"]["block"], load_file(base / "model.safetensors")
    largest = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, x, __, name=name: largest.update(
                {name: max(largest.get(name, 0.0), x[0].abs().max().item())}))
    for sample in calibration(case["vocab"], generator):
        all_logits(model, sample["input_ids"])
    for name in [name for name in largest if name != "lm_head"]:
        weight = tensors[name + ".weight"].float()
        if block:
            rows, columns = -(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1])
            scale = torch.zeros(rows, columns)
            for i in range(rows):
                for j in range(columns):
                    scale[i, j] = weight[i * block[0]:(i + 1) * block[0], j * block[1]:(j + 1) * block[1]].abs().max() / 448
            full = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:weight.shape[0], :weight.shape[1]]
            tensors[name + ".weight_scale_inv"] = scale
        else:
            full = weight.abs().max() / 448
            tensors[name + ".weight_scale"] = full.reshape(1)
            tensors[name + ".input_scale"] = torch.tensor([largest[name] / 448])
        tensors[name + ".weight"] = to_e4m3(weight, full.double())
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic" if block else "static"}
    if block:
        config["quantization_config"]["weight_block_size"] = block
    else:
        config["quantization_config"] |= {"ignored_layers": ["lm_head"]}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt", "made_by": Path(__file__).name})
    return {"script": Path(__file__).name}


def with_sparse_24(case, model, base, out, generator):
    """Pruned by magnitude and, with a preset, rounded to the nearest."""
    from compressed_tensors import ModelCompressor
    from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import get_24_bytemasks
    from compressed_tensors.config import Sparse24BitMaskConfig
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    linears = [module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name not in HEAD]
    for linear in linears:
        linear.weight.data *= get_24_bytemasks(linear.weight.data)
    config = None
    if preset := case["by"]["preset"]:
        config = QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=HEAD, format="float-quantized")
        apply_quantization_config(model, config)
        for linear in linears:
            linear.weight_scale.data = (linear.weight.abs().amax(1, keepdim=True) / 448).to(linear.weight_scale.dtype)
    sparsity = Sparse24BitMaskConfig(targets=["Linear"], ignore=HEAD, global_sparsity=0.5)
    compressor = ModelCompressor(sparsity_config=sparsity, quantization_config=config)
    tensors = {name: tensor.contiguous() for name, tensor in compressor.compress(model).items()}
    if case.get("tied"):
        del tensors["lm_head.weight"]
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(base / "config.json", out)
    compressor.update_config(out)
    return versions("compressed-tensors")


def with_modelopt(case, model, base, out, generator):
    """FP8, keys and values too."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.utils import update_quant_cfg_with_kv_cache_quant

    config = update_quant_cfg_with_kv_cache_quant(mtq.FP8_DEFAULT_CFG, mtq.FP8_KV_CFG["quant_cfg"])
    samples = calibration(case["vocab"], generator)
    model = mtq.quantize(model, config, lambda m: [m(torch.tensor([sample["input_ids"]])) for sample in samples])
    model.config.dtype = model.dtype
    export_hf_checkpoint(model, export_dir=str(out))
    return versions("nvidia-modelopt")


def with_auto_round(case, model, base, out, generator):
    """In its own form, after two steps of its search."""
    from auto_round import AutoRound

    samples = [torch.tensor([sample["input_ids"]]) for sample in calibration(case["vocab"], generator)]
    quantizer = AutoRound(model, AutoTokenizer.from_pretrained(base), bits=4, group_size=32, sym=True, iters=2, nsamples=len(samples),
                          seqlen=64, batch_size=1, dataset=samples, device_map="cpu",
                          layer_config={case["by"]["dense"]: {"bits": 16}})
    quantizer.quantize_and_save(str(out / "of_auto_round"), format="auto_round")
    (folder,) = [file.parent for file in (out / "of_auto_round").rglob("config.json")]
    for file in "config.json", "model.safetensors":
        shutil.move(folder / file, out / file)
    return versions("auto-round")


TOOLS = {"llmcompressor": with_llmcompressor, "gptqmodel": with_gptqmodel, "fp8": with_this_script, "sparse_24": with_sparse_24,
         "modelopt": with_modelopt, "auto_round": with_auto_round}


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def check_with_compressed_tensors(name, folder, prompts, linears):
    """transformers' answers in float32. Where compressed-tensors dequantizes to bfloat16 only, those and the weights."""
    in_bfloat16 = "fp4" in name or "mxfp8" in name
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if in_bfloat16 else torch.float32).eval()
    for module in theirs.modules():
        if hasattr(module, "kv_cache"):
            module.quantization_enabled = False  # keys and values as they are
    error = max(relative(all_logits(theirs, p["token_ids"])[p["logit_positions"]], torch.tensor(p["logits"])) for p in prompts)
    checked = versions("compressed-tensors") | {"logits": error}
    if in_bfloat16:  # dequantized by the first run
        checked["weights"] = max(((theirs.get_submodule(n).weight - linear.weight).abs() / linear.weight.abs().clamp(min=1e-9))
                                 .max().item() for n, linear in linears.items())
    if error > (5e-2 if in_bfloat16 else 1e-5) or checked.get("weights", 0.0) > 2.0**-7:
        raise SystemExit(f"{name}: compressed-tensors' differ: {checked}")
    return checked


def check_with_gptqmodel(name, folder, prompts, linears):
    """Its dequantized weights, which are float16 or bfloat16, and its answers in that type."""
    from gptqmodel import BACKEND, GPTQModel

    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(folder, work, dirs_exist_ok=True)
        write_tokenizer(Path(work), json.loads((folder / "config.json").read_text())["vocab_size"])
        theirs = GPTQModel.load(work, device="cpu", backend=BACKEND.TORCH, dtype=torch.float16).model
    worst = 0.0
    for linear_name, linear in linears.items():
        module = theirs.get_submodule(linear_name)
        weight = dequantized_by_gptqmodel(module)
        worst = max(worst, ((weight.double().T - linear.weight).abs() / linear.weight.abs().amax()).max().item())
    error = max(relative(all_logits(theirs, p["token_ids"])[p["logit_positions"]], torch.tensor(p["logits"])) for p in prompts)
    if worst > 1e-3 or error > 5e-2:
        raise SystemExit(f"{name}: GPTQModel's weights differ by {worst:.1e}, its logits by {error:.1e}")
    return versions("gptqmodel") | {"weights": worst, "logits": error}


def dequantized_by_gptqmodel(module):
    """[K, N]"""
    if hasattr(module, "dequantize_weight"):
        return module.dequantize_weight().detach()
    identity = torch.eye(module.in_features, dtype=torch.float16)
    return module(identity).detach()


def check_with_fine_grained_fp8(name, folder, prompts, linears):
    """transformers' dequantized weights. Its products need a GPU, so how inputs are rounded is not checked."""
    from transformers import FineGrainedFP8Config

    if name == "fp8_static":
        return {}
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=FineGrainedFP8Config(dequantize=True))
    worst = max(relative(theirs.get_submodule(n).weight, linear.weight) for n, linear in linears.items())
    if worst > 4e-3:  # they pass through bfloat16
        raise SystemExit(f"{name}: transformers' weights differ by {worst:.1e}")
    return {"transformers": transformers.__version__, "weights": worst}


def check_with_sparse_24(name, folder, prompts, linears):
    """compressed-tensors' weights after decompression: the same numbers."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.config import Sparse24BitMaskConfig

    compressor = BaseCompressor.load_from_registry("sparse-24-bitmask", config=Sparse24BitMaskConfig())
    theirs = dict(compressor.decompress(str(folder)))
    worst = 0.0
    for linear_name, linear in linears.items():
        scale = theirs.get(linear_name + ".weight_scale", torch.ones(1)).double()
        worst = max(worst, (theirs[linear_name + ".weight"].double() * scale - linear.weight).abs().max().item())
    if worst != 0.0:
        raise SystemExit(f"{name}: compressed-tensors' weights differ by {worst:.1e}")
    return versions("compressed-tensors") | {"weights": worst}


def check_with_auto_round(name, folder, prompts, linears):
    """Its answers in float16, which it insists on."""
    theirs = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu").eval()
    error = max(relative(all_logits(theirs, p["token_ids"])[p["logit_positions"]], torch.tensor(p["logits"])) for p in prompts)
    if error > 5e-2:
        raise SystemExit(f"{name}: AutoRound's logits differ by {error:.1e}")
    return versions("auto-round") | {"logits": error}


# ModelOpt's have no reader but engines: its tensors are those of fp8_static.
CHECKS = {"llmcompressor": check_with_compressed_tensors, "gptqmodel": check_with_gptqmodel, "fp8": check_with_fine_grained_fp8,
          "sparse_24": check_with_sparse_24, "modelopt": lambda *_: {}, "auto_round": check_with_auto_round}


def smallest_tie(model, linears, ids):
    for linear in linears.values():
        linear.smallest_tie = float("inf")
    all_logits(model, ids)
    return min(linear.smallest_tie for linear in linears.values())


def check_every_tensor_matters(name, folder, ids):
    """The file with one tensor disturbed: its numbers by a tenth, its codes moved on by one place."""
    reference = all_logits(exact_model(folder)[0], ids)
    tensors = load_file(folder / "model.safetensors")
    smallest = (float("inf"), "")
    with tempfile.TemporaryDirectory() as other:
        other = Path(other)
        shutil.copy(folder / "config.json", other)
        for key, tensor in tensors.items():
            if is_kv_scale(key):
                continue
            if key.endswith(("weight_shape", ".shape")) or (key.endswith(("qzeros", "g_idx")) and (tensor == tensor.roll(1)).all()):
                continue  # a shape; zeros of symmetric files, the one group of a channel: nothing to move
            if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16) and tensor.numel() > 1:
                changed = tensor * (1 + 0.1 * torch.randn(tensor.shape)).to(tensor.dtype)
            elif tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
                changed = tensor * 1.25
            else:
                changed = tensor.view(torch.uint8).roll(1, 0).view(tensor.dtype) if tensor.dtype == torch.float8_e4m3fn else tensor.roll(1)
            save_file(tensors | {key: changed}, other / "model.safetensors")
            smallest = min(smallest, (relative(all_logits(exact_model(other)[0], ids), reference), key))
    if smallest[0] < MIN_EFFECT:
        raise SystemExit(f"{name}: disturbing {smallest[1]} moves the logits by {smallest[0]:.1e} only")
    return smallest[0]


def draw_prompts(case, model, linears, generator):
    quantized_inputs = any(linear.inputs for linear in linears.values())
    prompts, rejected = [], 0
    for length in INPUT_LENGTHS if quantized_inputs else WEIGHT_LENGTHS:
        while True:
            ids = torch.randint(0, case["vocab"], (length,), generator=generator).tolist()
            if not quantized_inputs or smallest_tie(model, linears, ids) >= MIN_TIE:
                entry = golden_prompt(model, ids, NUM_GREEDY_INPUTS if quantized_inputs else NUM_GREEDY)
                read = ids + entry["greedy_token_ids"][:-1]
                if min(entry["min_gap"], router_gap(model, read)) >= MIN_GAP and (not quantized_inputs or smallest_tie(model, linears, read) >= MIN_TIE):
                    break
            rejected += 1
        prompts.append(entry)
    return prompts, rejected


def make_case(name, case, folder, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)  # where the tools leave their logs
        base, out = Path(work) / "base", Path(work) / "out"
        base.mkdir()
        model = base_model(case, base, generator)
        made_by = TOOLS[case["by"]["tool"]](case, model, base, out, generator)
        for file in "config.json", "model.safetensors":
            shutil.copyfile(out / file, folder / file)
        os.chdir(folder)

    model, linears = exact_model(folder)
    prompts, rejected = draw_prompts(case, model, linears, generator)
    eos = [prompts[-1]["greedy_token_ids"][2]]
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": eos[0], "do_sample": False})
    for entry in prompts:
        hits = [i for i, token in enumerate(entry["greedy_token_ids"]) if token in eos]
        entry["num_tokens_until_eos"] = hits[0] + 1 if hits else None
    checked = CHECKS[case["by"]["tool"]](name, folder, prompts, linears)
    effect = check_every_tensor_matters(name, folder, prompts[-1]["token_ids"])

    golden = {"oracle": {"transformers": transformers.__version__, "torch": torch.__version__, "made_by": made_by,
                         "checked_with": checked}, "seed": seed}
    golden |= {"eos_token_ids": eos, "prompts": prompts}
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    distinct = len({token for entry in prompts for token in entry["greedy_token_ids"]})
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:30} {size / 1024:6.0f} KiB  rejected {rejected:4}  distinct greedy tokens {distinct:3}  "
          f"least effect {effect:.4f}  {checked}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that gets one folder per case")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), help="these cases alone")
    parser.add_argument("--seed", type=int, default=200)
    args = parser.parse_args()
    args.out = args.out.resolve()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for index, (name, case) in enumerate(CASES.items()):
        if not args.only or name in args.only:
            make_case(name, case, args.out / name, args.seed + index)


if __name__ == "__main__":
    main()
