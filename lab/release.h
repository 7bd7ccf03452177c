#pragma once
// A course's repository: the project's tree without history, the tasks of the course's labs as stubs, and their
// reference sealed, or not in it at all.
#include <map>
#include <string>
#include <vector>

#include "lab/release_info.h"
#include "lab/tree.h"

namespace lab {

struct ReleaseOptions {
  std::string course, salt;
  std::filesystem::path out;      // must not exist; beside it `out`-instructor is made
  std::vector<std::string> labs;  // empty: those of the core path
  bool with_reference = true;     // sealed
  bool with_variants = true;
};

// Lab -> key, 64 hexadecimal digits, of all labs of a course.
std::map<std::string, std::string> lab_keys(const Course& course, const std::string& salt);

// Makes `out`, a git repository with one commit, and `out`-instructor, which is for nobody else: it holds the salt.
// Nothing is left of it if it fails. Error, one line: a salt that can be guessed, an unknown lab, a folder that is
// there already or lies in the checkout, a checkout that is no git repository, is a release itself, has changes that
// are not committed or a region that is not the reference, a line of the reference that would be given away.
ReleaseInfo make_release(const Tree& tree, const ReleaseOptions& options);

}  // namespace lab
