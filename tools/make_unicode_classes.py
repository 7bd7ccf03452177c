#!/usr/bin/env python3
"""Write step2_model/tokenizer/unicode_classes.inc: which class each code point has for Hugging Face tokenizers.

Two tokenizers only agree on every text if they agree on what a letter is, and that depends on the Unicode version
of each library. So the classes are not taken from a Unicode release but asked of the oracle itself, code point by
code point:

  letter, number, space   what \\p{L}, \\p{N} and \\s match in a Split pre-tokenizer (Oniguruma)
  word                    what ends a `single_word` added token (Rust's regex crate)
  nfc_mark                what the NFC normalizer may reorder, replace or merge into the character before it
  nfc_base                what such a character may be merged into
  recent                  letters and numbers that Unicode 14, hence PCRE2 10.42, does not have

Run: pip install tokenizers==0.23.2; python3 tools/make_unicode_classes.py
"""
import pathlib
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

LETTER, NUMBER, SPACE, WORD, NFC_MARK, NFC_BASE, RECENT = (1 << i for i in range(7))
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matched_by(pattern):
    """The code points that the pattern matches: Split removes them, the others stay."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    kept = set()
    text = "".join(map(chr, CODE_POINTS))
    for _, (begin, end) in split.pre_tokenize_str(text):
        kept.update(range(begin, end))
    return {c for i, c in enumerate(CODE_POINTS) if i not in kept}


def word_characters():
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("##", single_word=True, normalized=False)])
    two = tokenizer.token_to_id("##")
    return {c for c in CODE_POINTS if c != ord("#") and two not in tokenizer.encode("##" + chr(c)).ids}


def nfc_classes():
    """Where Python's Unicode version and the oracle's agree about a character's normalization, it takes part in it;
    where they do not, the oracle does not know the character, and leaves it alone."""
    nfc = normalizers.NFC().normalize_str
    compositions = []
    for c in CODE_POINTS:
        parts = unicodedata.decomposition(chr(c))
        if parts and "<" not in parts and len(parts.split()) == 2:
            first, second = (chr(int(p, 16)) for p in parts.split())
            if unicodedata.normalize("NFC", first + second) == chr(c) == nfc(first + second):
                compositions.append((ord(first), ord(second)))
    vowels, trailing = set(range(0x1161, 0x1176)), set(range(0x11A8, 0x11C3))
    nfd = normalizers.NFD().normalize_str
    bases = {first for first, _ in compositions} | set(range(0x1100, 0x1113)) | set(range(0xAC00, 0xD7A4, 28))
    bases |= {c for c in CODE_POINTS if nfd(chr(c)) == unicodedata.normalize("NFD", chr(c)) != chr(c)}
    marks = {second for _, second in compositions} | vowels | trailing
    for c in CODE_POINTS:
        changed = unicodedata.normalize("NFC", chr(c)) != chr(c)
        probes = [chr(c), "a\u0301" + chr(c), "a\u0345" + chr(c), chr(c) + "\u0334", chr(c) + "\u0323\u0301"]
        if (unicodedata.combining(chr(c)) or changed) and all(
                nfc(p) == unicodedata.normalize("NFC", p) for p in probes):
            marks.add(c)
    return marks, bases


def main():
    classes = dict.fromkeys(range(0x110000), 0)
    marks, bases = nfc_classes()
    letters, numbers = matched_by(r"\p{L}"), matched_by(r"\p{N}")
    recent = {c for c in letters | numbers if unicodedata.category(chr(c)) == "Cn"}
    assert unicodedata.unidata_version == "14.0.0", "run under a Python that has Unicode 14 (3.11)"
    for bit, members in ((LETTER, letters), (NUMBER, numbers), (SPACE, matched_by(r"\s")), (WORD, word_characters()),
                         (NFC_MARK, marks), (NFC_BASE, bases), (RECENT, recent)):
        for c in members:
            classes[c] |= bit
    ranges = []
    for c in range(0x110000):
        if classes[c] and ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == classes[c]:
            ranges[-1][1] = c
        elif classes[c]:
            ranges.append([c, c, classes[c]])
    path = pathlib.Path(__file__).parent.parent / "step2_model/tokenizer/unicode_classes.inc"
    with path.open("w") as out:
        out.write(f"// {{first, last, classes}}: written by tools/make_unicode_classes.py from tokenizers "
                  f"{tokenizers.__version__}. Classes are the bits of\n// UnicodeClass; code points in no range "
                  f"have none.\n")
        line = ""
        for first, last, bits in ranges:
            item = f"{{0x{first:x}, 0x{last:x}, {bits}}}, "
            if len(line) + len(item) > 110:
                out.write(line.rstrip() + "\n")
                line = ""
            line += item
        out.write(line.rstrip() + "\n")
    print(f"{path.name}: {len(ranges)} ranges")


if __name__ == "__main__":
    main()
