#!/usr/bin/env python3
"""Trains a Qwen3 of 102 million parameters on the documentation of Debian's packages, in as many seconds as there are.

    python3 tools/hundred/train.py /tmp/text /tmp/hundred --seconds 240

reads train.jsonl and heldout.jsonl (make_text.py) and writes to the second folder what `ladder` and transformers read: tokenizer, configuration,
weights in bf16; and training_log.txt. A tokenizer.json that is there already is used. Needs torch, transformers, tokenizers and one GPU
(--device cpu and --layers 1: to try it).

Documents are one long text, a token between them, cut into rows, whose order is drawn anew each time that all have been seen. The
learning rate falls with the time that is left, so the number of steps is known when it is done: it is in the log, and --steps asks for as many again.
"""
import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tinyworld"))
import make_tokenizer  # noqa: E402

VOCABULARY = 16384
ROW = 1024
END = make_tokenizer.SPECIAL[0]
FOR_TOKENIZER = 20_000_000  # characters that it is made from


def read(path):
    with path.open() as lines:
        return [json.loads(line)["text"] for line in lines]


def tokenizer_of(folder, texts):
    if not (folder / "tokenizer.json").exists():
        some, total = [], 0
        for text in texts:
            if total >= FOR_TOKENIZER:
                break
            some.append(text[:100_000])
            total += len(some[-1])
        tokenizer = make_tokenizer.train(some, VOCABULARY)
        (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer.tokenizer_json(tokenizer), ensure_ascii=False) + "\n")
        config = make_tokenizer.tokenizer_config(tokenizer) | {"model_max_length": ROW, "eos_token": END}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def rows_of(tokenizer, texts):
    """[rows, ROW + 1]: a row's last token is the next one's first, so every token but one is predicted."""
    end = tokenizer.token_to_id(END)
    parts = []
    for start in range(0, len(texts), 1000):
        for encoding in tokenizer.encode_batch(texts[start:start + 1000], add_special_tokens=False):
            parts.append(np.array(encoding.ids + [end], dtype=np.int64))
    stream = np.concatenate(parts)
    count = (len(stream) - 1) // ROW
    return torch.from_numpy(np.stack([stream[i * ROW:i * ROW + ROW + 1] for i in range(count)]))


def new_model(layers, end):
    torch.manual_seed(1)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=768, intermediate_size=2560, num_hidden_layers=layers, num_attention_heads=12,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=ROW, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, bos_token_id=None, eos_token_id=end, pad_token_id=end,
        attn_implementation="sdpa", use_cache=False))


def head_loss(x, head, next_ids):
    return F.cross_entropy(F.linear(x, head).float().flatten(0, 1), next_ids.flatten())


def loss_of(model, rows, head=head_loss):
    with torch.autocast(rows.device.type, torch.bfloat16):
        # No mask: the attention is causal by itself, which is its fast way.
        x = model.model(rows[:, :-1], attention_mask={"full_attention": None}, use_cache=False).last_hidden_state
        return head(x, model.lm_head.weight, rows[:, 1:])


def batches(rows, count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    left = torch.empty(0, dtype=torch.int64)
    while True:
        if len(left) < count:
            left = torch.cat((left, torch.randperm(len(rows), generator=generator)))
        yield rows[left[:count]]
        left = left[count:]


def train(model, rows, args, say):
    device = torch.device(args.device)
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    compiled_head = torch.compile(head_loss, dynamic=False)
    groups = [{"params": [p for p in model.parameters() if (p.dim() == 2) == is_matrix], "weight_decay": decay}
              for is_matrix, decay in ((True, 0.1), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
    start, step, running, counted = time.time(), 0, torch.zeros((), device=device), 0
    for batch in batches(rows, args.rows):
        by_time = (time.time() - start) / args.seconds
        progress = step / args.steps if args.steps else by_time
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / args.warmup) * 0.5 * (1 + math.cos(math.pi * progress))
        parts = batch.to(device, non_blocking=True).split(args.rows_at_once)
        for part in parts:
            loss = loss_of(model, part, compiled_head) / len(parts)
            loss.backward()
            running += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, counted = step + 1, counted + 1
        if step in (1, 10) or step % 100 == 0:
            seen, seconds = step * args.rows * ROW, time.time() - start
            say(f"step {step:5}  loss {running.item() / counted:.4f}  {seen / 1e6:.1f} M tokens  {seconds:.1f} s")
            running.zero_()
            counted = 0
    seen, seconds = step * args.rows * ROW, time.time() - start
    say(f"{step} steps, {seen / 1e6:.1f} M tokens, each {seen / rows.numel():.1f} times, {seconds:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="the folder of make_text.py")
    parser.add_argument("model", type=Path, help="the folder that gets the model")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--steps", type=int, default=0, help="so many steps, however long they take")
    parser.add_argument("--rows", type=int, default=64, help=f"rows of {ROW} tokens in a step")
    parser.add_argument("--rows-at-once", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    args.model.mkdir(parents=True, exist_ok=True)
    log = (args.model / "training_log.txt").open("w")

    def say(line):
        print(line, flush=True)
        print(line, file=log, flush=True)

    torch.set_float32_matmul_precision("high")
    start = time.time()
    texts = read(args.text / "train.jsonl")
    tokenizer = tokenizer_of(args.model, texts)
    rows, held_out = rows_of(tokenizer, texts), rows_of(tokenizer, read(args.text / "heldout.jsonl"))
    model = new_model(args.layers, tokenizer.token_to_id(END)).to(args.device)
    device = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, {len(rows) * ROW / 1e6:.1f} M tokens of text, {args.rows * ROW} a step, "
        f"learning rate {args.lr}; {device}, torch {torch.__version__}; read in {time.time() - start:.0f} s")
    train(model, rows, args, say)
    with torch.no_grad():
        losses = [loss_of(model, part).item() for part in held_out.to(args.device).split(1)]
    say(f"held-out loss {sum(losses) / len(losses):.4f}")
    model.to(torch.bfloat16).save_pretrained(args.model)


if __name__ == "__main__":
    main()
