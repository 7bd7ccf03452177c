#pragma once
// What grading says about a hand-in.
#include <string>
#include <vector>

namespace lab {

// A behaviour, a rung or a measurement, with the points that it brought.
struct Part {
  std::string task;  // "5.2"
  std::string part;  // "public", "hidden", "performance" or "bug"
  std::string
      name;  // the test, or what was counted; a hidden test's with its number only where its inputs are random
  double points = 0, of = 0;
  std::string text;  // why it brought less than `of`; may have several lines
};

struct Grade {
  std::string hand_in;             // the file, or the archive and the file in it
  std::string student;             // the file's name without ending, or the folder's that it is in
  std::vector<std::string> tasks;  // graded
  std::vector<Part> parts;
  std::vector<std::string> flags;   // what an instructor must look at, one line each
  std::vector<std::string> errors;  // why nothing, or not all, could be graded, one line each

  double points() const;
  double of() const;
};

}  // namespace lab
