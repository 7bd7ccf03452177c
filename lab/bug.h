#pragma once
// Bug labs: a seeded defect, for which the student writes the test that finds it. lab/bugs.json lists them; a release
// has none, `unlock` puts those of a lab into .lab/bugs.json.
//
//   .lab/bugs/3_3_1/ladder_step3/defect/FILE      a copy of the file with the defect in it
//   .lab/bugs/3_3_1/ladder_step3/reference/FILE   the same without; cmake/bugs.cmake makes four binaries of both
//   tests/bugs/3_3_1_test.cpp                     the student's
#include <filesystem>
#include <string>
#include <vector>

#include "lab/tree.h"

namespace lab {

struct Bug {
  std::string id, task;       // "3.3#1", "3.3"
  std::string title, report;  // the symptom in a line, and as a user reports it; never the cause
  std::string file;           // where the defect is
  std::string find, replace;  // `find` stands exactly once in the reference of the file
  std::string source;         // where a defect of this kind was seen
  std::string target;         // the step's test binary whose library and headers the test uses: "test_step3"
  std::vector<std::string> includes;  // that the template of the test begins with
  int hours = 0;

  std::string name() const;       // "3_3_1"
  std::string test_path() const;  // "tests/bugs/3_3_1_test.cpp", below the root
};

// A student's test for a bug, as it was handed in.
struct BugTest {
  std::string bug, text;  // "3.3#2", the file
};

// Error: the file is no list of bugs. None of both files is there: none.
std::vector<Bug> read_bugs(const std::filesystem::path& root);
// Error: no such bug; says how bugs come into a release.
Bug find_bug(const std::filesystem::path& root, const std::string& id);

// An empty test for the student to fill. Deterministic: what equals it is not written yet.
std::string bug_template(const Bug& bug);

// Writes both copies to .lab/bugs. Error: the reference of a region in the file is not there, or `find` stands not
// exactly once since the file was changed outside its regions.
void prepare_bug(const Tree& tree, const Bug& bug);

// Why such a test cannot be taken, one line; "" if it can. It may include standard headers of values and containers,
// GoogleTest and the headers of steps and tests, has no other line for the preprocessor, and keeps to the rules of what is handed
// in (rules.h), with "tests" allowed. The same for `lab test`, `hand-in` and `grade`.
std::string refused_bug_test(const std::string& text);

}  // namespace lab
