#!/usr/bin/env python3
"""Small random Hugging Face checkpoints and what transformers answers on them.

    python3 tools/goldens/make_checkpoints.py tests/goldens

writes one folder per case, <case>/{config.json, generation_config.json, model.safetensors, golden.json}, which
is loaded back with AutoModelForCausalLM.from_pretrained: the oracle reads the very files that Ladder reads.

The weights are random but not small: gains around one, biases that matter, attention that is peaked. After each
checkpoint is made, every tensor in turn is disturbed by a tenth of its size and the script fails unless the logits
move by more than ten times the parity tolerance (1e-4), so a loader that drops or misplaces a tensor cannot pass.
Of experts, which transformers keeps in one tensor, each is disturbed alone. Their files have the names that
save_pretrained writes, an expert's matrices each by itself, as the published checkpoints have.

golden.json:
    oracle            versions of transformers and torch
    max_model_len     only for dynamic NTK and longrope, see fix_dynamic_base and fix_longrope
    eos_token_ids     what generation_config.json (or else config.json) says
    prompts[]         token_ids; logit_positions and logits (float32, one row per position: all positions of short
                      prompts, the last of long ones); greedy_token_ids (the end tokens are ignored); min_gap, the
                      smallest distance between the two best logits along the continuation;
                      num_tokens_until_eos, how many of the greedy tokens there are up to and including the first
                      end token (null: none)
Prompts whose min_gap is below 1e-3 are rejected and others drawn, so that "the same tokens" is a fair demand;
and so are those of which a token's last chosen expert is less than 1e-3 before the first that is not, in the logits.
Needs torch and transformers; everything runs on the CPU in float32.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, OPTForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

MIN_GAP = 1e-3
MIN_ROUTER_GAP = 1e-3
MIN_EFFECT = 1e-3
NUM_GREEDY = 28
ALL_POSITIONS_UP_TO = 9

FAMILIES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
    "opt": "OPTForCausalLM",
}


def config_file(family, style, dtype, sizes, rope, extra):
    """config.json as the transformers of its time wrote it.

    style "old": rope_theta and rope_scaling at the top level, torch_dtype. style "new": rope_parameters, dtype.
    """
    if family == "opt":
        return opt_config_file(dtype, sizes, extra)
    config = {"architectures": [FAMILIES[family]], "model_type": family, "hidden_act": "silu"}
    config |= {"attention_dropout": 0.0, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "use_cache": True}
    config |= sizes
    if family.startswith("qwen"):
        config |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": sizes["num_hidden_layers"]}
    if style == "old":
        config |= {"torch_dtype": dtype, "transformers_version": "4.51.0"}
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        if "rope_theta" in rope:
            config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = scaling or None
    else:
        config |= {"dtype": dtype, "transformers_version": "5.0.0"}
        config["rope_parameters"] = {"rope_type": "default"} | rope
    config |= extra
    return config


def opt_config_file(dtype, sizes, extra):
    """As facebook/opt-125m has it: other names for the MLP, no kind of rotary embedding, and tied if it does not say."""
    config = {"_remove_final_layer_norm": False, "activation_function": "relu", "architectures": ["OPTForCausalLM"]}
    config |= {"attention_dropout": 0.0, "do_layer_norm_before": True, "dropout": 0.1, "init_std": 0.02, "layerdrop": 0.0}
    config |= {"model_type": "opt", "pad_token_id": 1, "prefix": "</s>", "torch_dtype": dtype, "use_cache": True}
    config |= {key: sizes[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")}
    config |= {"ffn_dim": sizes["intermediate_size"], "max_position_embeddings": sizes["max_position_embeddings"]}
    config |= {"word_embed_proj_dim": sizes["hidden_size"], "transformers_version": "4.21.0.dev0"}
    return config | extra


def sizes(hidden, heads, kv_heads, intermediate, layers=2, vocab=131, head_dim=None, max_positions=512, tied=False):
    out = {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": intermediate}
    out |= {"num_hidden_layers": layers, "vocab_size": vocab, "max_position_embeddings": max_positions}
    out |= {"tie_word_embeddings": tied}
    if kv_heads is not None:
        out["num_key_value_heads"] = kv_heads
    if head_dim is not None:
        out["head_dim"] = head_dim
    return out


LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 64}
LONGROPE = {"rope_theta": 10000.0, "type": "longrope", "original_max_position_embeddings": 64,
            "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5], "short_mscale": 1.1,
            "long_factor": [1.0, 1.3, 1.9, 2.8, 3.7, 4.0], "long_mscale": 1.3}
PHIMOE = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.2, "input_jitter_noise": 0.01,
          "rms_norm_eps": 1e-5, "attention_bias": True, "lm_head_bias": True, "sliding_window": 256}
SHORT = [1, 2, 5, 9, 17, 33, 40]
LONG = [1, 7, 31, 97, 131, 200]

# Each case: family, style of config.json, stored dtype, sizes, rope; optional: extra config keys, eos (written to
# generation_config.json as an int or a list; None leaves that file out), shards, max_model_len, prompt lengths.
CASES = {
    "qwen3_tied": dict(
        family="qwen3", style="new", sizes=sizes(48, 4, 2, 96, head_dim=16, tied=True), rope={"rope_theta": 1000000.0}),
    "qwen3_untied": dict(
        family="qwen3", style="old", sizes=sizes(40, 4, 2, 88, head_dim=16), rope={"rope_theta": 1000000}, eos="int"),
    "qwen3_sharded": dict(
        family="qwen3", style="new", sizes=sizes(40, 8, 2, 80, layers=3, head_dim=8), rope={"rope_theta": 10000.0},
        shards=3),
    # Qwen3-0.6B is published so: tied, and yet with an lm_head.weight in the file (equal to the embedding).
    "qwen3_tied_head_stored_bf16": dict(
        family="qwen3", style="old", dtype="bfloat16", sizes=sizes(64, 4, 2, 96, head_dim=32, tied=True),
        rope={"rope_theta": 1000000}, store_tied_head=True),
    "qwen3_odd_sizes": dict(
        family="qwen3", style="old", sizes=sizes(60, 4, 2, 77, layers=3, head_dim=20), rope={"rope_theta": 500000.0}),
    "qwen3_attention_bias": dict(
        family="qwen3", style="new", sizes=sizes(36, 6, 3, 70, vocab=150, head_dim=14), rope={"rope_theta": 20000.0},
        extra={"attention_bias": True}, eos="int"),
    "qwen3_yarn_old_keys": dict(
        family="qwen3", style="old", sizes=sizes(48, 4, 2, 72, head_dim=24, max_positions=256),
        rope={"rope_theta": 1000000.0, "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        lengths=LONG),
    "qwen3_dynamic_ntk": dict(
        family="qwen3", style="old", sizes=sizes(48, 4, 2, 72, head_dim=16, max_positions=64),
        rope={"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}, lengths=LONG, max_model_len=256),
    "qwen2_bias": dict(
        family="qwen2", style="old", sizes=sizes(48, 6, 2, 90), rope={"rope_theta": 1000000.0}, eos="int"),
    "qwen2_mha_f16": dict(
        family="qwen2", style="new", dtype="float16", sizes=sizes(64, 4, 4, 96, tied=True),
        rope={"rope_theta": 10000.0}),
    "qwen2_yarn_mscale": dict(
        family="qwen2", style="new", sizes=sizes(64, 4, 2, 64, max_positions=320),
        rope={"rope_theta": 10000.0, "rope_type": "yarn", "factor": 5.0, "original_max_position_embeddings": 64,
              "mscale": 1.3, "mscale_all_dim": 0.7, "truncate": False}, lengths=LONG),
    "llama_mha_defaults": dict(  # no num_key_value_heads, no rope_theta: the library's defaults hold
        family="llama", style="old", sizes=sizes(48, 4, None, 80), rope={}, eos=None),
    "llama_one_kv_head": dict(
        family="llama", style="old", sizes=sizes(48, 6, 1, 80, head_dim=12), rope={"rope_theta": 10000.0},
        extra={"pretraining_tp": 1}, eos="int"),
    "llama_biases": dict(
        family="llama", style="old", sizes=sizes(48, 4, 2, 80), rope={"rope_theta": 500000.0},
        extra={"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    "llama_llama3_old_keys": dict(
        family="llama", style="old", sizes=sizes(64, 4, 2, 72),
        rope={"rope_theta": 500000.0, "rope_type": "llama3"} | LLAMA3, lengths=LONG,
        extra={"attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5}),
    "llama_llama3_new_keys": dict(
        family="llama", style="new", sizes=sizes(40, 4, 2, 72, head_dim=20, tied=True),
        rope={"rope_theta": 10000.0, "rope_type": "llama3"} | LLAMA3 | {"factor": 32.0}, lengths=LONG),
    "llama_linear": dict(
        family="llama", style="old", sizes=sizes(48, 4, 2, 72),
        rope={"rope_theta": 10000.0, "type": "linear", "factor": 3.0}, lengths=LONG),
    "llama_yarn_new_keys": dict(
        family="llama", style="new", sizes=sizes(64, 4, 2, 64, max_positions=256),
        rope={"rope_theta": 50000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
              "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0}, lengths=LONG),
    "mixtral_top2": dict(
        family="mixtral", style="old", sizes=sizes(48, 4, 2, 40), rope={"rope_theta": 1000000.0},
        extra={"num_local_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "sliding_window": None}),
    "mixtral_sharded_bf16": dict(
        family="mixtral", style="new", dtype="bfloat16", sizes=sizes(40, 4, 1, 24, layers=3),
        rope={"rope_theta": 10000.0}, eos="int", shards=3,
        extra={"num_local_experts": 6, "num_experts_per_tok": 3, "rms_norm_eps": 1e-5, "sliding_window": 4096}),
    "qwen2_moe_shared": dict(
        family="qwen2_moe", style="old", sizes=sizes(48, 4, 4, 64), rope={"rope_theta": 1000000.0},
        extra={"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "norm_topk_prob": False,
               "shared_expert_intermediate_size": 56, "decoder_sparse_step": 1, "sliding_window": 32768}),
    # Layers 1, 3 and 5 would have experts; mlp_only_layers takes them from 3.
    "qwen2_moe_some_layers": dict(
        family="qwen2_moe", style="new", sizes=sizes(40, 4, 2, 56, layers=6), rope={"rope_theta": 10000.0}, eos="int",
        extra={"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 28, "norm_topk_prob": True,
               "shared_expert_intermediate_size": 32, "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "qwen3_moe_normed": dict(
        family="qwen3_moe", style="old", sizes=sizes(48, 4, 2, 80, head_dim=16), rope={"rope_theta": 1000000.0},
        extra={"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True,
               "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False}),
    # transformers 5 writes num_local_experts.
    "qwen3_moe_new_keys": dict(
        family="qwen3_moe", style="new", sizes=sizes(36, 6, 3, 48, head_dim=14, tied=True),
        rope={"rope_theta": 20000.0},
        extra={"num_local_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 22, "attention_bias": True}),
    # At the end, because a case's seed is its place.
    "llama_2_f16": dict(  # the keys of Llama-2-7b-hf: no rope_theta, no head_dim, as many KV heads as heads
        family="llama", style="old", dtype="float16", sizes=sizes(64, 4, 4, 112, max_positions=128),
        rope={}, extra={"pretraining_tp": 1, "rms_norm_eps": 1e-5}),
    # longrope's factors for short texts, which a table of original_max_position_embeddings has, and those for long ones.
    "phimoe_short": dict(
        family="phimoe", style="old", sizes=sizes(48, 4, 2, 40, max_positions=256), rope=LONGROPE, extra=PHIMOE,
        lengths=[1, 2, 5, 9, 17, 33], max_model_len=64),
    "phimoe_long": dict(
        family="phimoe", style="new", sizes=sizes(48, 4, 1, 32, layers=3, max_positions=256),
        rope={"rope_type": "longrope"} | {key: value for key, value in LONGROPE.items() if key != "type"},
        extra=PHIMOE | {"attention_bias": False, "lm_head_bias": False}, eos="int", lengths=LONG),
    "opt_pre_norm": dict(family="opt", style="old", sizes=sizes(48, 4, None, 72, max_positions=64), rope={}, lengths=[1, 2, 5, 17, 36]),
    # What opt-350m does otherwise: norms after the additions, none at the end, a narrower embedding.
    "opt_post_norm_f16": dict(
        family="opt", style="old", dtype="float16", sizes=sizes(48, 4, None, 80, max_positions=128), rope={},
        eos="int", extra={"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    # As Galactica has it, with other switches besides.
    "opt_gelu_no_bias": dict(
        family="opt", style="old", sizes=sizes(40, 4, None, 64, max_positions=128), rope={},
        extra={"activation_function": "gelu", "enable_bias": False, "_remove_final_layer_norm": True,
               "tie_word_embeddings": False}),
}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def is_router(name):
    return name.endswith(("mlp.gate.weight", "mlp.router.weight"))


def randomize(model, generator):
    """Weights under which every part of the model shows in the logits."""

    def normal(shape):
        return torch.randn(shape, generator=generator)

    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if "norm" in name and name.endswith("bias"):  # a larger one would send all tokens to the same experts
            value = 0.15 * normal(shape)
        elif name.endswith("bias"):
            value = 0.4 * normal(shape)
        elif "q_norm" in name or "k_norm" in name:
            value = 1.5 + 0.4 * normal(shape)
        elif "norm" in name:
            value = 1.0 + 0.3 * normal(shape)
        elif "embed_tokens" in name and isinstance(model, OPTForCausalLM):  # tied: others would repeat the last token
            value = (0.15 if model.config.do_layer_norm_before else 1.0) * normal(shape)
        elif "embed_tokens" in name or "embed_positions" in name:
            value = 0.5 * normal(shape)
        elif "q_proj" in name or "k_proj" in name:
            value = 1.5 * normal(shape) / shape[-1] ** 0.5
        elif "lm_head" in name or is_router(name):
            value = 2.0 * normal(shape) / shape[-1] ** 0.5
        else:
            value = 1.2 * normal(shape) / shape[-1] ** 0.5
        parameter.data.copy_(value)


def published_tensors(model):
    """By the names that published checkpoints have: of experts other ones than the model's own."""
    if not any(is_router(name) for name in model.state_dict()):
        return model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def save_weights(folder, model, case, dtype):
    tensors = published_tensors(model)
    tensors = {name: tensor.detach().to(dtype).contiguous().clone() for name, tensor in tensors.items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
        if case.get("store_tied_head"):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    shards = case.get("shards", 1)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(sorted(tensors.items())) if i % shards == shard}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= {name: file for name in part}
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def fix_longrope(model, max_model_len):
    """One set of factors for all, that of max_model_len.

    transformers' Phi-3.5-MoE takes the short factors for every text and only the scale of long ones, a mistake: its
    rotary embedding asks for the frequencies without saying the length. Ladder takes both from max_model_len, as vLLM does.
    """
    rope = model.config.rope_parameters
    if max_model_len > rope["original_max_position_embeddings"]:
        rope["short_factor"], rope["short_mscale"] = rope["long_factor"], rope["long_mscale"]
    else:
        rope["long_factor"], rope["long_mscale"] = rope["short_factor"], rope["short_mscale"]


