#include "lab/release_files.h"

#include <algorithm>
#include <sstream>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/lane.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLeftOut[] = {
    ".ci",
    "lab/WRITING.md",
    "lab/bugs.json",
    "lab/mutants.json",
    "lab/release",
    "lab/reports",
    "lab/variants.json",
    "tests/hidden",
    "tests/lab",
    "tests/tools",
    "tools/bugs.py",
    "tools/check_release.sh",
    "tools/check_stubs.py",
    "tools/course_graph.py",
    "tools/documented_commands.txt",
    "tools/emulator_check.py",
    "tools/goldens",
    "tools/gpu_check.sh",
    "tools/hidden_check.sh",
    "tools/labs.py",
    "tools/long_check.sh",
    "tools/mutants.py",
    "tools/overlay.py",
    "tools/run_documented_commands.py",
    "tools/task_boxes.py",
    "tools/variants.py",
};

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (fs::recursive_directory_iterator at(folder), end; at != end; ++at) {
    if (at->path().filename() == ".git")
      at.disable_recursion_pending();
    else if (at->is_regular_file() && !at->is_symlink())
      paths.push_back(at->path());
  }
  std::ranges::sort(paths);
  return paths;
}

std::string without_instructors_parts(const std::string& page, const fs::path& path) {
  std::istringstream lines(page);
  std::string kept;
  bool hidden = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "<!-- instructor -->" || line == "<!-- /instructor -->") {
      if (hidden == (line == "<!-- instructor -->"))
        throw LabError(path.string() + ": `" + line + "` stands where it cannot");
      hidden = !hidden;
    } else if (!hidden) {
      kept += line + "\n";
    }
  }
  if (hidden) throw LabError(path.string() + ": a part for instructors does not end");
  return kept;
}

const Machine kRunner;  // GitHub's: without a GPU

// Its steps and ids are what the actions of GitHub Classroom expect.
std::string classroom_workflow(const Course& course, const ReleaseInfo& info) {
  std::string steps, results, runners;
  for (const Lab& lab : course.labs) {
    if (std::ranges::count(info.cut, lab.id) == 0) continue;
    for (const std::string& id : lab.tasks) {
      const Task& task = course.task(id);
      if (!why_not_graded(task, kRunner).empty()) continue;
      std::string step = "task-" + id;
      std::ranges::replace(step, '.', '-');
      std::string upper = step;
      std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
      steps += "      - name: task " + id + "\n        id: " + step +
               "\n        uses: classroom-resources/autograding-command-grader@v1\n        with:\n"
               "          test-name: task " +
               id + "\n          command: ./ladder lab test " + id + (task.gpu ? " --lane emulator" : "") +
               "\n          timeout: 30\n          max-score: " + std::to_string(task.points) + "\n";
      results += "          " + upper + "_RESULTS: \"${{steps." + step + ".outputs.result}}\"\n";
      runners += (runners.empty() ? "" : ",") + step;
    }
  }
  return "# What each push brings, for the student to see. The grade comes from `./ladder lab grade`, which uses nothing of\n"
         "# this repository but what a hand-in holds.\n"
         "name: Autograding Tests\n\"on\":\n  - push\n  - workflow_dispatch\n  - repository_dispatch\n"
         "permissions:\n  checks: write\n  actions: read\n  contents: read\n"
         "jobs:\n  run-autograding-tests:\n    runs-on: ubuntu-24.04\n"
         "    if: github.actor != 'github-classroom[bot]'\n    steps:\n"
         "      - uses: actions/checkout@v4\n        with:\n          fetch-depth: 0\n"
         "      - name: packages, and the program lab\n        run: ./ladder lab status\n" +
         steps +
         "      - name: Autograding Reporter\n"
         "        uses: classroom-resources/autograding-grading-reporter@v1\n        env:\n" +
         results + "        with:\n          runners: " + runners + "\n";
}

bool is_code(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".h" || ending == ".cpp" || ending == ".cu" || ending == ".cuh";
}

}  // namespace

void leave_out(const fs::path& tree) {
  for (const char* path : kLeftOut) fs::remove_all(tree / path);
  for (const fs::path& path : files_below(tree))
    if (path.extension() == ".md") write_if_changed(path, without_instructors_parts(read_file(path), path));
}

void add_course_files(const fs::path& tree, const Course& course, const ReleaseInfo& info) {
  write_file(tree / ".github" / "workflows" / "classroom.yml", classroom_workflow(course, info));
  write_file(tree / "lab" / "release.json", write_release_info(info));
  if (!fs::exists(tree / "README.md")) return;
  std::string page = read_file(tree / "README.md");
  page.insert(
      page.find('\n') + 1,
      "\n**This is the repository of " + info.course +
          ".** The tasks of its labs are yours to write, and [lab/README.md](lab/README.md) is the page to\n"
          "begin with. Until they are written or unlocked, `./ladder demo`, and what else runs the whole engine, stops at\n"
          "the first that is not there.\n");
  write_file(tree / "README.md", page);
}

void expect_no_leaks(const fs::path& tree, RemovedLines removed) {
  const auto name = [&](const fs::path& path) { return path.lexically_relative(tree).string(); };
  const auto leaked = [&](const fs::path& path, const std::string& line) {
    if (!line.empty())
      throw LabError("no release: " + name(path) + " holds a line of the reference: " + line);
  };
  std::vector<fs::path> others;
  for (const fs::path& path : files_below(tree))
    if (is_code(path))
      leaked(path, removed.give(read_file(path)));
    else
      others.push_back(path);
  for (const fs::path& path : others) leaked(path, removed.find_in(read_file(path)));
}

}  // namespace lab
