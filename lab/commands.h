#pragma once
// The commands of `./ladder lab`. Each prints to stdout and returns the exit code; LabError is a user's mistake. All
// that build, and `status`, bring the copies that the build takes up to date.
#include <string>
#include <vector>

#include "lab/release.h"
#include "lab/tree.h"

namespace lab {

int list(const Tree& tree);
int status(const Tree& tree);
int start(Tree& tree, const std::string& id, bool anew);
int use(Tree& tree, const std::string& whose, const std::string& id);
int test(const Tree& tree, const std::string& id, const std::string& rung, bool emulated = false);
// What the performance points of a task are made of, on workloads that are not secret (lab/README.md).
int bench(const Tree& tree, const std::string& id);
int demo(const Tree& tree, const std::vector<std::string>& arguments);
int hand_in(const Tree& tree, const std::vector<std::string>& ids, const std::string& out);
int unlock_lab(const Tree& tree, const std::string& id, const std::string& key);

// What `of` needs and a release has not: one line, or "".
std::string missing_needs(const Tree& tree, const Task& of);

// For instructors.
int release(const Tree& tree, const ReleaseOptions& options);
int print_keys(const Tree& tree, const std::string& salt);

// Seeded defects (bug.h): all of them; one, with its report and a file for the test; whether that test finds it.
int list_bugs(const Tree& tree);
int bug(const Tree& tree, const std::string& id);
int test_bug(const Tree& tree, const std::string& id);

// For an instructor: points and reports for hand-ins. Exit code 1: some of them could not be graded in full.
struct GradeSettings {
  std::string format, salt, tasks, out, sandbox, variants;  // as on the command line; "" where not given
};
int grade(const Tree& tree, const std::vector<std::string>& hand_ins, const GradeSettings& settings);

// For the project itself: stubs, or traced copies, of these tasks' regions written over a copy of the checkout.
int write_stubs(const Tree& tree, const std::string& id, const std::string& folder);
// What rules.h and performance.h say of a region's text and of the object made of it, a line each; 1 if there is any.
int check_text(const Tree& tree, const std::string& id, const std::vector<std::string>& text_and_objects);
// A task's performance points, 100 in all, of a build folder's programs beside a pristine one's, in the sandbox.
int measure(const Tree& tree, const std::string& id, const std::vector<std::string>& folders_and_objects,
            bool confined);
int write_traced(const Tree& tree, const std::string& folder);

}  // namespace lab
