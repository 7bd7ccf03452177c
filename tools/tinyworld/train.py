#!/usr/bin/env python3
"""Trains the tiny model: a Qwen3 of 7.9 million parameters on documents of the small world.

    python3 tools/tinyworld/train.py models/tinyworld --steps 9000 --workers 15

reads tokenizer.json there (see make_tokenizer.py) and writes config.json, generation_config.json, model.safetensors
(bf16) and training_log.txt. Needs torch, tokenizers, numpy, safetensors and one GPU. Worker processes write the
documents while the GPU trains, each from its own seed, and batches are taken from them in turn: the data are a function
of the seed and the number of workers, and no document is seen twice.

The module names are those of transformers' Qwen3ForCausalLM, so the state dict is the checkpoint. Documents are packed
into rows of 2048 tokens and do not see each other (FlexAttention with a document mask).
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import world as w

SHAPE = {
    "vocab_size": 3072,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
ROPE_THETA = 10000.0
ROW = SHAPE["max_position_embeddings"]
IGNORED = -100


# --- data ----------------------------------------------------------------------------------------------------------


def pack(documents, end):
    """Documents (lists of ids) into rows of ROW tokens, first fit, longest first; the rest of a row is end tokens."""
    rows = []
    for ids in sorted(documents, key=len, reverse=True):
        ids = ids + [end]
        if len(ids) > ROW:
            continue
        row = next((row for row in rows if len(row) + len(ids) <= ROW), None)
        if row is None:
            rows.append(row := [])
        row.extend(ids)
    return [row + [end] * (ROW - len(row)) for row in rows]


def batches(tokenizer_file, split, seed, rows_per_batch):
    tokenizer = Tokenizer.from_file(tokenizer_file)
    end = tokenizer.token_to_id("<|endoftext|>")
    world = w.World(split, random.Random(seed))
    rows = []
    while True:
        encodings = tokenizer.encode_batch([w.document(world) for _ in range(1000)], add_special_tokens=False)
        new = pack([encoding.ids for encoding in encodings], end)
        world.rng.shuffle(new)
        rows += new
        while len(rows) >= rows_per_batch:
            yield np.array(rows[:rows_per_batch], dtype=np.int16)
            rows = rows[rows_per_batch:]


def produce(queue, *arguments):
    for batch in batches(*arguments):
        queue.put(batch)


def labels_of(ids, end):
    """The next token; nothing is asked across the border of two documents or at the end of a row."""
    labels = torch.full_like(ids, IGNORED)
    labels[:, :-1] = torch.where(ids[:, :-1] == end, IGNORED, ids[:, 1:])
    return labels


# --- model ---------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + SHAPE["rms_norm_eps"]) * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, self.head_dim = SHAPE["hidden_size"], SHAPE["head_dim"]
        self.q_proj = linear(hidden, SHAPE["num_attention_heads"] * self.head_dim)
        self.k_proj = linear(hidden, SHAPE["num_key_value_heads"] * self.head_dim)
        self.v_proj = linear(hidden, SHAPE["num_key_value_heads"] * self.head_dim)
        self.o_proj = linear(SHAPE["num_attention_heads"] * self.head_dim, hidden)
        self.q_norm = RMSNorm(self.head_dim)
        self.k_norm = RMSNorm(self.head_dim)

    def forward(self, x, cos, sin, mask):
        rows, length, _ = x.shape

        def heads(projected):
            return projected.view(rows, length, -1, self.head_dim)

        q = rotate(self.q_norm(heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = heads(self.v_proj(x)).transpose(1, 2)
        out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = linear(SHAPE["hidden_size"], SHAPE["intermediate_size"])
        self.up_proj = linear(SHAPE["hidden_size"], SHAPE["intermediate_size"])
        self.down_proj = linear(SHAPE["intermediate_size"], SHAPE["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.mlp = MLP()
        self.input_layernorm = RMSNorm(SHAPE["hidden_size"])
        self.post_attention_layernorm = RMSNorm(SHAPE["hidden_size"])

    def forward(self, x, cos, sin, mask):
        with torch.autocast("cuda", torch.bfloat16):
            x = x + self.self_attn(self.input_layernorm(x).bfloat16(), cos, sin, mask)
            return x + self.mlp(self.post_attention_layernorm(x).bfloat16())


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(SHAPE["vocab_size"], SHAPE["hidden_size"])
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(SHAPE["num_hidden_layers"]))
        self.norm = RMSNorm(SHAPE["hidden_size"])


class CausalLM(nn.Module):
    """Qwen3ForCausalLM with tied embeddings, float32 parameters, bf16 matrix products."""

    def __init__(self):
        super().__init__()
        self.model = Decoder()
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
                if "o_proj" in name or "down_proj" in name:
                    std /= math.sqrt(2 * SHAPE["num_hidden_layers"])
                nn.init.normal_(parameter, std=std)

    def loss(self, ids, labels, cos, sin, mask):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return head_loss(self.model.norm(x), self.model.embed_tokens.weight, labels)


@torch.compile(dynamic=False)
def head_loss(x, embedding, labels):
    with torch.autocast("cuda", torch.bfloat16):
        logits = F.linear(x, embedding)
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def rotary_tables(device):
    dim = SHAPE["head_dim"]
    inv_freq = 1.0 / ROPE_THETA ** (torch.arange(0, dim, 2, device=device).float() / dim)
    angles = torch.arange(ROW, device=device).float()[:, None] * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


compiled_block_mask = torch.compile(create_block_mask, dynamic=False)


def document_mask(ids, end):
    """Causal, and inside one document."""
    is_end = (ids == end).int()
    document = is_end.cumsum(1) - is_end  # the end token belongs to the document that it ends

    def see(batch, head, query, key):
        return (query >= key) & (document[batch, query] == document[batch, key])

    return compiled_block_mask(see, ids.shape[0], None, ROW, ROW, device=ids.device)


# --- training ------------------------------------------------------------------------------------------------------


def save(model, folder, tokenizer):
    tensors = {name: tensor.detach().to(torch.bfloat16).cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    end, im_end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id(w.IM_END)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": im_end,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": "qwen3",
        "pad_token_id": end,
        "rope_parameters": {"rope_theta": ROPE_THETA, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
    } | SHAPE
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": [im_end, end], "pad_token_id": end}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the folder with tokenizer.json, which gets the model")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--max-seconds", type=float, default=1e9, help="the learning rate falls faster, to end in time")
    parser.add_argument("--rows", type=int, default=32, help="rows of 2048 tokens in a batch")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=max(1, os.cpu_count() - 1))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    tokenizer_file = str(args.model / "tokenizer.json")
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(maxsize=8) for _ in range(args.workers)]
    for i, queue in enumerate(queues):
        context.Process(target=produce, args=(queue, tokenizer_file, w.TRAIN, f"{args.seed}/{i}", args.rows),
                        daemon=True).start()

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(tokenizer_file)
    end = tokenizer.token_to_id("<|endoftext|>")
    device = torch.device("cuda")
    model = CausalLM().to(device)
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    cos, sin = rotary_tables(device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), fused=True)

    log = (args.model / "training_log.txt").open("w")

    def say(line):
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    def loss_of(batch):
        ids = torch.from_numpy(batch).to(device, non_blocking=True).long()
        return model.loss(ids, labels_of(ids, end), cos, sin, document_mask(ids, end))

    held_out = next(batches(tokenizer_file, w.HELDOUT, "held out", args.rows))
    parameters = sum(p.numel() for p in model.parameters())
    say(f"{parameters} parameters, {args.steps} steps of {args.rows * ROW} tokens, seed {args.seed}, "
        f"{args.workers} workers, {torch.cuda.get_device_name()}, torch {torch.__version__}")
    start, waited, step, progress, running = time.time(), 0.0, 0, 0.0, torch.zeros((), device=device)
    while progress < 1:
        progress = max(step / args.steps, (time.time() - start) / args.max_seconds)
        rate = args.lr * min(1, (step + 1) / args.warmup) * 0.5 * (1 + math.cos(math.pi * min(1, progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        before = time.time()
        batch = queues[step % args.workers].get()
        waited += time.time() - before
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()
        step += 1
        if step % 250 == 0:
            with torch.no_grad():
                held_out_loss = loss_of(held_out).item()
            seconds = time.time() - start
            say(f"step {step:6}  loss {running.item() / 250:.4f}  held-out loss {held_out_loss:.4f}  lr {rate:.2e}  "
                f"{step * args.rows * ROW / 1e6:.0f} M tokens  {seconds:.0f} s  "
                f"{step * args.rows * ROW / seconds / 1e6:.2f} M tokens/s  waited {waited:.0f} s for data")
            running.zero_()
    torch.cuda.synchronize()
    say(f"done: {step} steps, {step * args.rows * ROW / 1e6:.0f} M tokens, {time.time() - start:.0f} s")
    save(model, args.model, tokenizer)


if __name__ == "__main__":
    main()
