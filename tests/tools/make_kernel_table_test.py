"""The table of the fastest kernels: who wins, what is noise, what is left out."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_kernel_table.py"
HEAD = "// Made by"


def table_of(times):
    """Lines that the tool prints for {name of a benchmark: microseconds, None: not measured}."""
    rows = [{"name": f"{name}/iterations:1/manual_time"} | ({} if us is None else {"median_us": us})
            for name, us in times.items()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        file.write_text(json.dumps({"benchmarks": rows}))
        done = subprocess.run([sys.executable, "-B", str(TOOL), str(file)], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    head, *lines = done.stdout.splitlines()
    assert head.startswith(HEAD)
    return lines


class Table(unittest.TestCase):
    def test_the_fastest_wins_and_neighbours_with_one_winner_are_one_line(self):
        self.assertEqual(
            table_of({"matmul/0.6b_o/m:1/cuda:slow": 9, "matmul/0.6b_o/m:1/cuda:fast": 3,
                      "matmul/0.6b_o/m:4/cuda:slow": 9, "matmul/0.6b_o/m:4/cuda:fast": 4,
                      "matmul/0.6b_o/m:16/cuda:slow": 8, "matmul/0.6b_o/m:16/cuda:fast": 9}),
            ['{"matmul", 1024, 2048, 4, "fast"},', '{"matmul", 1024, 2048, 16, "slow"},'])

    def test_less_than_two_percent_change_no_winner(self):
        def winners(us):
            return table_of({"matmul/0.6b_o/m:1/cuda:a": 5, "matmul/0.6b_o/m:1/cuda:b": 9,
                             "matmul/0.6b_o/m:2/cuda:a": 10.0, "matmul/0.6b_o/m:2/cuda:b": us})
        self.assertEqual(winners(9.9), ['{"matmul", 1024, 2048, 2, "a"},'])
        self.assertEqual(winners(9.7), ['{"matmul", 1024, 2048, 1, "a"},', '{"matmul", 1024, 2048, 2, "b"},'])

    def test_the_pieces_of_a_layer_are_chosen_together_and_not_one_by_one(self):
        lines = table_of({"layer_products/0.6b/m:1/cuda:sequence": 9, "layer_products/0.6b/m:1/cuda:fused": 8,
                          "layer_products/0.6b/m:1/cuda:chosen": 1, "norm_qkv/0.6b/m:1/cuda:sequence": 1,
                          "norm_qkv/0.6b/m:1/cuda:fused": 2})
        self.assertEqual(lines, ['{"down_residual", 1024, 3072, 1, "fused"},',
                                 '{"norm_gate_up_silu", 6144, 1024, 1, "fused"},',
                                 '{"norm_qkv", 4096, 1024, 1, "fused"},', '{"o_residual", 1024, 2048, 1, "fused"},'])

    def test_what_did_not_run_and_more_than_32_rows_are_left_out(self):
        self.assertEqual(
            table_of({"matmul/8b_o/m:32/cuda:a": 5, "matmul/8b_o/m:32/cuda:b": None, "matmul/8b_o/m:64/cuda:b": 1,
                      "matmul/square/m:8192/cuda:b": 1, "rms_norm/rows:1/cuda:b": 1}),
            ['{"matmul", 4096, 4096, 32, "a"},'])
        self.assertIn("no benchmark", table_of({"rms_norm/rows:1/cuda:b": 1}))


if __name__ == "__main__":
    unittest.main()
