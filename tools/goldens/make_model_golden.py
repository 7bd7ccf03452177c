#!/usr/bin/env python3
"""What transformers answers to some text prompts with a real checkpoint and its tokenizer, greedily, in float32.

    python3 tools/goldens/make_model_golden.py models/tinyworld models/tinyworld/demo_prompts.jsonl \
        tests/goldens/tinyworld.json

Per prompt: its token_ids; greedy_token_ids (end tokens ignored), cut before the first token whose distance from the
second best is below 1e-3, and their log probabilities (natural logarithm). Needs torch and transformers.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from make_checkpoints import MIN_GAP, all_logits

NUM_GREEDY = 40


def golden_text(model, tokenizer, prompt):
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    greedy, logprobs = [], []
    while len(greedy) < NUM_GREEDY:
        logits = all_logits(model, ids + greedy)[-1]
        best = logits.topk(2)
        if best.values[0] - best.values[1] < MIN_GAP:
            break
        greedy.append(best.indices[0].item())
        logprobs.append(float(f"{logits.log_softmax(-1)[greedy[-1]].item():.9g}"))
    return {"prompt": prompt, "token_ids": ids, "greedy_token_ids": greedy, "greedy_logprobs": logprobs,
            "greedy_text": tokenizer.decode(greedy)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path, help="a file with a line {\"prompt\": TEXT} for each prompt")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines()]
    golden = {"oracle": {"transformers": transformers.__version__, "torch": torch.__version__},
              "prompts": [golden_text(model, tokenizer, prompt) for prompt in prompts]}
    args.out.write_text(json.dumps(golden, indent=1) + "\n")
    for entry in golden["prompts"]:
        print(f"{len(entry['greedy_token_ids']):3} tokens: {entry['greedy_text']!r}")


if __name__ == "__main__":
    main()
