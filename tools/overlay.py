"""Other texts of some files in a build, without touching the checkout: copies in .lab/spliced, which the build takes
instead of the files (cmake/spliced.cmake). For check_stubs.py and mutants.py; while they run, nothing else may build
in the same folder. What an interrupted run leaves there the next `./ladder` removes.
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import labs

FOLDER = labs.ROOT / ".lab" / "spliced"
LIMIT_S = 600


class Overlay:
    def __init__(self, build, processes=1):
        self.build_folder = (labs.ROOT / build).resolve()
        self.processes = processes
        if (labs.ROOT / ".lab" / "choices").exists():
            raise SystemExit("overlay: this checkout is a student's, tasks are started in it; use another")

    def __enter__(self):
        if not (self.build_folder / "build.ninja").exists():
            subprocess.run(["cmake", "-G", "Ninja", "-S", labs.ROOT, "-B", self.build_folder, "-DCMAKE_BUILD_TYPE=Release"],
                           check=True, capture_output=True)
        self.set({})
        return self

    def __exit__(self, *_):
        shutil.rmtree(FOLDER, ignore_errors=True)
        if not any(FOLDER.parent.iterdir() if FOLDER.parent.exists() else ()):
            shutil.rmtree(FOLDER.parent, ignore_errors=True)

    def set(self, texts):
        """{path: text}: these files and no others are replaced."""
        for path in [path for path in FOLDER.rglob("*") if path.is_file()]:
            if str(path.relative_to(FOLDER)) not in texts:
                path.unlink()
        for name, text in texts.items():
            path = FOLDER / name
            if not path.exists() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def build(self, *targets):
        """What the compiler said, or None where all of it could be built."""
        done = subprocess.run(["ninja", "-C", self.build_folder, *targets], capture_output=True, text=True)
        return None if done.returncode == 0 else done.stdout

    def binary(self, target):
        return self.build_folder / "tests" / target

    def names(self, target, test_filter="*"):
        """The test cases that a filter leaves."""
        listed = subprocess.run([self.binary(target), "--gtest_list_tests", f"--gtest_filter={test_filter}"], check=True,
                                capture_output=True, text=True).stdout
        found, suite = [], ""
        for line in listed.split("\n"):
            line = line.partition("  # ")[0]
            if line.startswith("  "):
                found.append(suite + line.strip())
            elif line.endswith("."):
                suite = line
        return found

    def run(self, target, names, trace=None, seed=None):
        """{test case: "passed", "skipped", or the first message of what failed}."""
        with concurrent.futures.ThreadPoolExecutor(self.processes) as pool:
            parts = pool.map(lambda part: self.run_process(target, part, trace, seed),
                             [names[i::self.processes] for i in range(self.processes)])
            return {name: verdict for part in parts for name, verdict in part.items()}

    def run_process(self, target, names, trace=None, seed=None):
        """As run(), all in one process; where that dies, each in its own."""
        if not names:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            flags, report = pathlib.Path(folder, "flags"), pathlib.Path(folder, "report.json")
            flags.write_text(f"--gtest_filter={':'.join(names)}\n--gtest_output=json:{report}\n")
            environment = os.environ | {"GOMP_SPINCOUNT": "1000", "MALLOC_PERTURB_": "165"} | ({"LADDER_LAB_RAN": str(trace)} if trace else {})
            environment |= {"LADDER_TEST_SEED": seed} if seed else {}
            died = "did not end"
            try:
                done = subprocess.run([self.binary(target), f"--gtest_flagfile={flags}"], capture_output=True, text=True,
                                      errors="replace", timeout=LIMIT_S, env=environment)
                died = "died: " + (done.stdout + done.stderr)[-300:]
            except subprocess.TimeoutExpired:
                pass
            if report.exists() and died != "did not end":
                return verdicts(json.loads(report.read_text()))
        if len(names) == 1:
            return {names[0]: died}
        return {name: verdict for one in names for name, verdict in self.run_process(target, [one], trace, seed).items()}


def verdicts(report):
    found = {}
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            if failures := test.get("failures"):
                found[name] = failures[0]["failure"]
            else:
                found[name] = "skipped" if test["result"] == "SKIPPED" else "passed"
    return found
