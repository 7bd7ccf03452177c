"""The table of plain shapes beside PyTorch: which rung, which clock, ratios the right way round."""

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from bench_results import read_results  # noqa: E402
from shapes_table import rows_of  # noqa: E402


def row(name, microseconds, bytes_moved=0.0, **more):
    return {"name": name, "real_time": microseconds, "time_unit": "us",
            "bytes_per_second": bytes_moved / (microseconds * 1e-6)} | more


def rows(device, *files):
    with tempfile.TemporaryDirectory() as folder:
        names = [str(Path(folder, f"{i}.json")) for i in range(len(files))]
        for name, benchmarks in zip(names, files):
            Path(name).write_text(json.dumps({"benchmarks": benchmarks}))
        return rows_of(read_results(*names), device)[1:]


class Shapes(unittest.TestCase):
    def test_the_last_rung_is_ours_and_a_ratio_above_one_is_ours_ahead(self):
        self.assertEqual(rows("cuda", [row("gelu/shape:4x8/erf/cuda:naive/manual_time", 50, 2e5),
                                       row("gelu/shape:4x8/erf/cuda:fast/manual_time", 100, 2e5, cpu_time=9000),
                                       {"name": "gelu/shape:4x8/erf/cuda:refused", "error_occurred": True}],
                              [row("gelu/shape:4x8/erf/peer:eager", 300), row("gelu/shape:4x8/erf/peer:torch_compile", 50)]),
                         [["`gelu` erf", "bf16", "(4, 8)", "fast", "100", "2.00", "300", "3.00", "50.0", "0.50"]])

    def test_on_a_cpu_the_processors_time_counts_and_the_median_of_the_files(self):
        ours = [[row("rms_norm/shape:2x4x8/f32/loop", 9 * us, 1e6, cpu_time=us)] for us in (100, 70, 500)]
        theirs = [[row("rms_norm/shape:2x4x8/f32/peer:eager", 9 * us, cpu_time=us)] for us in (50, 900, 150)]
        self.assertEqual(rows("cpu", *ours, *theirs),
                         [["`rms_norm`", "f32", "(2, 4, 8)", "loop", "100", "10.0", "150", "1.50", "", ""]])

    def test_other_problems_are_not_shapes(self):
        self.assertEqual(rows("cpu", [row("rms_norm/bf16/rows:512/loop", 10, cpu_time=10)]), [])


if __name__ == "__main__":
    unittest.main()
