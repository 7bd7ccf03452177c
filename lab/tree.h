#pragma once
// A student's checkout: what stands in each region, and which text the build takes.
//
// The student's text stays where it was written, in the file itself, and no command but the student's editor changes
// it. Only `start` writes into the checkout, and only over a region that is still the reference. Where the build
// shall take the reference although something else stands in the file, it compiles a copy of the file in
// .lab/spliced/ with the reference in that region (cmake/spliced.cmake).
//
//   lab/regions.txt      which text is the reference: task, file, SHA-256, and "outside", file, SHA-256 for what
//                        stands around the regions (tools/task_boxes.py writes it)
//   .lab/reference/HASH  reference texts, kept from the moment that a region is first given away, or unlocked
//   lab/release.json     in a released repository: the tasks of which labs are there without their reference
//   .lab/choices         which tasks were started, which of them last, and what `use` was told
//   .lab/spliced/        the copies; made anew by every command, may be deleted
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lab/course.h"
#include "lab/region.h"
#include "lab/release_info.h"

namespace lab {

enum class Text { reference, stub, mine, broken };

struct TaskState {
  Text text = Text::reference;  // what stands in the checkout
  bool unfinished = false;      // mine, but part of it still throws
  bool is_reference = false;    // mine, and what was written is the reference's very text
  bool builds_reference = true;
  bool is_missing = false;  // not written, and this release's reference of it is not unlocked
  std::string problem;      // where broken: one line
};

class Tree {
 public:
  // Error: no lab/labs.json or lab/regions.txt there.
  explicit Tree(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }
  const Course& course() const { return course_; }
  std::string release() const;  // names labs.json and all reference texts, also where they are not there
  const std::optional<ReleaseInfo>& release_info() const { return release_info_; }
  // Whether the checkout is a release that came without this task's reference. What stands in its regions is never
  // taken for the reference.
  bool is_cut(const Task& task) const { return cut_.contains(task.id); }

  TaskState state(const Task& task) const;
  // One of a task's regions as it stands in the checkout. Error: it is not whole; says what is wrong.
  const Region& region(const Task& task, const std::string& path) const;
  bool is_reference(const Task& task, const std::string& path) const;
  // What `start` puts there. Error: no stub can be made of it.
  std::string stub(const Task& task, const std::string& path) const;
  // Error: the text is neither in the checkout nor in .lab/reference nor in git's history.
  std::string reference(const Task& task, const std::string& path) const;
  // Error: `text` is not what lab/regions.txt names. It is found by reference() from now on.
  void keep_reference(const Task& task, const std::string& path, const std::string& text) const;
  // False: the task is cut and was not unlocked.
  bool has_reference(const Task& task) const;

  // A file of the checkout with the reference in all its regions. Error, as reference(), or a region is not whole.
  std::string reference_file(const std::string& path) const;

  // Error, one line: a region of one of these tasks is not whole.
  void check(const std::vector<const Task*>& tasks) const;

  // The files of a task's regions that differ from the release's outside all regions.
  std::vector<std::string> changed_outside(const Task& task) const;

  // Makes this task the one whose stubs the build takes, and puts stubs where its regions are the reference: never
  // beside a text of the student's, and once started only with `anew`, since what was written may be the reference's
  // very text. Returns the files that were changed.
  std::vector<std::string> start(const Task& task, bool anew = false);
  void use(const Task& task, bool mine);

  // Brings .lab/spliced in line with regions and choices. `traced`, for the demo: the student's regions note that
  // they ran, and where a task is not finished the reference is taken. `all_reference`: of every task whose
  // reference is at hand, whatever was chosen.
  void splice(bool traced = false, bool all_reference = false) const;

 private:
  void keep_references() const;
  void read_files();
  void save_choices() const;
  Text text_of(const Task& task, const std::string& path) const;

  std::filesystem::path root_;
  Course course_;
  std::map<std::string, std::string> files_;                      // path -> text
  std::map<std::string, std::map<std::string, Region>> regions_;  // path -> task -> region
  std::map<std::string, std::string> problems_;                   // path -> what is wrong with it
  std::map<std::pair<std::string, std::string>, std::string> reference_hashes_;  // {task or "outside", path}
  std::optional<ReleaseInfo> release_info_;
  std::set<std::string> cut_;
  std::string started_;          // last
  std::set<std::string> begun_;  // started at any time
  std::map<std::string, bool> uses_mine_;
};

// Locked (FileLock) by whoever changes choices or copies, or builds from them: one command after the other.
std::filesystem::path lock_of(const std::filesystem::path& root);

// The root of the checkout that a folder is in. Error: it is in none.
std::filesystem::path find_root(const std::filesystem::path& folder);

}  // namespace lab
