#!/usr/bin/env python3
"""Trains the tiny model's tokenizer on documents of the small world.

    python3 tools/tinyworld/make_tokenizer.py models/tinyworld

writes tokenizer.json and tokenizer_config.json: byte-level BPE with Qwen's pre-tokenizer, in the form in which Qwen3
publishes its own, the special tokens after the vocabulary. Needs `pip install tokenizers`.
"""

import argparse
import json
import random
from pathlib import Path

import world as w
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import AddedToken

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", w.IM_START, w.IM_END]
CHAT_TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}"
)


def train(documents, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL), min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    return tokenizer


def tokenizer_json(tokenizer):
    """As the library writes it, but for three fields that Qwen3's file says otherwise (and that change nothing)."""
    data = json.loads(tokenizer.to_str())
    data["decoder"] |= {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    data["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    return data


def tokenizer_config(tokenizer):
    added = {
        str(tokenizer.token_to_id(text)): {
            "content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True,
        }
        for text in SPECIAL
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": w.IM_END,
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the model's folder")
    parser.add_argument("--documents", type=int, default=30000)
    parser.add_argument("--vocab-size", type=int, default=3072, help="special tokens included")
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    world = w.World(w.TRAIN, random.Random(args.seed))
    # The tags of chats are special tokens, no text to merge.
    documents = [w.document(world).replace(w.IM_START, "").replace(w.IM_END, "") for _ in range(args.documents)]
    tokenizer = train(documents, args.vocab_size)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokenizer), indent=2, ensure_ascii=False) + "\n")
    (args.out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(tokenizer), indent=2) + "\n")
    sample = documents[:2000]
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(sample))
    print(f"{tokenizer.get_vocab_size()} tokens; {sum(map(len, sample)) / tokens:.2f} characters per token, "
          f"{tokens / len(sample):.0f} tokens per document")


if __name__ == "__main__":
    main()
