#pragma once
// The tree that hand-ins are graded in: the instructor's files with the reference in every region and the variants that
// the salt draws, as the released course has them, in .lab/grade/tree, built once. A hand-in's texts stand in it while
// they are built and no longer.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/rules.h"
#include "lab/sandbox.h"
#include "lab/tree.h"

namespace lab {

enum class Build { release, asan, gpu };  // gpu: with CUDA, for the races of kernels

class GradeTree {
 public:
  // Brings the copy up to date. `salt` empty: no variants. Error: a reference is not there (unlock it), or another
  // `grade` works in it.
  GradeTree(const Tree& instructors, const std::string& salt, Sandbox sandbox);
  ~GradeTree();
  GradeTree(const GradeTree&) = delete;
  GradeTree& operator=(const GradeTree&) = delete;

  const std::filesystem::path& folder() const { return folder_; }  // .lab/grade
  std::filesystem::path root() const { return folder_ / "tree"; }
  std::filesystem::path build_folder(Build build) const;
  std::filesystem::path binary(Build build, const std::string& target) const;
  std::string hash() const { return hash_; }  // of all its files

  // The reference everywhere. Error (LabError): a file is not what was copied, and what differs.
  void restore();
  // These texts in a task's regions. The rest is pristine, which is checked.
  void put(const Task& task, const std::map<std::string, std::string>& texts);

  // The reference: with the instructor's rights. Error: it does not compile.
  void build_reference(Build build, const std::vector<std::string>& targets);
  // What stands there now: in the sandbox. Returns what the compiler said where it failed, or "".
  std::string build_hand_in(Build build, const std::vector<std::string>& targets);

  // What the compiler made of a file, once per instruction set.
  std::vector<std::filesystem::path> objects(Build build, const std::string& file) const;

  // The course as it was released; all its regions hold the reference.
  const Tree& tree() const { return *tree_; }

 private:
  void configure(Build build);
  void copy(const Tree& instructors, const std::string& salt);

  std::optional<Tree> tree_;
  Sandbox sandbox_;
  std::filesystem::path folder_;
  std::string hash_;
  int lock_ = -1;
  std::map<std::string, std::string> hashes_;    // of every file, by path
  std::map<std::string, std::string> pristine_;  // the text of every file with regions
};

}  // namespace lab
