#include "lab/course.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "lab/files.h"
#include "lab/lab_error.h"

namespace lab {
namespace {

using nlohmann::json;

Task read_task(const json& from) {
  Task task;
  from.at("id").get_to(task.id);
  from.at("title").get_to(task.title);
  from.at("chapter").get_to(task.chapter);
  from.at("hours").get_to(task.hours);
  from.at("points").get_to(task.points);
  from.at("core").get_to(task.core);
  from.at("given").get_to(task.given);
  from.at("gpu").get_to(task.gpu);
  from.at("needs").get_to(task.needs);
  from.at("regions").get_to(task.regions);
  from.at("tests").at("target").get_to(task.target);
  from.at("tests").at("filter").get_to(task.filter);
  for (const json& rung : from.at("rungs")) task.rungs.push_back({rung.at("op"), rung.at("names")});
  task.allows = from.value("allows", task.allows);
  task.counts = from.value("counts", task.counts);
  if (const auto race = from.find("race"); race != from.end()) {
    race->at("ops").get_to(task.race_ops);
    race->at("rung").get_to(task.race_rung);
  }
  task.lane = from.value("lane", task.lane);
  task.sanitized = from.value("sanitized", task.sanitized);
  if (const auto hidden = from.find("hidden"); hidden != from.end()) {
    hidden->at("target").get_to(task.hidden_target);
    hidden->at("filter").get_to(task.hidden_filter);
  }
  return task;
}

}  // namespace

const Task& Course::task(const std::string& id) const {
  const auto found = std::ranges::find(tasks, id, &Task::id);
  if (found != tasks.end()) return *found;
  std::string near;
  for (const Task& task : tasks)
    if (task.id.starts_with(id + ".")) near += (near.empty() ? "; there are " : ", ") + task.id;
  throw LabError("no task '" + id + "'" + (near.empty() ? "; ./ladder lab list names them all" : near));
}

std::vector<const Task*> Course::tasks_of(const std::string& id) const {
  std::vector<const Task*> found;
  const auto lab = std::ranges::find(labs, id, &Lab::id);
  if (lab == labs.end()) return {&task(id)};
  for (const std::string& name : lab->tasks) found.push_back(&task(name));
  return found;
}

std::vector<const Task*> Course::all_needs(const Task& of) const {
  std::set<std::string> names;
  const std::function<void(const Task&)> add = [&](const Task& task) {
    for (const std::string& need : task.needs)
      if (names.insert(need).second) add(this->task(need));
  };
  add(of);
  std::vector<const Task*> needs;
  for (const Task& task : tasks)
    if (names.contains(task.id) && task.id != of.id) needs.push_back(&task);
  return needs;
}

Course read_course(const std::filesystem::path& labs_json) {
  Course course;
  const std::string text = read_file(labs_json);
  try {
    const json all = json::parse(text);
    for (const json& from : all.at("tasks")) course.tasks.push_back(read_task(from));
    for (const json& from : all.at("labs"))
      course.labs.push_back({from.at("id"), from.at("title"), from.at("weeks"), from.at("tasks")});
  } catch (const json::exception& error) {
    throw LabError(labs_json.string() + ": " + error.what());
  }
  for (const Task& task : course.tasks)
    for (const std::string& need : task.needs) course.task(need);
  for (const Lab& lab : course.labs)
    for (const std::string& name : lab.tasks) course.task(name);
  return course;
}

}  // namespace lab