def fix_dynamic_base(model, max_model_len):
    """Dynamic NTK with one base for all.

    transformers recomputes the base from the longest sequence it has seen, so a token's key depends on what came
    later; an engine that caches keys cannot follow it. Ladder takes the base that belongs to max_model_len from the
    first token on. The golden does the same: the frequencies of seq_len = max_model_len, and no update.
    """
    rotary = model.model.rotary_emb
    inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS["dynamic"](model.config, seq_len=max_model_len)
    rotary.inv_freq.copy_(inv_freq)
    rotary.rope_type = "default"


@torch.no_grad()
def all_logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def router_gap(model, ids):
    """The smallest distance, over tokens and layers, between the last expert chosen and the first one not chosen."""
    gap = float("inf")

    def look(router, args, _):
        nonlocal gap
        logits = torch.nn.functional.linear(args[0].reshape(-1, args[0].shape[-1]), router.weight)
        best = logits.topk(router.top_k + 1).values
        gap = min(gap, (best[:, -2] - best[:, -1]).min().item())
        if hasattr(router, "router_jitter_noise"):  # sparsemixer: also the order, and who is near enough to be weighed
            gap = min(gap, (best[:, 0] - best[:, 1]).min().item())
            for first in best[:, :1], best[:, 1:2]:
                distance = (first - logits) / logits.abs().clamp(min=first) - 2 * router.router_jitter_noise
                gap = min(gap, distance.abs().min().item())

    routers = [module for name, module in model.named_modules() if is_router(name + ".weight")]
    handles = [router.register_forward_hook(look) for router in routers]
    all_logits(model, ids)
    for handle in handles:
        handle.remove()
    return gap


