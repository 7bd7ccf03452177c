#pragma once
// Hand-ins as they come from a class: files, folders of them, archives. What is wrong with one harms no other.
#include <map>
#include <string>
#include <vector>

#include "lab/bug.h"
#include "lab/machine.h"
#include "lab/tree.h"

namespace lab {

struct Submission {
  std::string name;  // as the instructor finds it: the path, or ARCHIVE:PATH
  std::string
      student;        // the file's name without its ending; of hand-in-5.2.json the folder's or the archive's
  std::string text;   // the JSON
  std::string error;  // why there is none, one line
  std::vector<std::string> flags;
};

// Sorted by student. Error: one of the paths is not there, or none holds anything.
std::vector<Submission> read_submissions(const std::vector<std::string>& paths);

// What a hand-in holds for the tasks that are graded, checked against the course.
struct HandIn {
  std::map<std::string, std::map<std::string, std::string>> texts;  // task -> file -> region
  std::vector<BugTest> bugs;                                        // tests for seeded defects
  std::vector<std::string> errors;                                  // one line each
  std::map<std::string, std::string>
      why_not;  // of a task or bug of `ids` that is not in it: its own line of these
};

// `ids`: of the tasks and bugs that are graded; empty: all that the hand-in holds, and the machine can grade.
HandIn read_hand_in(const Tree& tree, const std::string& json, const std::vector<std::string>& ids,
                    const Machine& machine = this_machine());

}  // namespace lab
