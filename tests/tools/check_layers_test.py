"""tools/check_layers.sh refuses an include that points up, in a copy of the checkout's includes."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ladder_layers_"))
        self.addCleanup(shutil.rmtree, self.folder)
        for room in ("step3_sequence", "tests/step3_sequence", "bench/step3_sequence", "tests/support"):
            shutil.copytree(ROOT / room, self.folder / room)

    def check(self):
        run = subprocess.run([ROOT / "tools" / "check_layers.sh", self.folder], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    def plant(self, file, include):
        path = self.folder / file
        path.write_text(f'#pragma once\n#include "{include}"\n')
        return self.check()

    def test_the_checkout_and_its_copy_are_clean(self):
        run = subprocess.run([ROOT / "tools" / "check_layers.sh"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertEqual(self.check()[0], 0)

    def test_an_include_that_points_up_is_refused_and_named(self):
        for file, include in [
            ("step3_sequence/planted.h", "step4_runner/batch.h"),
            ("step3_sequence/planted.cpp", "step10_later/x.h"),
            ("step3_sequence/planted.cu", "step4_runner/batch.h"),
            ("step3_sequence/planted.h", "cli/flags.h"),
            ("step3_sequence/planted.h", "tests/cli/run_binary.h"),
            ("tests/step3_sequence/planted_test.cpp", "step5_scheduler/scheduler.h"),
            ("tests/step3_sequence/planted_test.cpp", "tests/step5_scheduler/harness.h"),
            ("tests/step3_sequence/planted_test.cpp", "cli/flags.h"),
            ("bench/step3_sequence/planted_bench.cpp", "step6_engine/engine.h"),
            ("bench/step3_sequence/planted_bench.cpp", "cli/flags.h"),
            ("tests/support/planted.h", "cli/flags.h"),
        ]:
            with self.subTest(file=file, include=include):
                status, output = self.plant(file, include)
                self.assertEqual(status, 1, output)
                self.assertIn(f"{file}:2:", output)
                self.assertIn(include, output)
                (self.folder / file).unlink()

    def test_an_include_that_points_down_is_not(self):
        self.assertEqual(self.plant("step3_sequence/planted.h", "step2_model/json.h")[0], 0)

    def test_a_folder_without_steps_is_an_error(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assertEqual(subprocess.run([ROOT / "tools" / "check_layers.sh", empty], capture_output=True).returncode, 1)


if __name__ == "__main__":
    unittest.main()
