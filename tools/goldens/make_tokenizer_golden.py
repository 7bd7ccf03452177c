#!/usr/bin/env python3
"""Write tests/goldens/tokenizer/: five small tokenizers and what Hugging Face tokenizers make of difficult texts.

They differ in what tokenizer.json can say: Qwen's way (NFC, one digit), Llama 3's (ignore_merges, three digits, a
begin token by TemplateProcessing), GPT-2's (ByteLevel with its own pattern and a prefix space, merges as strings), one
with a pattern that is none of the known ones and with every option of added tokens, and one whose added tokens stand
within, across and beside its special ones and whose turn tokens are not special.

Run: pip install tokenizers==0.23.2; python3 tools/goldens/make_tokenizer_golden.py
"""
import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
OTHER = r"[^\S\n]+\n?|(?<=\d)\.(?=\d)|\p{L}{1,6}|[\p{N}']{2,}|\P{L}"

CORPUS = """The old mill stands where the river bends, and the miller's daughter keeps its books.
She wouldn't say how many sacks they'd ground that year; it's 1250, or 1,300 if you count the broken ones.
def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / len(values)
for (int i = 0; i < count; ++i) {\n\tsum += data[i] * weight[i];\n}\nreturn sum;\n
Der Fluss fließt nördlich der Stadt. Où est la bibliothèque? El niño comió una manzana.
Привет, как дела сегодня? 今天天气很好,我们去公园散步。東京は大きな都市です。안녕하세요, 반갑습니다.
สวัสดีครับ ยินดีต้อนรับ नमस्ते दुनिया مرحبا بالعالم שלום עולם Γειά σου Κόσμε
{"name": "value", "list": [1, 2, 3], "nested": {"true": false}}\r\n<p class="x">text &amp; more</p>
"""

WORDS = ["the", "The", "river", " miller's", "don't", "WE'LL", "I'M", "he'ſ", "x'S", "'re", "naïve", "mean(values)",
         "==", "->", "!!", "...", "#include", "\t", "\n", "\r\n", "\n\n", " ", "  ", "     ", "\u00a0", "\u3000",
         "\u0085", "\u180e", "\u200b", "\u200d", "\u2028", "\v", "\f", "\x00", "\x1f", "\x7f", "1", "12", "1234567",
         "3.14", "١٢٣", "½", "Ⅷ", "²", "今天", "天气很好", "東京", "안녕", "하세요", "สวัสดี", "नमस्ते", "مرحبا", "שלום", "👩‍👩‍👧",
         "🇩🇪", "👍🏽", "😀", "é", "e\u0301", "a\u0323\u0307", "\u0301", "\u0307\u0323", "\u1112\u1161\u11ab", "\u212b",
         "\u0344", "\u0958", "\ufb01", "\u01c5", "K", "ſ", "İ", "ß", "\U0001d11e", "\U0001e030", "\U00010d4a",
         "\U00011f50", "\U0002ebf0", "\U000e0061", "\uffff", "\U0010ffff", "\u0898", "\U00011938", "_", "a_b", "'", "''",
         "<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<|im_start", "<<|im_end|>>", "<think>", "</think>", "<thi",
         "there!", "there", "[MASK]", " [MASK] ", "a[MASK]b", "##", "a##", "## ", "é!", "e\u0301!", "<|begin|>"]

NEWER = [0x1c89, 0xa7cb, 0x105c0, 0x10d4a, 0x11380, 0x13460, 0x16d40, 0x1e5d0, 0x31350]


def random_text(rng):
    """A text of a random kind: words that are trouble, characters of one script, or any characters at all."""
    kind = rng.random()
    if kind < 0.6:
        glue = rng.choice(["", "", " ", "\n"])
        return glue.join(rng.choice(WORDS) for _ in range(rng.randint(1, 14)))
    if kind < 0.85:
        first, last = rng.choice([(0x20, 0x7e), (0, 0x20), (0xa0, 0x17f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff),
                                  (0x900, 0xdff), (0xe00, 0xe7f), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f),
                                  (0x3040, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0x1f300, 0x1faff)])
        return "".join(chr(rng.randint(first, last)) if rng.random() < 0.85 else rng.choice(" \n'a1")
                       for _ in range(rng.randint(1, 30)))
    points = (rng.choice(NEWER) if rng.random() < 0.1 else rng.randrange(0x110000) for _ in range(rng.randint(1, 12)))
    return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)