def golden_prompt(model, ids, num_greedy):
    """One entry of golden.json's prompts, and its smallest gap. Greedy recomputes everything at each token."""
    first = all_logits(model, ids)
    positions = list(range(len(ids))) if len(ids) <= ALL_POSITIONS_UP_TO else [len(ids) - 1]
    sequence, gap = list(ids), float("inf")
    for _ in range(num_greedy):
        best = all_logits(model, sequence)[-1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        sequence.append(best.indices[0].item())
    return {
        "token_ids": list(ids),
        "logit_positions": positions,
        "logits": [[float(f"{x:.9g}") for x in first[p].tolist()] for p in positions],
        "greedy_token_ids": sequence[len(ids):],
        "min_gap": gap,
    }


def check_every_tensor_matters(name, model, ids, generator):
    reference = all_logits(model, ids)
    smallest = (float("inf"), "")
    for parameter_name, parameter in model.named_parameters():
        if isinstance(model, OPTForCausalLM) and parameter_name.endswith("k_proj.bias"):
            continue  # without a rotation it adds the same to all scores of a query, and the softmax takes it away
        # A matrix or a vector; of experts the matrices.
        for part in parameter.data if parameter.dim() == 3 else [parameter.data]:
            saved = part.clone()
            part += 0.1 * saved.std() * torch.randn(saved.shape, generator=generator)
            effect = ((all_logits(model, ids) - reference).norm() / reference.norm()).item()
            part.copy_(saved)
            smallest = min(smallest, (effect, parameter_name))
    if smallest[0] < MIN_EFFECT:
        raise SystemExit(f"{name}: disturbing {smallest[1]} moves the logits by {smallest[0]:.1e} only")
    return smallest[0]


def check_rope_matters(name, model, ids):
    """The scaled frequencies must give other logits than the plain ones."""
    rotary = model.model.rotary_emb
    saved, scaling = rotary.inv_freq.clone(), rotary.attention_scaling
    reference = all_logits(model, ids)
    plain, _ = rotary.compute_default_rope_parameters(model.config)
    rotary.inv_freq.copy_(plain)
    init = getattr(rotary, "rope_init_fn", None)  # Phi-3.5-MoE asks it at every step
    rotary.rope_init_fn = lambda *args, **kwargs: (plain, 1.0)
    effect = ((all_logits(model, ids)[-1] - reference[-1]).norm() / reference[-1].norm()).item()
    rotary.inv_freq.copy_(saved)
    rotary.attention_scaling, rotary.rope_init_fn = scaling, init
    if effect < 100 * MIN_EFFECT:
        raise SystemExit(f"{name}: without its rope scaling the logits move by {effect:.1e} only")


def make_case(name, case, folder, seed):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    dtype = case.get("dtype", "float32")
    config = config_file(case["family"], case["style"], dtype, case["sizes"], case["rope"], case.get("extra", {}))
    vocab = config["vocab_size"]
    config |= {"bos_token_id": 1, "eos_token_id": 2}
    write_json(folder / "config.json", config)

    skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    randomize(skeleton, generator)
    save_weights(folder, skeleton, case, getattr(torch, dtype))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if any(is_router(name) for name in model.state_dict()):
        model.set_experts_implementation("eager")  # the grouped one does not take every width
    if case["family"] == "phimoe":
        fix_longrope(model, case.get("max_model_len", case["sizes"]["max_position_embeddings"]))
    elif "max_model_len" in case:
        fix_dynamic_base(model, case["max_model_len"])

    prompts, rejected = [], 0
    for length in case.get("lengths", SHORT):
        while True:
            ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
            entry = golden_prompt(model, ids, NUM_GREEDY)
            if entry["min_gap"] >= MIN_GAP and router_gap(model, ids + entry["greedy_token_ids"]) >= MIN_ROUTER_GAP:
                break
            rejected += 1
        prompts.append(entry)

    # End tokens that occur: the one that comes sixth in the middle prompt's answer, and for lists a second one.
    eos_style, sixth = case.get("eos", "list"), prompts[len(prompts) // 2]["greedy_token_ids"][5]
    if eos_style is None:
        eos = [config["eos_token_id"]]
    else:
        eos = [sixth] if eos_style == "int" else [sixth, prompts[-1]["greedy_token_ids"][10]]
        write_json(folder / "generation_config.json",
                   {"bos_token_id": 1, "eos_token_id": eos[0] if eos_style == "int" else eos, "do_sample": False})
    for entry in prompts:
        hits = [i for i, token in enumerate(entry["greedy_token_ids"]) if token in eos]
        entry["num_tokens_until_eos"] = hits[0] + 1 if hits else None

    longest = prompts[-1]["token_ids"]
    effect = check_every_tensor_matters(name, model, longest, generator)
    if case["rope"].keys() - {"rope_theta"}:
        check_rope_matters(name, model, longest)

    golden = {"oracle": {"transformers": transformers.__version__, "torch": torch.__version__}, "seed": seed}
    if "max_model_len" in case:
        golden["max_model_len"] = case["max_model_len"]
    golden |= {"eos_token_ids": eos, "prompts": prompts}
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    distinct = len({token for entry in prompts for token in entry["greedy_token_ids"]})
    size = sum(file.stat().st_size for file in folder.iterdir())
    gap = min(entry["min_gap"] for entry in prompts)
    print(f"{name:30} {size / 1024:6.0f} KiB  min gap {gap:.4f}  rejected {rejected:2}  "
          f"distinct greedy tokens {distinct:3}  least effect of a tensor {effect:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder that gets one folder per case")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), help="these cases alone")
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for index, (name, case) in enumerate(CASES.items()):
        if not args.only or name in args.only:
            make_case(name, case, args.out / name, args.seed + index)


if __name__ == "__main__":
    main()
