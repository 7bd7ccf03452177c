"""The committed tables of quality: the orders of formats and methods that the chapter says hold, each with a margin, and those
that it says do not. Whoever measures a table anew and gets another order has to say so in the chapter."""

import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "tools" / "hundred"))
import measure  # noqa: E402
import quantization_table as table  # noqa: E402

# The row that is nearer to the dense model, the other one, and the largest ratio of their divergences.
TINYWORLD = [
    ("RTN W4 g128", "RTN W4 channel", 0.8),
    ("RTN W4 g32", "RTN W4 g128", 0.8),
    ("RTN W4 g128 asym", "RTN W4 g128", 0.9),
    ("GPTQ W4 g128 asym", "GPTQ W4 g128", 0.9),
    ("GPTQ W4 channel", "RTN W4 channel", 0.75),
    ("GPTQ W4 g128", "RTN W4 g128", 0.75),
    ("GPTQ W3 g128", "RTN W3 g128", 0.75),
    ("GPTQ W4 channel", "GPTQ W4 channel, no order", 0.7),
    ("GPTQ W4 g128", "GPTQ W4 g128, no order", 0.7),
    ("AWQ W3 g128", "RTN W3 g128", 0.95),
    ("outliers: AWQ W4 g128 asym", "outliers: RTN W4 g128 asym", 0.65),
    ("outliers: SmoothQuant W8A8 (static)", "outliers: RTN W8A8 (static)", 0.05),
    ("RTN W8A8", "RTN W8A8 (static)", 0.05),
    ("2:4 Wanda", "2:4 magnitude", 0.9),
    ("2:4 SparseGPT", "2:4 Wanda", 0.9),
    ("2:4 SparseGPT and W4 g128 jointly", "2:4 SparseGPT, then RTN W4 g128", 1),
    ("2:4 SparseGPT and W4 g128 jointly", "2:4 SparseGPT, then GPTQ W4 g128", 1),
    ("2:4 SparseGPT and W4 g128 jointly", "2:4 SparseGPT and W4 g128 jointly, no order", 0.9),
    ("cache int8", "cache fp8", 0.1),
    ("cache fp8", "cache int4", 0.3),
]
# Those that do not hold: the row that is no nearer, and the one that it does not beat.
NOT_ON_TINYWORLD = [
    ("GPTQ W4 channel, no order", "RTN W4 channel"),
    ("GPTQ W4 g128, no order", "RTN W4 g128"),
    ("AWQ W4 g128", "RTN W4 g128"),
    ("SmoothQuant W8A8 (static)", "RTN W8A8 (static)"),
    ("2:4 SparseGPT and W4 g128 jointly, no order", "2:4 SparseGPT, then GPTQ W4 g128"),
]
# The largest KL divergence x 1000.
GATES = {"RTN FP8_DYNAMIC": 1.5, "RTN FP8_BLOCK": 1.5, "RTN FP8 (static)": 1.5, "RTN W8 g128": 0.1, "cache int8": 0.1}


def results(file):
    return json.loads((ROOT / "bench" / "results" / file).read_text())["results"]


class Tinyworld(unittest.TestCase):
    def setUp(self):
        self.kl = {row["name"]: row["eval"]["kl"] for row in results("cpu/quantization_table.json")}

    def test_every_method_and_format_is_in_it(self):
        self.assertEqual(list(self.kl), [name for name, *_ in table.rows()])

    def test_orders_hold(self):
        for nearer, other, ratio in TINYWORLD:
            with self.subTest(nearer=nearer, other=other):
                self.assertGreater(self.kl[nearer], 0)
                self.assertLess(self.kl[nearer], ratio * self.kl[other])

    def test_what_does_not_hold_is_shown_as_such(self):
        for one, other in NOT_ON_TINYWORLD:
            with self.subTest(one=one, other=other):
                self.assertGreater(self.kl[one], 0.98 * self.kl[other])

    def test_eight_bits_cost_next_to_nothing(self):
        for name, most in GATES.items():
            with self.subTest(name=name):
                self.assertLess(1000 * self.kl[name], most)


class HundredMillion(unittest.TestCase):
    # Of every order that was measured the whole interval is below 1: the chapter's last tables say yes in each line.
    def test_orders_hold(self):
        for name in ("quality_100m", "quality_100m_gptq_awq"):
            pieces = {row["name"]: row["kl_of_pieces"] for row in results(f"h200/{name}.json")}
            measured = [(one, other) for _, one, other in measure.ORDERS if one in pieces and other in pieces]
            self.assertGreaterEqual(len(measured), 14)
            for one, other in measured:
                with self.subTest(file=name, nearer=one, other=other):
                    value, error = measure.ratio(pieces[one], pieces[other])
                    self.assertLess(value + 1.96 * error, 1)


if __name__ == "__main__":
    unittest.main()
