#include "tests/lab/small_tree.h"

#include <gtest/gtest.h>

#include "lab/files.h"
#include "lab/region.h"
#include "lab/sha256.h"

namespace lab {
namespace {

constexpr const char* kLabs = R"({
  "labs": [{"id": "memory", "title": "memory", "weeks": [1, 2], "tasks": ["3.1", "3.2", "3.3"]}],
  "tasks": [
    {"id": "3.1", "title": "given", "chapter": "step3_small/README.md#task-3-1", "hours": 1, "points": 10, "core": true,
     "given": true, "needs": [], "regions": [], "tests": {"target": "test_step3", "filter": "Task3_1_*"}, "gpu": false,
     "rungs": []},
    {"id": "3.2", "title": "the pool", "chapter": "step3_small/README.md#task-3-2", "hours": 2, "points": 20, "core": true,
     "given": false, "needs": [], "regions": ["step3_small/pool.cpp"],
     "tests": {"target": "test_step3", "filter": "Task3_2_*"}, "gpu": false, "rungs": []},
    {"id": "3.3", "title": "the manager", "chapter": "step3_small/README.md#task-3-3", "hours": 3, "points": 30,
     "core": true, "given": false, "needs": ["3.2"], "regions": ["step3_small/manager.cpp", "step3_small/sharing.cpp"],
     "tests": {"target": "test_step3", "filter": "Task3_3_*"}, "gpu": false, "rungs": []}
  ]
})";

constexpr const char* kHeader = R"(#pragma once
#include <stdexcept>
#include <string>
namespace ladder {
struct TaskNotImplemented : std::runtime_error {
  explicit TaskNotImplemented(const char* task)
      : std::runtime_error("task " + std::string(task) + " is not implemented") {}
};
int take(int free);
int allocate(int free);
int share(int count);
}  // namespace ladder
)";

std::string source(const std::string& task, const std::string& function) {
  return "#include \"step3_small/small.h\"\n\nnamespace ladder {\n\n// >>> task " + task + ": a function\n" +
         function + "// <<< task " + task + "\n\n}  // namespace ladder\n";
}

}  // namespace

SmallTree::SmallTree() {
  write("lab/labs.json", kLabs);
  write("step3_small/small.h", kHeader);
  write(kPool, source("3.2", "int take(int free) {\n  return free - 1;\n}\n"));
  write(kManager, source("3.3", "int allocate(int free) {\n  return take(free) - 1;\n}\n"));
  write(kSharing, source("3.3", "int share(int count) {\n  return count + 1;\n}\n"));
  write_hashes();
}

std::string SmallTree::read(const std::string& path) const {
  return read_file(root() / path);
}

void SmallTree::write(const std::string& path, const std::string& text) const {
  write_file(root() / path, text);
}

void SmallTree::edit(const std::string& path, const std::string& what, const std::string& with) const {
  std::string text = read(path);
  const size_t at = text.find(what);
  ASSERT_NE(at, std::string::npos) << path << ": " << what;
  ASSERT_EQ(text.find(what, at + 1), std::string::npos) << path << ": " << what;
  write(path, text.replace(at, what.size(), with));
}

std::string SmallTree::spliced(const std::string& path) const {
  const auto copy = root() / ".lab" / "spliced" / path;
  return std::filesystem::exists(copy) ? read_file(copy) : "";
}

TaskState SmallTree::state(const std::string& id) const {
  const Tree now = tree();
  return now.state(now.course().task(id));
}

Outcome SmallTree::lab(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {LAB_BINARY, "--root", root().string()});
  return run(arguments);
}

void SmallTree::git(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"git", "-C", root().string(), "-c", "user.name=a", "-c",
                                       "user.email=a@b", "-c", "commit.gpgsign=false"});
  const Outcome done = run(arguments);
  ASSERT_TRUE(done.ok()) << done.output;
}

void SmallTree::write_hashes() const {
  std::string lines;
  for (const auto& [id, path] : {std::pair{"3.2", kPool}, {"3.3", kManager}, {"3.3", kSharing}})
    lines += std::string(id) + " " + path + " " + sha256(find_regions(read(path)).at(id).text) + "\n" +
             "outside " + path + " " + sha256(with_regions(read(path), {{id, {}}})) + "\n";
  write("lab/regions.txt", lines);
}

}  // namespace lab
