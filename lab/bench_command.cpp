// `./ladder lab bench`: the student's build and the reference's, side by side. Both are made in build/course, one after the
// other, and kept as programs in .lab/bench.
#include <iostream>

#include "lab/commands.h"
#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/performance.h"
#include "lab/performance_points.h"
#include "lab/test_run.h"

namespace lab {
namespace {

namespace fs = std::filesystem;

// Builds what measures a task, with the reference's texts or as chosen, and keeps the programs. Error: it does not compile.
MeasuredBuild build_and_keep(const Tree& tree, const Task& task, bool reference) {
  const fs::path kept = tree.root() / ".lab" / "bench" / (reference ? "reference" : "mine");
  tree.splice(false, reference);
  const MeasuredBuild built = measured_build(build_folder(tree.root(), task.gpu));
  for (const std::string& target : measuring_targets(task)) {
    std::cout << "building " << target << (reference ? " of the reference" : "") << std::endl;
    const std::string output = build(tree.root(), task.gpu, target);
    if (output.empty()) continue;
    tree.splice();
    throw LabError("it does not compile; ./ladder lab test " + task.id + " shows the errors");
  }
  if (reference) tree.splice();
  fs::create_directories(kept);
  for (const fs::path& program : {built.counts, built.race})
    if (fs::exists(program))
      fs::copy_file(program, kept / program.filename(), fs::copy_options::overwrite_existing);
  return {kept / built.counts.filename(), kept / built.race.filename()};
}

// A measurement runs tasks that come later, too: names one that is not written instead.
std::string unwritten_in(const Tree& tree, const Task& measured, const std::string& error) {
  for (const Task& task : tree.course().tasks)
    if (error.find("task " + task.id + " is not implemented") != std::string::npos && task.id != measured.id)
      return "bench " + measured.id + " runs task " + task.id + " too, which is not written" +
             (tree.has_reference(task) ? ": ./ladder lab use reference " + task.id
                                       : " here and not unlocked");
  return error;
}

// A release may lack references until they are unlocked.
bool lacks_reference(const Tree& tree, const Task& task) {
  try {
    for (const std::string& path : task.regions) tree.reference(task, path);
    return false;
  } catch (const LabError&) {
    return true;
  }
}

}  // namespace

int bench(const Tree& tree, const std::string& id) {
  int code = 0;
  for (const Task* task : tree.course().tasks_of(id)) {
    if (!has_performance(*task)) {
      std::cout << "task " << task->id << " has no performance points\n";
      continue;
    }
    if (const std::string why = why_not_raced(*task); !why.empty()) {
      std::cout << why << "\n";
      code = 1;
      continue;
    }
    std::cout << "task " << task->id << ": " << task->title << "\n";
    if (tree.state(*task).builds_reference) std::cout << "  this is the reference, not your text\n";
    Measuring with;
    {
      const FileLock lock(lock_of(tree.root()));
      with.student = build_and_keep(tree, *task, false);
      with.pristine = with.student;
      if (lacks_reference(tree, *task))
        std::cout << "  without a reference, which this release does not hold: yours beside itself\n";
      else
        with.pristine = build_and_keep(tree, *task, true);
    }
    with.salt = "not secret";
    with.points = 100;
    with.confined = false;
    std::vector<std::string> flags;
    std::vector<Part> parts;
    try {
      parts = counted_parts(*task, with, flags);
      for (Part& part : raced_parts(*task, with, flags)) parts.push_back(std::move(part));
    } catch (const LabError& error) {
      throw LabError(unwritten_in(tree, *task, error.what()));
    }
    double points = 0;
    for (const Part& part : parts) {
      points += part.points;
      std::cout << "  " << static_cast<int>(100 * part.points / part.of + 0.5) << " %  " << part.name << ": "
                << part.text << "\n";
    }
    for (const std::string& flag : flags) std::cout << "  an instructor will look at this: " << flag << "\n";
    std::cout << task->id << ": " << static_cast<int>(points + 0.5) << " % of the performance points\n";
    if (points < 99.5) code = 1;
  }
  return code;
}

}  // namespace lab
