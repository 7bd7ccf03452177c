#pragma once
// What a release keeps back of a lab: the reference of its tasks and its seeded defects, in lab/sealed/LAB.bin.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lab/tree.h"

namespace lab {

// The file's text. `tree` has the reference of the lab's tasks; `bugs` is lab/bugs.json, an array of {"task", ...}, of
// which those of this lab are sealed too. `release`: the id that the released repository will have.
std::string seal_lab(const Tree& tree, const Lab& lab, const nlohmann::json& bugs, const std::string& key,
                     const std::string& release);

// Opens the lab with a key of 64 hexadecimal digits: its references to .lab/reference, where Tree finds them, its
// seeded defects to .lab/bugs.json; no text of the student's is touched. Returns whether anything was missing there.
// Error, one line: no release, no such lab, one that is not sealed, another lab's key, a damaged file.
bool unlock(const Tree& tree, const std::string& lab_id, const std::string& key_digits);

}  // namespace lab
