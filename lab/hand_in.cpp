#include "lab/hand_in.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/bug_judge.h"
#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/process.h"
#include "lab/rules.h"
#include "lab/sha256.h"

namespace lab {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string make_hand_in(const Tree& tree, const std::vector<const Task*>& tasks,
                         const std::vector<Bug>& bugs) {
  Json regions = Json::array();
  for (const Task* task : tasks) {
    const TaskState state = tree.state(*task);
    if (state.text == Text::broken) throw LabError(state.problem);
    if (state.text != Text::mine)
      throw LabError("task " + task->id + ": nothing of yours to hand in, its regions are " +
                     (state.text == Text::stub ? "stubs" : "the reference"));
    if (const std::string refused = refused_in(tree, *task); !refused.empty())
      throw LabError("task " + task->id + " would not be graded:\n" +
                     refused.substr(0, refused.find_last_not_of('\n') + 1));
    for (const std::string& path : task->regions) {
      const std::string& text = tree.region(*task, path).text;
      regions.push_back({{"task", task->id}, {"file", path}, {"sha256", sha256(text)}, {"text", text}});
    }
  }
  Json tests = Json::array();
  for (const Bug& bug : bugs) {
    if (!fs::exists(tree.root() / bug.test_path()))
      throw LabError("bug " + bug.id + ": no test of yours, " + bug.test_path() + " is not there");
    const std::string text = read_file(tree.root() / bug.test_path());
    for (const std::string& problem : {refused_bug_test(text), not_written_yet(bug, text)})
      if (!problem.empty()) throw LabError("bug " + bug.id + ": " + problem);
    tests.push_back({{"bug", bug.id}, {"sha256", sha256(text)}, {"text", text}});
  }
  const Outcome head = run({"git", "-C", tree.root().string(), "rev-parse", "HEAD"});
  const std::string commit = head.ok() ? head.output.substr(0, head.output.find('\n')) : "";
  Json all = {{"format", 1}, {"release", tree.release()}, {"commit", commit}, {"regions", regions}};
  if (!tests.empty()) all["bugs"] = tests;
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string left_behind(const Tree& tree, const std::vector<const Task*>& tasks) {
  std::set<std::string> paths;
  for (const Task* task : tasks)
    for (const std::string& path : tree.changed_outside(*task)) paths.insert(path);
  std::string lines;
  for (const std::string& path : paths)
    lines += "  " + path + " was changed outside its regions, and a hand-in does not hold that\n";
  return lines;
}

std::string refused_in(const Tree& tree, const Task& task) {
  std::string lines;
  for (const std::string& path : task.regions) {
    const Region& region = tree.region(task, path);
    const std::vector<std::string> found = forbidden_in(region.text, task.allows, region.first_line);
    if (!found.empty())
      lines += "  " + path + ", " + found[0] +
               (found.size() > 1 ? " (and " + std::to_string(found.size() - 1) + " more)" : "") + "\n";
  }
  return lines;
}

int check_hand_in(const Tree& tree, const std::string& path) {
  try {
    const Json all = Json::parse(read_file(path));
    if (all.at("format") != 1)
      throw LabError(path + ": a hand-in of a format that this program does not know");
    const std::string release = all.at("release");
    if (release != tree.release())
      throw LabError(path + ": a hand-in of release " + release + ", this checkout is release " +
                     tree.release());
    for (const Json& region : all.at("regions")) {
      const Task& task = tree.course().task(region.at("task"));
      const std::string file = region.at("file"), text = region.at("text");
      if (std::ranges::find(task.regions, file) == task.regions.end())
        throw LabError(path + ": task " + task.id + " has no region in " + file);
      if (sha256(text) != region.at("sha256").get<std::string>())
        throw LabError(path + ": the text of task " + task.id + " in " + file +
                       " is not the one that was handed in");
    }
    const Json bugs = all.value("bugs", Json::array());
    for (const Json& bug : bugs)
      if (sha256(bug.at("text").get<std::string>()) != bug.at("sha256").get<std::string>())
        throw LabError(path + ": the test of bug " + bug.at("bug").get<std::string>() +
                       " is not the one that was handed in");
    return static_cast<int>(all.at("regions").size() + bugs.size());
  } catch (const nlohmann::json::exception& error) {
    throw LabError(path + ": no hand-in: " + error.what());
  }
}

}  // namespace lab
