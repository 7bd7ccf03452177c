#pragma once
// What lab/labs.json says: labs, their tasks, and where each task's regions and tests are.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lab/stub.h"

namespace lab {

struct Task {
  std::string id, title, chapter;
  int hours = 0, points = 0;
  bool core = false, given = false, gpu = false;
  std::vector<std::string> needs;    // directly
  std::vector<std::string> regions;  // files
  std::string target, filter;        // the test binary and the GoogleTest filter
  std::vector<Rung> rungs;
  std::vector<std::string> allows;           // of what rules.h refuses in a region
  std::string lane;                          // "emulator": its tests run there too (lane.h)
  std::string hidden_target, hidden_filter;  // the hidden tests; "" where it has none
  std::vector<std::string> counts;           // counted problems (performance_points.h)
  std::vector<std::string> race_ops;         // what is raced against the reference ...
  std::string race_rung;                     // ... "loop", or "simd", the widest that the machine has
  // Of a task whose tests need a GPU: the filter of those that a tool of sanitizer.h looks at, by the tool.
  std::map<std::string, std::string> sanitized;
};

struct Lab {
  std::string id, title;
  std::vector<int> weeks;  // empty: not on the core path
  std::vector<std::string> tasks;
};

struct Course {
  std::vector<Lab> labs;
  std::vector<Task> tasks;

  const Task& task(const std::string& id) const;  // Error: no such task; names those that come near
  // A task's id, or a lab's, which stands for all its tasks. Error: neither.
  std::vector<const Task*> tasks_of(const std::string& id) const;
  // Everything a task needs, directly or through others, in the order of the course.
  std::vector<const Task*> all_needs(const Task& task) const;
};

// Error: the file is missing, is no JSON, or lacks a field, with its name.
Course read_course(const std::filesystem::path& labs_json);

}  // namespace lab
