"""The table of what a GPU run reached: the right rows, the worst of them, ratios the right way round."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from h200_table import Folder, engine_peers, flops_of_prompt, kernel_peers, must_table, progression  # noqa: E402


def row(name, microseconds, bytes_moved, flops=0.0, **more):
    seconds = microseconds * 1e-6
    return {"name": name, "real_time": microseconds, "time_unit": "us", "bytes_per_second": bytes_moved / seconds,
            "of_copy_bandwidth": bytes_moved / seconds / 4e12, "flops": flops / seconds,
            "of_matmul_rate": flops / seconds / 8e14} | more


class Tables(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def folder(self, **files):
        for name, content in files.items():
            Path(self.temporary.name, f"{name}.json").write_text(json.dumps(content))
        return Folder(self.temporary.name)

    def measured(self, folder, beginning):
        (found,) = [cells for cells in must_table(folder) if cells[0].startswith(beginning)]
        return found[3]

    def test_without_results_nothing_is_measured(self):
        cells = {row[3] for row in must_table(self.folder())[1:]}
        self.assertEqual(cells, {"not measured", "not measured / not measured"})

    def test_the_rung_that_serves_counts_be_another_faster_or_not_and_the_worst_problem(self):
        folder = self.folder(step1_layers={"benchmarks": [
            row("rms_norm/rows:16384/cuda:naive", 1000, 1e8), row("rms_norm/rows:16384/cuda:fast", 50, 1e8),
            row("silu_and_mul/tokens:16384/cuda:fastest", 20, 1e8), row("silu_and_mul/tokens:16384/cuda:last", 40, 1e8),
            row("silu_and_mul/tokens:1/cuda:fast", 40, 1e4)]})  # too small to count
        self.assertEqual(self.measured(folder, "norm, activation"), "0.50 B")

    def test_of_matrix_products_the_fastest_serves(self):
        folder = self.folder(step1_layers={"benchmarks": [row("matmul/8b_down/m:1/cuda:fast", 25, 1e8, 1e8),
                                                          row("matmul/8b_down/m:1/cuda:last", 50, 1e8, 1e8)]})
        self.assertEqual(self.measured(folder, "matrix product M"), "1.00 B")

    def test_half_a_file_is_no_result(self):
        Path(self.temporary.name, "latency_qwen3-8b.json").write_text("")
        self.assertEqual(self.measured(self.folder(), "... Qwen3-8B"), "not measured")

    def test_beside_a_copy_of_the_same_size_stands_the_large_copy(self):
        folder = self.folder(step1_layers={"benchmarks": [
            row("rms_norm/rows:16384/cuda:fast", 25, 1e8, of_copy_bandwidth=0.96, of_large_copy=0.88),
            row("store_kv/tokens:16384/cuda:fast", 25, 1e8, of_copy_bandwidth=0.97, of_large_copy=0.85)]})
        self.assertEqual(self.measured(folder, "norm, activation"), "0.96 B (0.85 of a 4 GiB copy)")

    def test_ratios_above_one_are_ours_ahead(self):
        folder = self.folder(
            step1_layers={"benchmarks": [row("matmul/0.6b_o/m:1/cuda:rows", 2, 4e6, 4e6),
                                         row("paged_attention/prefill/2048/cuda:tiles", 200, 1e6, 1e9)]},
            peers_kernels={"benchmarks": [row("matmul/0.6b_o/m:1/peer:cublas", 6, 4e6, 4e6),
                                          row("paged_attention/prefill/2048/peer:sdpa_cudnn", 100, 1e6, 1e9)]})
        self.assertEqual(self.measured(folder, "... weights"), "3.00 x cuBLAS (mean 3.00)")
        self.assertEqual(self.measured(folder, "prefill attention"), "0.50 x cuDNN")
        self.assertEqual(kernel_peers(folder)[1:], [
            ["matmul/0.6b_o/m:1", "rows", "2.00", "cublas", "6.00", "3.00"],
            ["paged_attention/prefill/2048", "tiles", "200", "sdpa_cudnn", "100", "0.50"]])

    def test_the_engine_is_read_from_its_own_files(self):
        run = {"inter_token_latency_mean": 0.5e-3, "of_streaming_limit": 0.6, "time_to_first_token_median": 0.2}
        folder = self.folder(
            **{"latency_qwen3-0.6b": {"results": [run, run | {"inter_token_latency_mean": 9.0}, run]},
               "decode32_qwen3-0.6b": {"results": [run | {"inter_token_latency_mean": 1e-3}]},
               "prefill_qwen3-8b": {"results": [run]}},
            peers_engine={"benchmarks": [
                row("ceiling", 1, 1), row("decode/qwen3-0.6b/batch:1/peer:torch", 1000, 1e9, tokens_per_second=1000.0),
                row("decode/qwen3-0.6b/batch:32/peer:torch", 2000, 1e9, tokens_per_second=16000.0),
                row("matmul/square/m:8192/peer:cublas", 1000, 1e9, 8e11)]})
        self.assertEqual(self.measured(folder, "one request"), "2000 tok/s, 0.60 of the limit")
        self.assertEqual([cells[1:] for cells in engine_peers(folder)[1:]],
                         [["2000", "torch", "1000", "2.00"], ["32000", "torch", "16000", "2.00"]])
        share = flops_of_prompt("qwen3-8b", 8192) / 0.2 / 8e14
        self.assertEqual(self.measured(folder, "prefill of 8k"), f"{share:.2f} G")

    def test_a_step_of_the_engine_is_compared_with_its_replay(self):
        runs = [{"of_replay": value, "replay_seconds": value, "step_seconds_mean": 1.0} for value in (0.5, 0.9, 0.95)]
        folder = self.folder(**{"graph_replay_qwen3-0.6b": {"results": runs}})
        self.assertEqual(self.measured(folder, "engine step"), "0.90")

    def test_a_progression_gives_the_gain_over_the_row_above(self):
        run = {"name": "first", "output_tokens_per_second": 100.0, "time_to_first_token_mean": 2.0,
               "inter_token_latency_mean": 0.01, "inter_token_latency_max": 0.05, "of_streaming_limit": 0.125}
        folder = self.folder(progression={"results": [run, run | {"name": "then", "output_tokens_per_second": 250.0}]})
        self.assertEqual(progression(folder)[1:], [["first", "100", "", "2.00 s", "10.0 ms", "50.0 ms", "0.12"],
                                                   ["then", "250", "2.50x", "2.00 s", "10.0 ms", "50.0 ms", "0.12"]])

    def test_the_operations_of_a_prompt_are_those_of_its_parts(self):
        # 36 layers of 4096: qkv 6144, o 4096, gate and up 24576, down 12288; one row of logits; causal attention.
        one = 36 * (2 * 4096 * (6144 + 4096 + 24576 + 12288) + 4 * 32 * 128) + 2 * 151936 * 4096
        self.assertEqual(flops_of_prompt("qwen3-8b", 1), one)


if __name__ == "__main__":
    unittest.main()
