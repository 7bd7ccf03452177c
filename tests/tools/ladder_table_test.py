"""The arithmetic of the tables and pictures that tools/ make from benchmark results."""

import json
import math
import random
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from bench_results import Machine, read_results, split_name  # noqa: E402
from ladder_plot import attainable, distinct, ladder_svg, of_roof, spread  # noqa: E402
from ladder_table import as_markdown, as_text, choose, plain, table_of  # noqa: E402
from update_tables import rewritten  # noqa: E402

BANDWIDTH, MATMUL_RATE = 4e12, 8e14


def row(name, microseconds, bytes_moved=0.0, flops=0.0, operations=0.0, **more):
    seconds = microseconds * 1e-6
    result = {"name": name, "run_type": "iteration", "real_time": microseconds, "time_unit": "us", "label": "an idea"}
    if bytes_moved:
        result |= {"bytes_per_second": bytes_moved / seconds, "of_copy_bandwidth": bytes_moved / seconds / BANDWIDTH}
    if flops:
        result |= {"flops": flops / seconds, "of_matmul_rate": flops / seconds / MATMUL_RATE}
    if operations:
        result["operations"] = operations / seconds
    return result | more


def results_of(*rows):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"context": {}, "benchmarks": rows}, file)
        file.flush()
        return read_results(file.name)


class Names(unittest.TestCase):
    def test_are_taken_apart(self):
        self.assertEqual(split_name("rms_norm/rows:1/width:4096/cuda:block/iterations:1/manual_time"),
                         ("rms_norm", "rows:1/width:4096", "cuda", "block"))
        self.assertEqual(split_name("matmul/qkv/bf16/m:4/avx2/real_time"), ("matmul", "qkv/bf16/m:4", "cpu", "avx2"))
        self.assertEqual(split_name("gelu_and_mul:erf/f32/rows:1/loop/real_time")[0], "gelu_and_mul:erf")
        self.assertEqual(split_name("matmul/8b_o/m:1/peer:cublas"), ("matmul", "8b_o/m:1", "peer", "cublas"))
        self.assertIsNone(split_name("ceiling_read_bandwidth/iterations:1"))

    def test_of_one_ladder_are_chosen(self):
        names = ["norm/f32/rows:1/loop/real_time", "norm/bf16/rows:1/loop/real_time", "norm/rows:1/cuda:naive",
                 "add_norm/bf16/rows:1/loop/real_time"]
        self.assertEqual(choose(names, "norm", "cpu", None), names[1:2])
        self.assertEqual(choose(names, "norm", "cpu", "rows"), names[:2])
        self.assertEqual(choose(names, "norm", "cuda", None), names[2:3])


