#!/usr/bin/env python3
"""Write tests/goldens/tokenizer_sp/: what Hugging Face tokenizers makes of 3,000 texts by tokenizers of the SentencePiece kind.

model.json is the `model` of a tokenizer.json: SentencePiece trains it as it did Llama 2's (bpe, byte_fallback, split_digits),
and the merges come from the pieces and their scores as transformers' converter makes them. It is trained where the file is
missing, and kept else: the texts that it learns from are those of the machine. kinds.json has the other fields of a
tokenizer.json for each kind (Llama 2 old and new, Mistral, Phi 3, Gemma, ...), changes of the model, and what the library says:
16 bits of a hash for each text and for each list of ids, which tests/step2_model/sentencepiece_test.cpp draws from the same
seed. The first texts of each kind stand there with their ids, to be read.

Run: pip install tokenizers==0.22.2 sentencepiece==0.2.1; python3 tools/goldens/make_sentencepiece_golden.py
"""
import json
import pathlib
import sys
import tempfile

import tokenizers
from tokenizers import Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_tokenizer_golden import CORPUS, WORDS  # noqa: E402

GOLDENS = pathlib.Path(__file__).parent.parent.parent / "tests/goldens"
TEXTS, LISTS, SHOWN = 3000, 1000, 8
MASK = (1 << 64) - 1

FRAGMENTS = WORDS + [
    "▁", "▁the", " ▁ ", "<s>", "</s>", "<unk>", " <s> ", "</s>\n", "<s", "<0x0A>", "<0xE4>", "<|user|>", "<|user|>  \n",
    "<|end|>", "  <|end|>", "user", "the old mill", " stands", "river bends", "ground that year", "return total", "(int i = 0;",
    "l'été", "größe", "Gerät", "zażółć", "дом", "ελ", "天气", "」", "🙂", "🏳️‍🌈", "\u2581\u2581", "``", "''", "a\u2009b", "\ufeff", "\r",
    "0", "007", "1e9", "$", "§", "xxxxxxxx", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
RANGES = [[0x20, 0x7e], [0, 0x20], [0x80, 0x17f], [0x300, 0x36f], [0x370, 0x52f], [0x590, 0x6ff], [0x900, 0xdff],
          [0x2000, 0x206f], [0x2580, 0x2583], [0x3040, 0x30ff], [0x4e00, 0x9fff], [0xac00, 0xd7a3], [0x1f300, 0x1faff],
          [0xfff0, 0x1000f], [0, 0x10ffff]]
GLUES = ["", "", " ", "  ", "\n"]


class Draws:
    """Numbers that the test draws too."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 33) % limit

    def text(self):
        kind = self.below(20)
        if kind < 14:
            glue = GLUES[self.below(len(GLUES))]
            count = 1 + self.below(12) if kind > 0 else 60
            return glue.join(FRAGMENTS[self.below(len(FRAGMENTS))] for _ in range(count))
        first, last = RANGES[self.below(len(RANGES))]
        points = (first + self.below(last - first + 1) for _ in range(1 + self.below(16)))
        return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)

    def ids(self, known):
        """Ids that no text gives: every other one is a byte's, so that characters are whole, cut and mixed up."""
        out = []
        for _ in range(1 + self.below(12)):
            out.append(known[3 + self.below(256)] if self.below(2) else known[self.below(len(known))])
        return out


def fold(value):
    return f"{(value ^ value >> 16) & 0xffff:04x}"


def hash_of(data):
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 & 0xffffffff
    return fold(value)


def hash_of_ids(ids):
    return hash_of(b"".join(i.to_bytes(4, "little", signed=True) for i in ids))


def train():
    import sentencepiece
    from pydoc_data import topics
    lines = (CORPUS * 40 + "\n".join(topics.topics.values())).split("\n")
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(lines), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=folder + "/sp", model_type="bpe", vocab_size=960, byte_fallback=True,
            split_digits=True, allow_whitespace_only_pieces=True, normalization_rule_name="identity",
            remove_extra_whitespaces=False, character_coverage=0.999, minloglevel=2)
        pieces = sentencepiece.SentencePieceProcessor(model_file=folder + "/sp.model")
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    merges = []
    for piece, number in vocabulary.items():  # as transformers.convert_slow_tokenizer.generate_merges
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                merges.append((pieces.get_score(number), piece[:cut], piece[cut:]))
    merges.sort(key=lambda m: (vocabulary[m[1]], vocabulary[m[2]]))
    merges.sort(key=lambda m: (m[0], len(m[1]), len(m[2])), reverse=True)
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": vocabulary, "merges": [[left, right] for _, left, right in merges]}


def added(number, content, special=True, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special} | flags


def template(before=(), after=()):
    names = {"<unk>": 0, "<s>": 1, "</s>": 2}
    pieces = lambda tokens: [{"SpecialToken": {"id": t, "type_id": 0}} for t in tokens]  # noqa: E731
    return {"type": "TemplateProcessing",
            "single": pieces(before) + [{"Sequence": {"id": "A", "type_id": 0}}] + pieces(after),
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [names[t]], "tokens": [t]} for t in (*before, *after)}}


