"""The numbers worked by hand in the chapter of step 1 are what their formulas give.

Each function writes one block of the chapter; a block that the chapter does not hold word for word fails. To change an
example, change the function, run this file with --print, and paste. tests/step1_layers/chapter_examples_test.cpp gives
the same numbers to the operators.
"""

import math
import sys
import unittest
from pathlib import Path

CHAPTER = Path(__file__).resolve().parents[2] / "step1_layers/README.md"

QUERIES = ((2, 0, 0, 1), (0, 2, 0, 1), (1, 1, 1, 1))
KEYS = ((1, 0, 1, 0), (0, 2, 0, 0), (1, 1, 0, 2))
VALUES = ((10, 0), (0, 10), (4, 8))


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def listed(numbers, form):
    return ", ".join(form.format(number) for number in numbers)


def activation():
    xs = (-4, -1, 0, 1, 4)
    silu = [x / (1 + math.exp(-x)) for x in xs]
    gelu = [x / 2 * (1 + math.erf(x / math.sqrt(2))) for x in xs]
    return [f"{name:<8}" + "".join(form.format(x) for x in row)
            for name, form, row in (("x", "{:8d}", xs), ("silu(x)", "{:8.4f}", silu), ("gelu(x)", "{:8.4f}", gelu))]


def norm():
    x, weight = (1, 2, 2, 4), (1, 1, 1, 0.5)
    mean = sum(value * value for value in x) / len(x)
    out = [value / math.sqrt(mean) * w for value, w in zip(x, weight)]
    return [f"x = ({listed(x, '{}')}), weight = ({listed(weight, '{:g}')})",
            f"mean(x^2) = {mean:g}, its root {math.sqrt(mean):g}   ->   out = ({listed(out, '{:.1f}')})"]


def attention():
    def cells(numbers, form):
        return "".join(f"{form.format(number):>8}" for number in numbers) + f"{'-':>8}" * (3 - len(numbers))

    lines = [f"{'':19}{'k0':>8}{'k1':>8}{'k2':>8}"]
    for row, q in enumerate(QUERIES):
        products = [dot(q, k) for k in KEYS[:row + 1]]
        scores = [product / math.sqrt(len(q)) for product in products]
        exponentials = [math.exp(score - max(scores)) for score in scores]
        total = sum(exponentials)
        weights = [e / total for e in exponentials]
        out = [sum(w * v[i] for w, v in zip(weights, VALUES)) for i in range(2)]
        lines += [f"token {row}   q . k    {cells(products, '{:d}')}",
                  f"          score    {cells(scores, '{:.2f}')}",
                  f"          weight   {cells(weights, '{:.3f}')}     out = ({listed(out, '{:.2f}')})"]
    return lines


def online_softmax():
    scores, values = (1, 3, 2, 4), (10, 20, 30, 40)
    m, l, out = -math.inf, 0.0, 0.0
    lines = ["score  value   m'   e^(m - m')  e^(score - m')      l      out"]
    for score, value in zip(scores, values):
        largest = max(m, score)
        correction, weight = math.exp(m - largest), math.exp(score - largest)
        m, l, out = largest, l * correction + weight, out * correction + weight * value
        lines.append(f"{score:5d}  {value:5d}  {m:3d}  {correction:11.4f}  {weight:14.4f}  {l:.4f}  {out:7.4f}")
    total = sum(math.exp(score - 4) for score in scores)
    mixed = sum(math.exp(score - 4) * value for score, value in zip(scores, values))
    assert abs(total - l) < 1e-12 and abs(mixed - out) < 1e-12
    return [*lines, f"result: {out:.4f} / {l:.4f} = {out / l:.2f}"]


