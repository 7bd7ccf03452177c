#include "lab/commands.h"

#include <algorithm>
#include <iostream>
#include <sstream>

#include "lab/files.h"
#include "lab/hand_in.h"
#include "lab/lab_error.h"
#include "lab/process.h"
#include "lab/unlock.h"

namespace lab {

namespace fs = std::filesystem;

namespace {

std::string hours(int count) {
  return std::to_string(count) + (count == 1 ? " hour" : " hours");
}

constexpr size_t kIdWidth = 20;

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

const char* name_of(const TaskState& state) {
  switch (state.text) {
    case Text::reference:
      return "reference";
    case Text::stub:
      return "stub";
    case Text::mine:
      return state.unfinished ? "mine, unfinished" : "mine";
    case Text::broken:
      return "broken";
  }
  return "";
}

// What the build takes, where that is not what stands in the file.
std::string built(const TaskState& state) {
  const bool differs = state.builds_reference && state.text != Text::reference;
  return differs ? "the build takes the reference" : "";
}

std::vector<const Task*> with_needs(const Course& course, const Task& task) {
  std::vector<const Task*> tasks = course.all_needs(task);
  tasks.push_back(&task);
  return tasks;
}

}  // namespace

int list(const Tree& tree) {
  const Course& course = tree.course();
  for (const Lab& lab : course.labs) {
    int sum = 0;
    for (const std::string& id : lab.tasks) sum += course.task(id).hours;
    std::string weeks = "optional";
    if (!lab.weeks.empty()) {
      weeks = "week " + std::to_string(lab.weeks.front());
      if (lab.weeks.size() > 1) weeks += " to " + std::to_string(lab.weeks.back());
    }
    std::cout << lab.id << ": " << lab.title << " (" << weeks << ", " << hours(sum) << ")\n";
    for (const std::string& id : lab.tasks) {
      const Task& task = course.task(id);
      if (task.given) {
        std::cout << "  " << padded(id, kIdWidth) << padded("given", 18) << task.title << "\n";
        continue;
      }
      std::string notes;
      if (task.gpu) notes += task.lane.empty() ? ", needs a GPU" : ", needs a GPU or --lane emulator";
      for (size_t i = 0; i < task.needs.size(); ++i) notes += (i == 0 ? ", needs " : " and ") + task.needs[i];
      std::cout << "  " << padded(id, kIdWidth) << padded(name_of(tree.state(task)), 18)
                << padded(std::to_string(task.points), 4) << "points, " << hours(task.hours) << ": "
                << task.title << notes << "\n";
    }
  }
  return 0;
}

int status(const Tree& tree) {
  int broken = 0, mine = 0;
  std::cout << "release " << tree.release() << "\n";
  for (const Task& task : tree.course().tasks) {
    const TaskState state = tree.state(task);
    broken += state.text == Text::broken;
    mine += state.text == Text::mine && !state.unfinished;
    std::string note = state.text == Text::broken ? state.problem : built(state);
    if (note.empty() && state.is_reference) note = "the reference's very text";
    std::cout << padded(task.id, kIdWidth) << padded(name_of(state), 18) << (note.empty() ? task.title : note)
              << "\n";
  }
  std::cout << mine << " of " << tree.course().tasks.size() << " tasks are written\n";
  tree.splice();
  if (broken > 0) throw LabError(std::to_string(broken) + " of the tasks have broken regions, named above");
  return 0;
}

int start(Tree& tree, const std::string& id, bool anew) {
  const Task& task = tree.course().task(id);
  const std::vector<const Task*> needs = tree.course().all_needs(task);
  tree.check(with_needs(tree.course(), task));
  const std::vector<std::string> changed = tree.start(task, anew);
  const TaskState state = tree.state(task);
  std::cout << "task " << task.id << ": " << task.title << " (" << hours(task.hours) << ", " << task.points
            << " points)\n";
  if (changed.empty())
    std::cout << (state.text == Text::stub ? "  its stub stands there already; nothing was changed\n"
                                           : "  what stands in its regions is yours; nothing was changed\n");
  if (changed.empty() && state.is_reference)
    std::cout << "  (it is the reference's very text; to cut it out: ./ladder lab start " << task.id
              << " --anew)\n";
  std::cout << "edit\n";
  for (const std::string& path : task.regions) {
    const Region& region = tree.region(task, path);
    std::cout << "  " << path << ":" << region.first_line << "-" << region.last_line << "\n";
  }
  if (!task.rungs.empty())
    std::cout << "  and delete the LADDER_UNWRITTEN lines there when their rungs are written\n";
  for (const Task* need : needs) {
    const TaskState of = tree.state(*need);
    std::cout << (need == needs.front() ? "uses\n" : "") << "  " << padded(need->id, kIdWidth)
              << (of.builds_reference ? "the reference"
                  : of.is_missing     ? "not written here and not unlocked"
                  : of.unfinished     ? "yours, unfinished"
                                      : "yours")
              << (built(of).empty() || of.text == Text::stub ? "" : " (what you wrote stays in its file)")
              << "\n";
  }
  std::cout << missing_needs(tree, task) << "tests    ./ladder lab test " << task.id << "      ("
            << task.target << ", " << task.filter << ")\n"
            << (task.lane == "emulator"
                    ? "         ./ladder lab test " + task.id + " --lane emulator, without a GPU\n"
                    : "")
            << "chapter  " << task.chapter << "\n";
  return 0;
}

std::string missing_needs(const Tree& tree, const Task& of) {
  std::string ids;
  int count = 0;
  for (const Task* need : tree.course().all_needs(of)) {
    if (!tree.state(*need).is_missing) continue;
    ids += (count++ == 0 ? "" : ", ") + need->id;
  }
  if (count == 0) return "";
  return "needs " + ids + ", which " + (count == 1 ? "is" : "are") +
         " not written here and not unlocked: tests that come there fail\n";
}

int use(Tree& tree, const std::string& whose, const std::string& id) {
  if (whose != "mine" && whose != "reference")
    throw LabError("use: expected mine or reference, got '" + whose + "'");
  const std::vector<const Task*> tasks = tree.course().tasks_of(id);
  tree.check(tasks);
  for (const Task* task : tasks) tree.use(*task, whose == "mine");
  for (const Task* task : tasks) {
    const TaskState state = tree.state(*task);
    std::cout << "task " << task->id << ": the build takes "
              << (state.builds_reference ? "the reference" : "yours")
              << (built(state).empty() ? "" : "; your text stays in its file") << "\n";
  }
  return 0;
}

int unlock_lab(const Tree& tree, const std::string& id, const std::string& key) {
  const bool news = unlock(tree, id, key);
  std::cout << "lab " << id << (news ? " is unlocked: " : " was unlocked before; nothing has changed: ")
            << "./ladder lab use reference ID takes the reference of its tasks\n";
  tree.splice();
  return 0;
}

int hand_in(const Tree& tree, const std::vector<std::string>& ids, const std::string& out) {
  std::vector<const Task*> tasks;
  std::string name = "hand-in";
  std::vector<Bug> bugs;
  for (const std::string& id : ids) {
    if (const bool is_bug = id.find('#') != std::string::npos; is_bug) {
      bugs.push_back(find_bug(tree.root(), id));
      name += "-" + bugs.back().name();
      continue;
    }
    name += "-" + id;
    for (const Task* task : tree.course().tasks_of(id))
      if (!task->given || ids.size() > 1 || tree.course().task(task->id).id == id) tasks.push_back(task);
  }
  if (tasks.empty() && bugs.empty())
    throw LabError("hand-in: expected the ids of tasks, labs or bugs, such as 5.2");
  const fs::path path = out.empty() ? fs::path(name + ".json") : fs::path(out);
  const std::string text = make_hand_in(tree, tasks, bugs);
  write_file(path, text);
  const int texts = check_hand_in(tree, path.string()), tests = static_cast<int>(bugs.size());
  std::cout << path.string() << ": ";
  if (tests < texts) std::cout << texts - tests << (texts - tests == 1 ? " region" : " regions");
  if (tests > 0)
    std::cout << (tests < texts ? " and " : "") << tests
              << (tests == 1 ? " test of a bug" : " tests of bugs");
  std::cout << " of release " << tree.release() << "\n" << left_behind(tree, tasks);
  for (const Task* task : tasks)
    if (tree.state(*task).unfinished)
      std::cout << "  part of task " << task->id
                << " is still a stub: look for TaskNotImplemented and LADDER_UNWRITTEN\n";
  return 0;
}

}  // namespace lab
