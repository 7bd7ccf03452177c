#pragma once
// What stop strings do to a text, by their definition, without a stream.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace ladder::testing {

struct CutText {
  std::string text;
  bool matched;
  bool operator==(const CutText&) const = default;
};

// The match that ends first, but not before `begin`; of several the longest.
inline CutText cut_at_stop(const std::string& text, const std::vector<std::string>& stops, size_t begin = 0) {
  for (size_t end = begin + 1; end <= text.size(); ++end) {
    std::optional<size_t> longest;
    for (const std::string& stop : stops)
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest.value_or(0), stop.size());
    if (longest) return {text.substr(0, end - *longest), true};
  }
  return {text, false};
}

}  // namespace ladder::testing