class Table(unittest.TestCase):
    def test_gives_rates_fractions_and_the_gain_over_the_rung_below(self):
        results = results_of(row("op/p/cuda:naive", 100, bytes_moved=4e6), row("op/p/cuda:fast", 2, bytes_moved=4e6))
        head, naive, fast = table_of(results.ladders("op", "cuda")["p"])
        self.assertEqual(head, ["variant", "idea", "us", "GB/s", "of B", "gain"])
        self.assertEqual(naive, ["naive", "an idea", "100", "40.0", "0.01", ""])
        self.assertEqual(fast, ["fast", "an idea", "2.00", "2000", "0.50", "50x"])

    def test_of_products_has_operations_too(self):
        results = results_of(row("op/p/cuda:naive", 10, bytes_moved=1e6, flops=4e9))
        head, naive = table_of(results.ladders("op", "cuda")["p"])
        self.assertEqual(head[5:7], ["TFLOP/s", "of G"])
        self.assertEqual(naive[5:7], ["400", "0.50"])

    def test_takes_the_median_of_repetitions_and_no_aggregates(self):
        results = results_of(*[row("op/p/loop/real_time", us, bytes_moved=1e6) for us in (900, 10, 11)],
                             row("op/p/loop/real_time_mean", 307, run_type="aggregate"))
        (rung,) = results.rungs
        self.assertAlmostEqual(rung.seconds, 11e-6)
        self.assertAlmostEqual(rung.bytes_per_second, 1e6 / 11e-6)

    def test_a_rung_that_was_not_measured_is_no_rung_below(self):
        slow = {"name": "op/p/cuda:slow", "error_occurred": True, "error_message": "more than 100 ms a call"}
        other = slow | {"name": "op/p/cuda:other", "error_message": "this rung does not take this problem"}
        results = results_of(row("op/p/cuda:a", 30, bytes_moved=1e6), slow, other,
                             row("op/p/cuda:b", 10, bytes_moved=1e6))
        rows = table_of(results.ladders("op", "cuda")["p"])
        self.assertEqual([r[0] for r in rows], ["variant", "a", "slow", "b"])
        self.assertEqual(rows[2][2], "more than 100 ms a call")
        self.assertEqual(rows[3][-1], "3.00x")
        self.assertEqual({line.count("|") for line in as_markdown(rows).split("\n")}, {7})
        columns = as_text(rows).split("\n")
        self.assertEqual(columns[1].index("30.0"), columns[3].index("10.0"))

    def test_ceilings_come_from_their_benchmarks_else_from_the_fractions(self):
        rung = row("op/p/cuda:a", 10, bytes_moved=1e6, flops=1e9)
        self.assertAlmostEqual(results_of(rung).machines["cuda"].bandwidth / BANDWIDTH, 1)
        self.assertAlmostEqual(results_of(rung).machines["cuda"].matmul_rate / MATMUL_RATE, 1)
        ceiling = row("ceiling_of_gpu/copy_bandwidth/iterations:1", 1, label="A GPU", bytes_per_second=5e12)
        named = results_of(rung, ceiling)
        self.assertEqual(named.machines["cuda"].name, "A GPU")
        self.assertEqual(named.machines["cuda"].bandwidth, 5e12)
        of_cpu = results_of(row("ceiling_read_bandwidth/iterations:1", 1, bytes_per_second=2e10),
                            row("ceiling_matmul_rate/bf16/iterations:1", 1e6, flops=3e11),
                            row("op/bf16/m:1/loop/real_time", 10, bytes_moved=1e3, flops=1e3))
        machine = of_cpu.machine(of_cpu.rungs[0])
        self.assertEqual((machine.bandwidth, machine.matmul_rate), (2e10, 3e11))

    def test_numbers_keep_three_digits(self):
        self.assertEqual([plain(x) for x in (0.01234, 0.5, 9.949, 9.96, 99.44, 99.5, 1411.9)],
                         ["0.0123", "0.500", "9.95", "10.0", "99.4", "100", "1412"])


class Picture(unittest.TestCase):
    machine = Machine("a GPU", BANDWIDTH, MATMUL_RATE)

    def test_the_roof_is_the_lower_of_both_ceilings(self):
        self.assertEqual(attainable(self.machine, 1), BANDWIDTH)
        self.assertEqual(attainable(self.machine, 1e6), MATMUL_RATE)

    def test_a_rung_is_measured_against_what_bounds_its_problem(self):
        results = results_of(row("op/few/cuda:a", 10, bytes_moved=2e7, flops=2e7),
                             row("op/many/cuda:a", 10, bytes_moved=2e6, flops=2e9))
        few, many = results.rungs
        for rung, share, ceiling in ((few, 0.5, "B"), (many, 0.25, "G")):
            self.assertAlmostEqual(of_roof(rung, self.machine)[0], share)
            self.assertEqual(of_roof(rung, self.machine)[1], ceiling)
        self.assertAlmostEqual(many.intensity, 1000)

    def test_problems_of_one_intensity_are_drawn_once(self):
        results = results_of(row("op/small/cuda:a", 1, bytes_moved=1e3, operations=1e3),
                             row("op/large/cuda:a", 1, bytes_moved=1e6, operations=1e6),
                             row("op/dense/cuda:a", 1, bytes_moved=1e6, operations=1e8))
        kept = distinct(results.ladders("op", "cuda"))
        self.assertEqual(sorted(ladder[0].problem for ladder in kept), ["dense", "large"])

    def test_names_do_not_overlap_and_stay_in_order(self):
        noise = random.Random(1)
        for _ in range(200):
            wanted = [noise.choice([100.0, noise.uniform(60, 400)]) for _ in range(noise.randint(1, 12))]
            placed = spread(wanted, 14, 60, 400)
            for i in range(len(wanted)):
                self.assertTrue(60 - 1e-9 <= placed[i] <= 400 + 1e-9)
                for j in range(i):
                    self.assertGreaterEqual(abs(placed[i] - placed[j]), 14 - 1e-9)
                    if wanted[i] != wanted[j]:
                        self.assertEqual(wanted[i] < wanted[j], placed[i] < placed[j])

    def test_points_stand_where_their_rates_say(self):
        results = results_of(row("op/p/cuda:a<b", 10, bytes_moved=4e6, operations=4e6),
                             row("op/p/cuda:b", 1, bytes_moved=4e6, operations=4e6))
        svg = ladder_svg("op", self.machine, results.ladders("op", "cuda"))
        root = xml.etree.ElementTree.fromstring(svg)  # well-formed, names escaped
        slow, fast = [(float(e.get("cx")), float(e.get("cy"))) for e in root.iter() if e.tag.endswith("circle")]
        self.assertEqual(slow[0], fast[0])
        ticks = {e.text: float(e.get("y")) for e in root.iter() if e.tag.endswith("text")}
        decade = ticks["1 T"] - ticks["10 T"]
        self.assertAlmostEqual(slow[1] - fast[1], decade, delta=0.3)
        self.assertAlmostEqual(ticks["1 T"] - 4 - decade * math.log10(4), fast[1], delta=0.3)


