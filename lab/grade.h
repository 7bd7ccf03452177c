#pragma once
// What grading says about a hand-in, and how it comes to it.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lab/grade_tree.h"
#include "lab/machine.h"
#include "lab/submissions.h"
#include "lab/tree.h"

namespace lab {

// A behaviour, a rung or a measurement, with the points that it brought.
struct Part {
  std::string task;  // "5.2"
  std::string part;  // "public", "hidden", "performance" or "bug"
  std::string name;  // the test, or what was counted
  double points = 0, of = 0;
  std::string text;  // why it brought less than `of`; may have several lines
};

struct Grade {
  std::string hand_in;  // the file, or the archive and the file in it
  std::string student;
  std::vector<std::string> tasks;  // graded
  std::vector<Part> parts;
  std::vector<std::string> flags;   // what an instructor must look at, one line each
  std::vector<std::string> errors;  // why nothing, or not all, could be graded, one line each

  double points() const;
  double of() const;
};

struct GradeOptions {
  std::vector<std::string> tasks;  // the ids of those that are graded
  std::vector<std::string> bugs;   // the same; both empty: all that a hand-in holds
  std::string salt;
  bool with_variants = true;  // as `release` made the course
  Sandbox sandbox = Sandbox::namespaces;
  Machine machine = this_machine();
};

// Grades one after the other; what is wrong with a hand-in becomes lines of its own grade. Error (LabError): the
// instructor's own mistake, before anything was graded: a task is not there, the reference fails.
class Grader {
 public:
  Grader(const Tree& tree, GradeOptions options);
  ~Grader();

  Grade grade(const Submission& submission);
  const Tree& tree() const;  // the course as it was released
  // Builds and runs the reference of these tasks, so that grade() need not. Says what it does.
  void prepare(const std::vector<std::string>& tasks, const std::function<void(const std::string&)>& say);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lab