def kinds(size):
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    legacy = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    decoder = lambda *stages: {"type": "Sequence", "decoders": list(stages)}  # noqa: E731
    llama = decoder(back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip)
    metaspace = lambda **options: {"type": "Metaspace", "replacement": "▁", **options}  # noqa: E731
    three = lambda **flags: [added(i, t, **flags) for i, t in enumerate(("<unk>", "<s>", "</s>"))]  # noqa: E731
    begin = template(["<s>"])
    base = {"normalizer": None, "pre_tokenizer": None, "post_processor": begin, "decoder": llama, "added_tokens": three()}
    return {
        # Llama 2 as first converted: the special tokens are sought in the normalized text.
        "llama2_old": base | {"normalizer": legacy, "added_tokens": three(normalized=True)},
        "mistral": base | {"normalizer": legacy},
        "llama2_new": base | {"pre_tokenizer": metaspace(prepend_scheme="first", split=False)},
        "phi3": base | {"normalizer": legacy, "merges_as_strings": True, "added_tokens": [
            *three()[:2], added(2, "</s>", special=False, rstrip=True), added(size, "<|end|>", rstrip=True),
            added(size + 1, "<|user|>", rstrip=True), added(size + 2, "the", special=False, lstrip=True)]},
        "gemma": base | {"normalizer": replace, "decoder": decoder(back, {"type": "ByteFallback"}, {"type": "Fuse"}),
                         "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                           "invert": False},
                         "added_tokens": three() + [added(size, "  ", special=False), added(size + 1, "\n\n", special=False)]},
        # No byte tokens are used: what has no token is <unk>, one for a run of them.
        "words": base | {"pre_tokenizer": metaspace(add_prefix_space=True), "decoder": metaspace(add_prefix_space=True),
                         "model": {"byte_fallback": False}, "post_processor": template(["<s>"], ["</s>"])},
        # Some bytes have no token; each unknown character is an <unk> of its own, and words of the vocabulary stay whole.
        "gaps": base | {"normalizer": {"type": "Sequence", "normalizers": [
                            {"type": "NFC"}, {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}]},
                        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                            metaspace(prepend_scheme="never", split=True), {"type": "Digits", "individual_digits": False}]},
                        "decoder": decoder({"type": "ByteFallback"}, metaspace(prepend_scheme="always"), {"type": "Fuse"}),
                        "model": {"fuse_unk": False, "ignore_merges": True}, "remove": ["<0xE4>", "<0x0A>", "<0xF0>"]},
        "gaps_fused": base | {"normalizer": legacy, "remove": ["<0xE4>", "<0x0A>", "<0xF0>"],
                              "pre_tokenizer": {"type": "Split", "pattern": {"String": "▁"}, "behavior": "Isolated",
                                                "invert": False}},
    }


def tokenizer_json(model, kind):
    """As the test puts it together."""
    model = model | kind.get("model", {})
    if "remove" in kind:
        model["vocab"] = {t: i for t, i in model["vocab"].items() if t not in kind["remove"]}
    if kind.get("merges_as_strings"):
        model["merges"] = [" ".join(merge) for merge in model["merges"]]
    fields = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")
    return {"version": "1.0", "truncation": None, "padding": None, "model": model} | {f: kind[f] for f in fields}


def ask(tokenizer, seed):
    draws = Draws(seed)
    ids_hashes, text_hashes, list_hashes, shown = [], [], [], []
    for number in range(TEXTS):
        text = draws.text()
        ids = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        ids_hashes.append(hash_of_ids(ids + [-1] + plain))
        text_hashes.append(hash_of(decoded.encode()))
        if number < SHOWN:
            shown.append({"text": text, "ids": ids, "plain": plain, "decoded": decoded})
    known = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    for _ in range(LISTS):
        ids = draws.ids(known)
        both = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
        list_hashes.append(hash_of("\0".join(both).encode()))
    return {"seed": seed, "ids": "".join(ids_hashes), "decoded": "".join(text_hashes), "lists": "".join(list_hashes),
            "shown": shown}


def main():
    folder = GOLDENS / "tokenizer_sp"
    folder.mkdir(exist_ok=True)
    path = folder / "model.json"
    if not path.exists():
        path.write_text(json.dumps(train(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    model = json.loads(path.read_text(encoding="utf-8"))
    all_kinds = kinds(max(model["vocab"].values()) + 1)
    for seed, kind in enumerate(all_kinds.values(), 1):
        kind["golden"] = ask(Tokenizer.from_str(json.dumps(tokenizer_json(model, kind))), seed)
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(kind, separators=(',', ':'))}" for name, kind in all_kinds.items())
    head = json.dumps({"oracle": f"tokenizers {tokenizers.__version__}", "fragments": FRAGMENTS, "ranges": RANGES,
                       "glues": GLUES}, separators=(",", ":"))
    (folder / "kinds.json").write_text(head[:-1] + ',"kinds":{\n' + lines + "}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
