#include "step6_engine/text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 6.2: hold back what may become a stop string, in time linear in the text
StopStrings::StopStrings(std::vector<std::string> stops, bool include_in_text)
    : include_in_text_(include_in_text) {
  for (std::string& text : stops) {
    Stop stop{std::move(text), {}, 0};
    stop.fallback.resize(stop.text.size() + 1, 0);
    for (size_t i = 1, border = 0; i < stop.text.size(); ++i) {
      while (border > 0 && stop.text[i] != stop.text[border])
        border = static_cast<size_t>(stop.fallback[border]);
      if (stop.text[i] == stop.text[border]) ++border;
      stop.fallback[i + 1] = static_cast<int32_t>(border);
    }
    stops_.push_back(std::move(stop));
  }
}

std::string StopStrings::append(std::string_view piece, bool may_match) {
  if (matched()) return {};
  for (char c : piece) {
    held_ += c;
    size_t longest_match = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      auto length = static_cast<size_t>(stop.length_matched);
      while (length > 0 && stop.text[length] != c) length = static_cast<size_t>(stop.fallback[length]);
      if (stop.text[length] == c) ++length;
      if (length == stop.text.size() && may_match && length > longest_match) {
        longest_match = length;
        matched_ = static_cast<int64_t>(i);
      }
      // A match that does not count may be the beginning of one that does.
      if (length == stop.text.size()) length = static_cast<size_t>(stop.fallback[length]);
      stop.length_matched = static_cast<int32_t>(length);
    }
    if (longest_match > 0) {
      if (!include_in_text_) held_.resize(held_.size() - longest_match);
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, static_cast<size_t>(stop.length_matched));
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}
// <<< task 6.2

}  // namespace ladder