def philox(counter, key):
    """Philox4x32-10 (Random123)."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [second >> 32 ^ counter[1] ^ key[0], second & 0xFFFFFFFF,
                   first >> 32 ^ counter[3] ^ key[1], first & 0xFFFFFFFF]
        key = [key[0] + 0x9E3779B9 & 0xFFFFFFFF, key[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return counter


SEED, OUTPUT_INDEX = 3, 0
LOGITS = (2.0, 1.5, 0.0, -1.0)


def gumbel():
    words = philox((0, OUTPUT_INDEX, 0, 0), (SEED, 0))
    lines = ["token  logit    p       u       g   logit + g"]
    total = sum(math.exp(x) for x in LOGITS)
    scores = []
    for token, (logit, word) in enumerate(zip(LOGITS, words)):
        u = (word + 0.5) / 2**32
        g = -math.log(-math.log1p(-u))
        scores.append(logit + g)
        lines.append(f"{token:5d}  {logit:5.1f}  {math.exp(logit) / total:.3f}  {u:.4f}  {g:6.3f}  {logit + g:10.3f}")
    return [*lines, f"drawn: token {scores.index(max(scores))}"]


def rotation():
    lines = []
    for position in (0, 1, 2):
        angles = [position * 10000 ** (-2 * i / 4) for i in range(2)]
        x = [1.0, 2.0, 3.0, 4.0]
        turned = [x[i] * math.cos(angles[i]) - x[i + 2] * math.sin(angles[i]) for i in range(2)]
        turned += [x[i + 2] * math.cos(angles[i]) + x[i] * math.sin(angles[i]) for i in range(2)]
        lines.append(f"p = {position}: angles {listed(angles, '{:.2f}')}   -> ({listed(turned, '{:.3f}')})")
    return lines


def penalties():
    repetition, frequency, presence = 1.25, 0.1, 0.2
    logits, used, counts = [2.0, 1.0, -1.0, 0.5], (True, False, True, False), (2, 0, 0, 0)
    rows = [("logit", logits)]
    logits = [(x / repetition if x > 0 else x * repetition) if seen else x for x, seen in zip(logits, used)]
    rows.append(("after repetition", logits))
    logits = [x - frequency * count for x, count in zip(logits, counts)]
    rows.append(("after frequency", logits))
    logits = [x - presence * (count > 0) for x, count in zip(logits, counts)]
    rows.append(("after presence", logits))
    return [f"{'token':<18}" + "".join(f"{token:7d}" for token in range(4)),
            f"{'used in':<18}" + "".join(f"{cell:>7}" for cell in ("out 2x", "-", "prompt", "-")),
            *(f"{name:<18}" + "".join(f"{x:7.2f}" for x in row) for name, row in rows)]


def filters():
    p = (0.40, 0.20, 0.20, 0.12, 0.08)
    min_p, top_k, top_p = 0.4, 2, 0.55
    kept = {f"min-p {min_p}": [i for i, x in enumerate(p) if x >= min_p * max(p)],
            f"top-k {top_k}": [i for i, x in enumerate(p) if x >= sorted(p)[-top_k]],
            f"top-p {top_p}": [i for i in range(len(p)) if sum(p[:i]) < top_p]}  # in order of p, equals by id, already
    return [f"{'token':<12}" + "".join(f"{i:6d}" for i in range(len(p))),
            f"{'p':<12}" + "".join(f"{x:6.2f}" for x in p),
            *(f"{name:<12}" + "".join(f"{'keep' if i in ids else '-':>6}" for i in range(len(p)))
              for name, ids in kept.items())]


BLOCKS = (activation, norm, rotation, attention, online_softmax, penalties, filters, gumbel)


class Examples(unittest.TestCase):
    def test_the_chapter_holds_every_block(self):
        chapter = [line.strip() for line in CHAPTER.read_text().split("\n")]
        for block in BLOCKS:
            with self.subTest(block.__name__):
                lines = [line.strip() for line in block()]
                begins = [i for i, line in enumerate(chapter) if line == lines[0]]
                self.assertTrue(any(chapter[i:i + len(lines)] == lines for i in begins), "\n".join(block()))


if __name__ == "__main__":
    if "--print" in sys.argv:
        print("\n\n".join("\n".join(f"    {line}" for line in block()) for block in BLOCKS))
    else:
        unittest.main()