# Stands in for bench_step1: lists two benchmarks and a ceiling, and "measures" those that the filter names.
BINARY = """#!/usr/bin/env python3
import json, re, sys
names = ["norm/bf16/rows:1/loop/real_time", "norm/bf16/rows:1/avx2/real_time", "add/f32/rows:1/loop/real_time",
         "ceiling_read_bandwidth/iterations:1"]
flags = dict(argument.split("=", 1) for argument in sys.argv[1:] if "=" in argument)
if "--benchmark_list_tests" in sys.argv:
    print("\\n".join(names))
else:
    rows = [{"name": name, "real_time": 10.0 / (1 + i), "time_unit": "us", "label": "an idea", "bytes_per_second": 1e9,
             "of_read_bandwidth": 0.1} for i, name in enumerate(names) if re.search(flags["--benchmark_filter"], name)]
    open(flags["--benchmark_out"], "w").write(json.dumps({"benchmarks": rows}))
"""


class CommandLine(unittest.TestCase):
    def ladder(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            binary = Path(folder, "bench_step1")
            binary.write_text(BINARY)
            binary.chmod(0o755)
            script = Path(__file__).resolve().parents[2] / "tools/ladder_table.py"
            return subprocess.run([sys.executable, "-B", script, "--binary", binary, *arguments], cwd=folder,
                                  capture_output=True, text=True)

    def test_measures_and_prints_one_ladder(self):
        done = self.ladder("--op", "norm", "--device", "cpu")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("norm, bf16/rows:1: an idea, B = 1 GB/s", done.stdout)
        self.assertTrue(re.search(r"^avx2 .* 5\.00 .* 2\.00x$", done.stdout, re.MULTILINE), done.stdout)
        self.assertNotIn("add", done.stdout)

    def test_mistakes_are_one_line_and_exit_code_2(self):
        for arguments, message in (
                (["--op", "none"], "--op none: no such operator; there are norm, add"),
                (["--op", "norm", "--device", "cpu", "--problem", "x"], "--problem x: norm has bf16/rows:1"),
                (["--op", "norm", "--plot", "a.pdf"], "--plot a.pdf: expected a name that ends in .svg or .png"),
                (["--op", "norm", "--device", "cuda"], "--op norm --device cuda: in this build it is measured on cpu only")):
            done = self.ladder(*arguments)
            self.assertEqual((done.returncode, done.stderr), (2, f"ladder: {message}\n"))
        for arguments in (["--op", "norm", "--device", "gpu"], ["--op"], ["--op", "norm", "--from", "/nowhere"],
                          ["--op", "norm", "--from", __file__]):
            done = self.ladder(*arguments)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)

    def test_a_mistake_leaves_no_empty_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder, "a.svg")
            self.assertEqual(self.ladder("--op", "none", "--plot", picture).returncode, 2)
            self.assertFalse(picture.exists())


class Chapter(unittest.TestCase):
    def test_each_table_is_what_its_own_command_prints_and_the_rest_stays(self):
        text = "a\n<!-- table: one -->\nold\n\n<!-- end -->\nb\n<!-- table: two -->\n<!-- end -->\nc\n"
        new = rewritten(text, lambda command: f"| {command} |")
        self.assertEqual(new, "a\n<!-- table: one -->\n\n| one |\n\n<!-- end -->\nb\n"
                              "<!-- table: two -->\n\n| two |\n\n<!-- end -->\nc\n")
        self.assertEqual(rewritten(new, lambda command: f"| {command} |"), new)


if __name__ == "__main__":
    unittest.main()
