"""The table of tasks of every chapter names the files that hold the tasks' regions, and no file that is not there."""

import fnmatch
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKER = re.compile(r"^\s*// >>> task (\d+\.\d+)", re.MULTILINE)
SOURCE = re.compile(r"`([\w./*]+\.(?:h|cpp|cu|cuh))`")


def task_table(chapter):
    """{task: files that its rows name}; a row without a number belongs to the task above it."""
    named, task, inside = {}, None, False
    for line in chapter.split("\n"):
        if line.startswith("| task |"):
            inside = True
        elif inside and not line.startswith("|"):
            inside = False
        elif inside and (cells := [cell.strip() for cell in line.strip("|").split("|")]):
            task = found[0] if (found := re.match(r"\d+\.\d+", cells[0])) else task
            named.setdefault(task, []).extend(SOURCE.findall(line))
    return named


class Tasks(unittest.TestCase):
    def test_files_are_where_the_chapters_say(self):
        for chapter in sorted(ROOT.glob("step*/README.md")):
            folder = chapter.parent
            named = task_table("\n".join(page.read_text() for page in sorted(folder.glob("*.md"))))
            with self.subTest(folder.name):
                self.assertTrue(named, "no table that begins with `| task |`")
            for task, patterns in named.items():
                for pattern in patterns:
                    with self.subTest(f"{folder.name}, task {task}: {pattern}"):
                        self.assertTrue(list(folder.rglob(pattern)), "no such file")
            for file in sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh")):
                name = str(file.relative_to(folder))
                for task in sorted(set(MARKER.findall(file.read_text()))):
                    with self.subTest(f"{folder.name}/{name}"):
                        self.assertTrue(any(fnmatch.fnmatch(name, pattern) or name.endswith("/" + pattern)
                                            for pattern in named.get(task, [])),
                                        f"holds a region of task {task}, whose row does not name it")


if __name__ == "__main__":
    unittest.main()
