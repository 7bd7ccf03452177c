"""tools/run_documented_commands.py finds what pages show, and a command that does not work is a failure."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import run_documented_commands as documented

PAGE = """# Title
Text with ./ladder demo inside it is not a command.

    ./ladder demo      # a comment goes
    a picture -> of ./ladder
    OMP_NUM_THREADS=1 ./ladder bench step1 \\
        --op rms_norm
    $ ./ladder info
    {"json": 1}

```bash
python3 tools/x.py
echo '# stays' | ./ladder tokenize
```
./ladder test outside of a block
"""


class Documented(unittest.TestCase):
    def test_commands_are_the_lines_of_blocks_that_begin_like_one(self):
        found = [(command.where, command.text) for command in documented.commands_of("page.md", PAGE)]
        self.assertEqual(found, [
            ("page.md:4", "./ladder demo"),
            ("page.md:6", "OMP_NUM_THREADS=1 ./ladder bench step1 --op rms_norm"),
            ("page.md:8", "./ladder info"),
            ("page.md:12", "python3 tools/x.py"),
            ("page.md:13", "echo '# stays' | ./ladder tokenize"),
        ])

    def test_the_longest_entry_counts_and_one_that_fits_nothing_is_reported(self):
        commands = documented.commands_of("page.md", PAGE)
        entries, names = documented.read_list(
            "# comment\nDIR = models/x\nslow: ./ladder    # all\ngpu: ./ladder info  # but this\nslow: ./ladder chat # gone\n")
        self.assertEqual(names, {"DIR": "models/x"})
        self.assertEqual(documented.classify(commands, entries), ["./ladder chat"])
        self.assertEqual([command.kind for command in commands], ["slow", "quick", "gpu", "quick", "quick"])

    def test_an_entry_without_a_reason_or_of_an_unknown_kind_is_an_error(self):
        for line in ("slow: ./ladder demo", "later: ./ladder demo # why", "nonsense"):
            with self.subTest(line=line), self.assertRaises(SystemExit):
                documented.read_list(line)

    def test_running_says_what_is_wrong(self):
        run = lambda text: documented.run(documented.Command("here", text), {"DIR": "cmake"}, 5)
        self.assertIsNone(run("test -d DIR"))
        self.assertIn("exit code 3", run("echo why >&2; exit 3"))
        self.assertIn("why", run("echo why >&2; exit 3"))
        self.assertIn("exit code 127", run("tools/no_such_tool.sh"))
        self.assertIn("still running", documented.run(documented.Command("here", "sleep 5"), {}, 1))

    def test_every_command_of_the_pages_is_quick_or_listed_with_a_reason_that_fits(self):
        entries, _ = documented.read_list((documented.ROOT / "tools" / "documented_commands.txt").read_text())
        commands = [command for page in documented.ROOT.rglob("*.md") if "build" not in page.parts
                    for command in documented.commands_of(page.name, page.read_text())]
        self.assertEqual(documented.classify(commands, entries), [])


if __name__ == "__main__":
    unittest.main()
