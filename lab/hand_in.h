#pragma once
// What a student hands in: one JSON file with the texts of regions and where they came from, nothing else.
//
//   {"format": 1, "release": "4f0c...", "commit": "...",
//    "regions": [{"task": "5.2", "file": "step5_scheduler/admission.cpp", "sha256": "...", "text": "..."}, ...]}
#include <string>
#include <vector>

#include "lab/tree.h"

namespace lab {

// Error: nothing of the student's stands in the regions of one of these tasks, or a region is not whole.
std::string make_hand_in(const Tree& tree, const std::vector<const Task*>& tasks);

// A line for each file of these tasks that was changed outside its regions: a hand-in does not hold that.
std::string left_behind(const Tree& tree, const std::vector<const Task*>& tasks);

// The number of regions in a hand-in for this checkout. Error, one line: it is no hand-in, one of another release, or
// a text is not the one its hash names.
int check_hand_in(const Tree& tree, const std::string& path);

}  // namespace lab
