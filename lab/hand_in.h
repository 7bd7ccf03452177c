#pragma once
// What a student hands in: one JSON file with the texts of regions and where they came from, nothing else.
//
//   {"format": 1, "release": "4f0c...", "commit": "...",
//    "regions": [{"task": "5.2", "file": "step5_scheduler/admission.cpp", "sha256": "...", "text": "..."}, ...],
//    "bugs": [{"bug": "3.3#2", "sha256": "...", "text": "..."}, ...]}      tests for seeded defects; absent if there is none
#include <string>
#include <vector>

#include "lab/bug.h"
#include "lab/tree.h"

namespace lab {

// Of these tasks, and the tests of these bugs. Error: nothing of the student's stands in the regions of one of the
// tasks, a region is not whole or holds what a grader refuses, or a bug's test is not written.
std::string make_hand_in(const Tree& tree, const std::vector<const Task*>& tasks,
                         const std::vector<Bug>& bugs = {});

// A line for each file of these tasks that was changed outside its regions: a hand-in does not hold that.
std::string left_behind(const Tree& tree, const std::vector<const Task*>& tasks);

// A line for each region of the task that holds what a grader refuses (rules.h): the first such place, as the
// student's file has it. What only the compiled text shows is not seen here.
std::string refused_in(const Tree& tree, const Task& task);

// The number of texts in a hand-in for this checkout, of regions and of tests for bugs. Error, one line: it is no hand-in, one of another release, or
// a text is not the one its hash names.
int check_hand_in(const Tree& tree, const std::string& path);

}  // namespace lab
