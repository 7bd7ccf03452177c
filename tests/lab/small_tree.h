#pragma once
// A checkout of two tasks for the tests: 3.3 needs 3.2, and 3.3 has regions in two files.
#include <filesystem>
#include <string>

#include "lab/process.h"
#include "lab/tree.h"
#include "tests/support/temporary_folder.h"

namespace lab {

class SmallTree {
 public:
  SmallTree();

  const std::filesystem::path& root() const { return folder_.path(); }
  std::string read(const std::string& path) const;
  void write(const std::string& path, const std::string& text) const;
  // Puts `with` where `what` stands, which must be there once.
  void edit(const std::string& path, const std::string& what, const std::string& with) const;
  std::string spliced(const std::string& path) const;  // the copy that the build takes; "" if there is none
  Tree tree() const { return Tree(root()); }
  TaskState state(const std::string& id) const;
  Outcome lab(std::vector<std::string> arguments) const;  // the program itself, on this tree
  void git(std::vector<std::string> arguments) const;
  void write_hashes() const;  // lab/regions.txt: what stands there is the reference

 private:
  ladder::testing::TemporaryFolder folder_;
};

inline constexpr const char* kPool = "step3_small/pool.cpp";
inline constexpr const char* kManager = "step3_small/manager.cpp";
inline constexpr const char* kSharing = "step3_small/sharing.cpp";

}  // namespace lab
