#pragma once
// Performance points of a hand-in: what a task's counted problems and races bring. The programs course_counts and
// course_race (bench/) judge; the judges are the pristine build's, the workers that run the student's code the student's
// build's. Both run in the sandbox.
#include <filesystem>
#include <string>
#include <vector>

#include "lab/course.h"
#include "lab/grade.h"
#include "lab/machine.h"
#include "lab/rules.h"
#include "lab/sandbox.h"

namespace lab {

// A build's programs for this, and the names of the targets that make them.
struct MeasuredBuild {
  std::filesystem::path counts, race;
};
// Empty: nothing of the task can be measured on this machine.
std::vector<std::string> measuring_targets(const Task& task, const Machine& machine = this_machine());
MeasuredBuild measured_build(const std::filesystem::path& build_folder);

struct Measuring {
  MeasuredBuild student, pristine;
  std::string salt;   // of the instructor: workloads follow from it
  double points = 0;  // of the task's performance in all
  std::vector<std::filesystem::path>
      objects;  // what the compiler made of the student's files, for library_calls()
  std::filesystem::path sanitizer = this_machine().sanitizer;  // where a race is on a GPU
  Sandbox sandbox = Sandbox::namespaces;
  // Instead of the sandbox: a student's own `lab bench`.
  bool confined = true;
};

bool has_performance(const Task& task);

// A race on a GPU needs one, and compute-sanitizer. Why it cannot be held on this machine, a line; "" where it can.
std::string why_not_raced(const Task& task, const Machine& machine = this_machine());

// One part for each count and each race; together they have `points`. A flag is what an instructor must look at. Error
// (LabError): a judge could not measure, or the reference fails.
std::vector<Part> counted_parts(const Task& task, const Measuring& with, std::vector<std::string>& flags);
std::vector<Part> raced_parts(const Task& task, const Measuring& with, std::vector<std::string>& flags);

// Names of libraries' kernels that an object calls: a task that is raced is to be written, not called.
std::vector<std::string> library_calls(const Symbols& object);

}  // namespace lab