def train(vocabulary, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def with_model(tokenizer, **changes):
    """The tokenizer with its model's options changed, which the library only reads from a file."""
    data = json.loads(tokenizer.to_str())
    data["model"].update(changes)
    return Tokenizer.from_str(json.dumps(data))


def qwen():
    tokenizer = train(640)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    return tokenizer


def llama3():
    tokenizer = train(640)
    vocabulary = tokenizer.get_vocab()
    # Words that no merges lead to: only ignore_merges finds them.
    data = json.loads(tokenizer.to_str())
    for word in ("Ġriver", "bibliothÃ¨que", "Ġxyzzy", "12345", "ä»Ĭå¤©å¤©"):
        data["model"]["vocab"].setdefault(word, len(data["model"]["vocab"]))
    data["normalizer"] = None
    data["model"]["ignore_merges"] = True
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = LLAMA3
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t in ("<|begin|>", "<|im_start|>", "<|im_end|>")])
    assert len(vocabulary) <= tokenizer.token_to_id("<|begin|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B",
                                      special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])])
    return tokenizer


def gpt2():
    tokenizer = train(500)
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False, special=True)])
    return tokenizer


def odd():
    tokenizer = train(400)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(OTHER), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", normalized=True, special=True),
                                  AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("##", single_word=True, normalized=False), AddedToken("é!", normalized=True),
                          AddedToken("\u00e9", normalized=False, rstrip=True), AddedToken("the", normalized=False),
                          AddedToken("there!", normalized=False),
                          AddedToken("<|im_", normalized=False, lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[MASK] $A <|im_end|>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[MASK]", "<|im_end|>")])
    return tokenizer


def nested():
    tokenizer = train(300)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False, special=True),
                                  AddedToken("<s>abc</s>", normalized=False, special=True),
                                  AddedToken("[S]", normalized=False, special=True, lstrip=True, rstrip=True),
                                  AddedToken("\u00e9nd", normalized=True, special=True)])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in
                          ("end", "b", "c</s>x", "S]]", "|>|", "<|", "<|im_start|>", "<|im_end|>", "<think>", "</think>")])
    tokenizer.add_tokens([AddedToken("nd", normalized=True)])
    return tokenizer


NESTED = ["<|end|>", "end", "<s>abc</s>", "<s>abc</s>x", "abc", "[S]", " [S] ", "[S]]", "<|end|>|", ">|", "<|", "|>", "b",
          "c</s>x", "<|im_start|>", "<|im_end|>", "<think>", "nd", "e\u0301nd", "\u00e9nd", "e\u0301", " ", "x", "<s>"]


def strings_for_merges(text):
    data = json.loads(text)
    data["model"]["merges"] = ["#version: 0.2"] + [" ".join(merge) for merge in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False)


def nested_texts(rng, count):
    return NESTED + ["".join(rng.choice(NESTED) for _ in range(rng.randint(1, 8))) for _ in range(count)]


def cases(tokenizer, rng, count, texts):
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        case = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}
        if plain != ids:
            case["plain_ids"] = plain
        yield case
    for _ in range(count // 4):  # ids that no text gives: broken characters, special tokens anywhere
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(1, 12))]
        yield {"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
               "skipped": tokenizer.decode(ids, skip_special_tokens=True)}


def main():
    folder = pathlib.Path(__file__).parent.parent.parent / "tests/goldens/tokenizer"
    for seed, make in enumerate((qwen, llama3, gpt2, odd, nested)):
        tokenizer = make()
        text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False)
        if make is gpt2:
            text = strings_for_merges(text)
            tokenizer = Tokenizer.from_str(text)
        target = folder / make.__name__
        target.mkdir(parents=True, exist_ok=True)
        (target / "tokenizer.json").write_text(text, encoding="utf-8")
        begin = tokenizer.encode("a").ids
        with (target / "cases.jsonl").open("w", encoding="utf-8") as out:
            header = {"oracle": f"tokenizers {tokenizers.__version__}", "seed": seed, "a_with_special_tokens": begin}
            print(json.dumps(header), file=out)
            rng = random.Random(seed)
            texts = nested_texts(rng, 200) if make is nested else [
                "", " ", "a", *WORDS, *(random_text(rng) for _ in range(110))]
            for case in cases(tokenizer, rng, 110, texts):
                print(json.dumps(case), file=out)
        print(make.__name__, tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
