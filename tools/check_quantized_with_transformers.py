#!/usr/bin/env python3
"""What `ladder quantize` writes, read by transformers and compressed-tensors: do both find the same model in it?

    pip install torch transformers compressed-tensors
    python3 tools/check_quantized_with_transformers.py --base models/tinyworld --ladder build/release/ladder FOLDER...

Random token ids go through each folder twice, with transformers in float32 and with `ladder score --dtype f32`. Compared
are the natural log probabilities of every token of the text and of the 20 likeliest at each position: their root
mean square difference must be at most 1e-3. Where compressed-tensors dequantizes to bfloat16 (NVFP4, MX), it must be at
most half of what quantizing itself changed, which is the same difference between the folder and --base, both with
transformers. Where inputs are quantized a number between two codes may be rounded either way, and what that changes in
one layer changes roundings in the next: the bound is then 1.25 times the largest of what transformers differs from itself by,
three times, with noise of 1e-7 on the embeddings. Where that noise turns no code, two programs still differ by their sums in
float32: a sum of K products in another order is off by about sqrt(K) * 2^-24 of its size (Higham and Mary 2019), a token goes
through some sums in turn, and their errors are independent of each other. So the bound is never less than 2^-24 * sqrt(K of all
of them) * the logits' root mean square. Keys and values are taken as they are, also where the folder has scales for
them: `ladder score` does so too.
Exit code 1 if a folder fails.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from transformers import AutoModelForCausalLM

TOP = 20
NOISE = 1e-7


def draw_texts(vocab, count, length, seed):
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(length)] for _ in range(count)]


def groups_of(folder):
    """The schemes of a quantized folder; of another one none."""
    config = json.loads((folder / "config.json").read_text()).get("quantization_config", {"config_groups": {}})
    return list(config["config_groups"].values())


def dequantizes_to_bfloat16(groups):
    """compressed-tensors does so with NVFP4 and the MX formats, whatever type is asked for."""
    return any(g["weights"]["type"] == "float" and g["weights"]["strategy"] in ("group", "tensor_group") for g in groups)


def shape_packed_zero_points():
    """compressed-tensors packs zero points, also where it writes a folder, but leaves them as they are when it shapes a model
    that has no weights yet (seen in 0.19 and 0.20): transformers then refuses every asymmetric folder, its own too."""
    compress = PackedQuantizationCompressor.compress.__func__

    def with_packed_zero_points(cls, state_dict, scheme):
        result, zeros = compress(cls, state_dict, scheme), state_dict.get("weight_zero_point")
        if state_dict["weight"].device.type == "meta" and zeros is not None and not scheme.weights.symmetric:
            rows = math.ceil(zeros.shape[0] * scheme.weights.num_bits / 32)
            result["weight_zero_point"] = torch.empty(rows, zeros.shape[1], dtype=torch.int32, device="meta")
        return result

    PackedQuantizationCompressor.compress = classmethod(with_packed_zero_points)


@torch.no_grad()
def log_probabilities(folder, texts, noise_seed=None):
    """Per text, of the next token at all positions but the last: [positions, vocabulary]."""
    dtype = torch.bfloat16 if dequantizes_to_bfloat16(groups_of(folder)) else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    for module in model.modules():
        if hasattr(module, "kv_cache"):
            module.quantization_enabled = False
    if dtype == torch.bfloat16:
        model(torch.tensor([texts[0]]), use_cache=False)  # dequantizes
        torch.nn.Module.float(model)  # model.float() refuses for quantized models
    if noise_seed is not None:
        embedding = model.get_input_embeddings()
        noise = torch.randn(embedding.weight.shape, generator=torch.Generator().manual_seed(noise_seed))
        # Not the weight itself, which may be the head's too.
        embedding.register_forward_hook(lambda _, ids, out: out * (1 + NOISE * noise[ids[0]]))
    return [model(torch.tensor([ids]), use_cache=False).logits[0, :-1].double().log_softmax(-1) for ids in texts]


def scores_of_ladder(ladder, folder, texts):
    """Per text, (position, token, log probability) of the text's tokens and of the likeliest."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps({"prompt_token_ids": ids}) + "\n" for ids in texts)
        file.flush()
        done = subprocess.run([ladder, "score", "--model", folder, "--input", file.name, "--format", "jsonl", "--top", str(TOP),
                               "--dtype", "f32"], stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    scores = {}
    for line in lines:
        if "index" in line:
            own = zip(line["token_ids"][1:], line["logprobs"][1:])
            scores[line["index"]] = [(i, *pair) for i, pair in enumerate(own)] + [
                (i, entry["token_id"], entry["logprob"]) for i, top in enumerate(line["top"][1:]) for entry in top]
    return [scores[i] for i in range(len(texts))]


def root_mean_square(values):
    return (sum(value * value for value in values) / len(values)) ** 0.5


def differs_from_itself(folder, theirs, ours, texts, seed):
    noisy = log_probabilities(folder, texts, seed)
    return root_mean_square([(noisy[text][position, token] - theirs[text][position, token]).item()
                             for text, scores in enumerate(ours) for position, token, _ in scores])


def of_roundings(folder, theirs):
    """What two programs may differ by that round nothing but their sums."""
    config = json.loads((folder / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    attended = heads * config.get("head_dim", hidden // heads)
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    # q, k and v; o; gate and up; down. And the head.
    lengths = config["num_hidden_layers"] * (hidden + attended + hidden + width) + hidden
    logits = torch.cat([values.flatten() for values in theirs])
    return 2.0**-24 * lengths**0.5 * logits.std().item()


def check(folder, base, ladder, texts):
    if not groups_of(folder):
        raise SystemExit(f"{folder}: is not quantized")
    theirs, ours = log_probabilities(folder, texts), scores_of_ladder(ladder, folder, texts)
    difference, effect = [], []
    for text in range(len(texts)):
        for position, token, logprob in ours[text]:
            difference.append(logprob - theirs[text][position, token].item())
            effect.append((theirs[text][position, token] - base[text][position, token]).item())
    difference, effect = root_mean_square(difference), root_mean_square(effect)
    groups = groups_of(folder)
    bound = 0.5 * effect if dequantizes_to_bfloat16(groups) else 1e-3
    if any(group["input_activations"] for group in groups):
        bound = 1.25 * max(differs_from_itself(folder, theirs, ours, texts, seed) for seed in range(3))
        bound = max(bound, of_roundings(folder, theirs))
    ok = difference <= bound
    print(f"{folder.name:28} difference {difference:.2e}  allowed {bound:.2e}  quantizing changed {effect:.2e}  "
          f"{'ok' if ok else 'FAILED'}", flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="what `ladder quantize --output` has made")
    parser.add_argument("--base", type=Path, required=True, help="the model that they were made of")
    parser.add_argument("--ladder", type=Path, required=True, help="the program")
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    shape_packed_zero_points()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    vocab = json.loads((args.base / "config.json").read_text())["vocab_size"]
    texts = draw_texts(vocab, args.texts, args.length, args.seed)
    base = log_probabilities(args.base, texts)
    failed = [folder.name for folder in args.folders if not check(folder, base, args.ladder, texts)]
    print(f"{len(args.folders)} folders, {len(failed)} failed" + "".join(f", {name}" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
