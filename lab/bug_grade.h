#pragma once
// A hand-in's tests for seeded defects, graded in the sandbox.
#include <functional>
#include <string>
#include <vector>

#include "lab/bug.h"
#include "lab/grade.h"
#include "lab/sandbox.h"

namespace lab {

struct BugGrading {
  const Tree& tree;              // pristine: the reference in every region
  std::vector<Bug> bugs;         // the instructor's
  std::filesystem::path folder;  // where `tree` is built
  // Builds a target of ninja there, in the sandbox: a test may hold anything. Returns what the compiler said, or "".
  std::function<std::string(const std::string& target)> build;
  Sandbox sandbox = Sandbox::namespaces;
};

// One part for each test, `of` points each: all of them if the test finds its defect, none otherwise, and why. What it
// writes into the tree is gone when it returns.
std::vector<Part> bug_parts(const BugGrading& grading, const std::vector<BugTest>& tests, double of);

}  // namespace lab
