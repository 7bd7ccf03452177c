#!/usr/bin/env python3
"""The held-out items answered by transformers, greedily, in float32: what a correct engine should reach.

    python3 tools/tinyworld/check_with_transformers.py models/tinyworld

answers <model>/eval/*.jsonl and prints the accuracy of each task and the perplexity of the held-out stories, then some
wrong answers. Needs torch and transformers. evaluate.py measures the same with Ladder.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import world as w


@torch.no_grad()
def answers(model, tokenizer, items, batch=64):
    """Greedy continuations, cut at the first stop string or end token."""
    newline, ends = tokenizer.encode("\n")[0], model.generation_config.eos_token_id
    order = sorted(range(len(items)), key=lambda i: len(items[i]["prompt"]))
    texts = [None] * len(items)
    for start in range(0, len(order), batch):
        part = order[start:start + batch]
        inputs = tokenizer([items[i]["prompt"] for i in part], return_tensors="pt", padding=True).to(model.device)
        stop_at_newline = bool(items[part[0]]["stop"])
        out = model.generate(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, do_sample=False,
            max_new_tokens=max(items[i]["max_tokens"] for i in part),
            eos_token_id=ends + [newline] * stop_at_newline)
        for i, row in zip(part, out[:, inputs.input_ids.shape[1]:].tolist()):
            text = tokenizer.decode(row[:items[i]["max_tokens"]])
            for stop in items[i]["stop"] + ["<|endoftext|>", w.IM_END]:
                text = text.split(stop)[0]
            texts[i] = text
    return texts


@torch.no_grad()
def perplexity(model, tokenizer, items):
    total, count = 0.0, 0
    for item in items:
        ids = torch.tensor([tokenizer.encode(item["prompt"])], device=model.device)
        logprobs = model(ids).logits[0, :-1].log_softmax(-1)
        total -= logprobs.gather(1, ids[0, 1:, None]).sum().item()
        count += ids.shape[1] - 1
    return math.exp(total / count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--failures", type=int, default=3, help="wrong answers to print of each task")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device).eval()
    wrong = []
    for task, items in w.read_items(args.model / "eval").items():
        start = time.time()
        if task == "text":
            print(f"perplexity of {len(items)} held-out stories: {perplexity(model, tokenizer, items):.3f}", flush=True)
            continue
        texts = answers(model, tokenizer, items)
        right = [w.is_right(task, text, item["answer"]) for text, item in zip(texts, items)]
        print(f"{task:10} {sum(right):4} of {len(items):4} = {100 * sum(right) / len(items):5.1f} %  "
              f"{time.time() - start:.1f} s", flush=True)
        failed = [i for i, ok in enumerate(right) if not ok]
        kinds = {}
        for i in failed:
            kinds[items[i]["kind"]] = kinds.get(items[i]["kind"], 0) + 1
        wrong += [f"{task} wrong by kind: {kinds}"] * bool(failed)
        wrong += [json.dumps({"prompt": items[i]["prompt"][-160:], "answer": items[i]["answer"], "got": texts[i]})
                  for i in failed[:args.failures]]
    print("\n".join(wrong))


if __name__ == "__main__":
    main()
