"""Every mutant of lab/mutants.json still has its place in the source."""
import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutants


class Mutants(unittest.TestCase):
    def test_each_stands_exactly_once_in_its_file(self):
        planted = json.loads((ROOT / "lab" / "mutants.json").read_text())
        self.assertEqual(mutants.misplaced(planted, ROOT), [])

    def test_one_that_is_gone_or_stands_twice_is_reported(self):
        for find in ("absent " + "text", "import"):
            planted = [{"name": "x", "file": "tests/tools/mutants_test.py", "find": find}]
            self.assertEqual(mutants.misplaced(planted, ROOT), ["x"])


if __name__ == "__main__":
    unittest.main()
