"""The scripts of the course: what they find wrong with regions, labs.json, boxes and mutants."""
import copy
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_stubs
import course_graph
import labs
import mutants
import task_boxes

CODE = "\n".join(f"int f{i}(int x) {{ return x; }}" for i in range(40)) + "\n"


def task(name, **other):
    step, number = name.split(".")[:2]
    return {"id": name, "title": "a title", "chapter": f"step3_small/README.md#{labs.anchor(name)}", "hours": 2, "points": 20,
            "core": True, "given": False, "needs": [], "regions": [f"step3_small/{name}.cpp"],
            "tests": {"target": "test_step3", "filter": f"Task{step}_{number}_*"}, "gpu": False, "rungs": []} | other


class ThisCheckout(unittest.TestCase):
    def test_regions_boxes_graph_and_hashes_fit(self):
        done = subprocess.run([sys.executable, "-B", ROOT / "tools" / "task_boxes.py", "--check"], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")

    def test_the_hours_of_a_step_are_those_of_its_tasks(self):
        hours = {}
        for one in labs.load()["tasks"]:
            hours.setdefault(one["id"].split(".")[0], []).append(one["hours"])
        rows = re.findall(r"^\| (\d) \|[^|]*\|[^|]*\| (\d+)(?:, and (\d+) in CUDA)?", (ROOT / "ROADMAP.md").read_text(), re.M)
        self.assertEqual({step: int(cpu) + int(cuda or 0) for step, cpu, cuda in rows},
                         {step: sum(of_tasks) for step, of_tasks in hours.items()})


class Course(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.labs = {"labs": [{"id": "memory", "title": "memory", "weeks": [1], "tasks": ["3.2", "3.3"]}],
                     "tasks": [task("3.2"), task("3.3", needs=["3.2"])]}
        for name in ("3.2", "3.3"):
            self.write(name, f"// >>> task {name}: a line\n{CODE}// <<< task {name}\n")

    def write(self, name, text):
        path = self.root / "step3_small" / f"{name}.cpp"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def problems(self, change=lambda labs: None):
        changed = copy.deepcopy(self.labs)
        change(changed)
        return "; ".join(labs.problems(changed, self.root))

    def test_what_is_right_has_no_problems(self):
        self.assertEqual(self.problems(), "")
        self.assertEqual(self.problems(lambda labs: labs["tasks"][0].update(gpu=True, sanitized={"memcheck": "*"})), "")

    def test_labs_that_are_wrong(self):
        first = lambda key, value: lambda labs: labs["tasks"][0].__setitem__(key, value)
        for change, said in [(first("id", "3.2.SIMD"), "is no task id"), (first("hours", 12), "2 to 8"),
                             (first("hours", "2"), "type int"), (first("needs", ["3.3"]), "needs itself"),
                             (first("needs", ["9.9"]), "no task"), (first("regions", []), "has no region"),
                             (first("chapter", "step3_small/README.md"), "anchor"), (first("core", False), "core path"),
                             (first("gpu", True), "sanitized is"), (first("sanitized", {"memcheck": "*"}), "sanitized is"),
                             (lambda labs: labs["tasks"][0].update(gpu=True, sanitized={"synccheck": "*"}), "sanitized is"),
                             (lambda labs: labs["labs"][0]["tasks"].reverse(), "comes later"),
                             (lambda labs: labs["labs"][0]["tasks"].pop(), "in 0 labs")]:
            with self.subTest(said):
                self.assertIn(said, self.problems(change))

    def test_regions_that_are_wrong(self):
        for text, said in [("", "the file has not"), ("// >>> task 3.2: a line\n", "not closed"),
                           (f"// >>> task 3.2: a line\n{CODE}// <<< task 3.3\n", "stands where it cannot"),
                           ("// >>> task 3.2: a line\nint a;\n// <<< task 3.2\n", "expected 30 to 120"),
                           (f"// >>> task 3.2: a\n{CODE}// <<< task 3.2\n// >>> task 3.9: b\n// <<< task 3.9\n", "labs.json does not name")]:
            with self.subTest(said):
                self.write("3.2", text)
                self.assertIn(said, self.problems())

    def test_a_box_follows_the_source(self):
        tasks = {task["id"]: task for task in self.labs["tasks"]}
        page = task_boxes.renewed("a\n<!-- box 3.3 -->\nold\n<!-- /box -->\n- one\n- two\n\n- three\n", tasks, self.root)
        self.assertIn("| `step3_small/3.3.cpp` | `f0`, `f1`,", page)
        self.assertIn("| 40 |", page)
        self.assertNotIn("old", page)
        self.assertEqual(task_boxes.mistakes_after(page, "3.3"), 2)
        self.assertEqual(task_boxes.renewed(page, tasks, self.root), page)

    def test_functions_of_a_region(self):
        code = 'struct S {\n  int a() const { return 1; }\n};\nstd::vector<int> B::c(int x) {\n  if (x) { d("}"); }\n}\n' \
               "const int kTable[] = {1, 2};\nB::B() : e_(1) { // }\n}\nbool R::operator()(int) const { return true; }\n"
        self.assertEqual(task_boxes.functions(code.split("\n")), ["a", "B::c", "B::B", "R::operator()"])

    def test_hashes_are_of_the_text_between_the_markers_and_of_what_is_outside(self):
        def hashes():
            lines = task_boxes.region_hashes(self.labs, self.root).splitlines()
            return ([line for line in lines if not line.startswith("outside ")],
                    [line for line in lines if line.startswith("outside ")])

        inside, outside = hashes()
        self.assertEqual([line.split()[0] for line in inside], ["3.2", "3.3"])
        self.assertEqual(len(outside), 2)
        self.write("3.2", f"// moved\n// >>> task 3.2: another line\n{CODE}// <<< task 3.2\n")
        self.assertEqual(hashes()[0], inside)
        self.assertNotEqual(hashes()[1], outside)
        self.write("3.2", f"// moved\n// >>> task 3.2: another line\n{CODE};\n// <<< task 3.2\n")
        moved = "// moved\n// >>> task 3.2: another line\n// <<< task 3.2\n"
        self.assertEqual(labs.outside_of(f"// moved\n// >>> task 3.2: another line\n{CODE};\n// <<< task 3.2\n"), moved)
        self.assertNotEqual(hashes()[0], inside)

    def test_the_graph_has_an_arrow_per_need(self):
        drawn = course_graph.course(self.labs["labs"], {task["id"]: task for task in self.labs["tasks"]})
        self.assertIn("  t3_2 --> t3_3\n", drawn)
        self.assertIn("4 hours", drawn)

    def test_mutants_that_are_wrong(self):
        tasks = {task["id"]: task for task in self.labs["tasks"]}
        one = {"task": "3.2", "name": "x", "file": "step3_small/3.2.cpp", "find": "int f7(int x)", "replace": ""}
        self.assertEqual(mutants.problems([one | {"name": str(i), "task": name} for i in range(3) for name in tasks], tasks, self.root), [])
        for planted, said in [([one | {"find": "int"}], "not exactly once"), ([one, one], "twice"), ([one], "expected three"),
                              ([one | {"task": "9.9"}], "no task"), ([one | {"file": "absent.cpp"}], "not exactly once")]:
            with self.subTest(said):
                self.assertIn(said, "; ".join(mutants.problems(planted, tasks, self.root)))
        before = mutants.key(one, tasks["3.2"], self.root)
        self.write("3.2", CODE)
        self.assertNotEqual(mutants.key(one, tasks["3.2"], self.root), before)

    def test_who_may_fail_when_a_task_is_cut(self):
        tasks = {task["id"]: task for task in self.labs["tasks"]}
        may_fail = lambda name, cut: check_stubs.may_fail(name, "test_step3", tasks[cut], tasks)
        self.assertTrue(may_fail("Task3_2_Pool.A", "3.2"))
        self.assertTrue(may_fail("Task3_3_Manager.A", "3.2"))
        self.assertFalse(may_fail("Task3_2_Pool.A", "3.3"))
        self.assertTrue(may_fail("Cli_Demo.A", "3.3"))
        self.assertTrue(check_stubs.matches("A.b/avx2", "A.*-*/loop"))
        self.assertFalse(check_stubs.matches("A.b/loop", "A.*-*/loop"))


if __name__ == "__main__":
    unittest.main()
