"""The table of several GPUs: ratios the right way round, of medians, and what is missing says so."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from multi_gpu_table import MISSING, Folder, rows  # noqa: E402


class Tables(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def rows(self, **files):
        for name, results in files.items():
            Path(self.temporary.name, f"{name}.json").write_text(json.dumps({"results": results}))
        return rows(Folder(self.temporary.name))

    def cells(self, beginning, **files):
        (found,) = [row for row in self.rows(**files) if row[0].startswith(beginning)]
        return found

    def test_less_time_is_a_ratio_above_one_and_of_runs_the_median_counts(self):
        def runs(*values):
            return [{"inter_token_latency_mean": value} for value in values]

        self.assertEqual(self.cells("one request", latency_1=runs(0.004, 0.006, 0.9), latency_tp2=runs(0.003))[3:],
                         ["6,000 us", "3,000 us", "2.00 x"])

    def test_more_tokens_are_a_ratio_above_one(self):
        self.assertEqual(self.cells("512 requests a replica", data_1=[{"output_tokens_per_second": 10}],
                                    data_dp2=[{"output_tokens_per_second": 19}])[-1], "1.90 x")

    def test_hits_are_of_the_prompt_tokens(self):
        def hits(cached):
            return [{"cached_tokens": cached, "prompt_tokens": 200}]

        self.assertEqual(self.cells("... prompt tokens", sessions_round_robin=hits(50), sessions_prefix_aware=hits(75))[3:],
                         ["25.0 %", "37.5 %", "1.50 x"])

    def test_a_grid_of_two_kinds_is_named_and_what_nobody_ran_has_no_row(self):
        (row,) = self.rows(common_1=[{"output_tokens_per_second": 10}], common_tp2_pp2=[{"output_tokens_per_second": 25}])
        self.assertEqual((row[0], row[-1]), ("common workload, 8B, 2 tensor ranks x 2 stages", "2.50 x"))

    def test_what_was_not_run_is_not_measured(self):
        self.assertEqual(self.cells("1,024 requests, 8B, against", many_pp2=[{"output_tokens_per_second": 1}])[3], MISSING)


if __name__ == "__main__":
    unittest.main()
