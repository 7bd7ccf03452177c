#pragma once
// Whether any of the reference is still to be found where it was taken out.
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lab {

// The lines of removed function bodies, without indentation. A line counts where it has at least 20 bytes: shorter
// ones (`return true;`) stand everywhere.
class RemovedLines {
 public:
  // What `text` has and `stub` has not.
  void add(std::string_view text, std::string_view stub);
  // `code` is given to students whatever is cut: its lines tell nothing from now on, unless six of them in a row
  // are six of a removed body in a row. Returns the first of such six; "": none.
  std::string give(std::string_view code);
  // The first of these lines that stands anywhere in a text, as it is or as JSON writes it; "": none.
  std::string find_in(std::string_view text) const;

  bool empty() const { return by_start_.empty(); }

 private:
  std::vector<std::string> all_in(std::string_view text, bool only_first) const;

  std::unordered_map<std::string, std::set<std::string>> by_start_;  // by their first bytes
  std::set<std::string> runs_;                                       // six lines each
};

}  // namespace lab
