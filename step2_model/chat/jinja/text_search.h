#pragma once
// Finding bytes in bytes, in linear time whatever they are: a template and its input may be made to be slow.
#include <cstring>
#include <string>
#include <string_view>

namespace ladder::jinja {

// The first place at or after `from`, or npos.
inline size_t find_bytes(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

// The last place where `part`, which is not empty, stands; occurrences may overlap.
inline size_t find_last_bytes(std::string_view text, std::string_view part) {
  std::string reversed_text(text.rbegin(), text.rend()), reversed_part(part.rbegin(), part.rend());
  const size_t found = find_bytes(reversed_text, reversed_part, 0);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

}  // namespace ladder::jinja
