// Task 2.6.marks: texts that remember where their characters come from.
#include "step2_model/chat/jinja/text.h"

#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {

// >>> task 2.6.marks: append, slice and look up with the mark of every character, and count code points
Origin Text::origin_at(size_t at) const {
  const auto turns = std::upper_bound(turns_.begin(), turns_.end(), at) - turns_.begin();
  return turns % 2 == 0 ? first_ : flipped(first_);
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_ = origin;
  } else if (last() != origin) {
    turns_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::append(const Text& other) {
  if (&other == this) {
    const Text copy = other;
    append(copy);
    return;
  }
  other.for_each_stretch([this](std::string_view bytes, Origin origin) { append(bytes, origin); });
}

Text Text::slice(size_t begin, size_t end) const {
  Text result;
  if (begin >= end) return result;
  result.bytes_.assign(bytes_, begin, end - begin);
  result.first_ = origin_at(begin);
  // A turn at `begin` itself is what first_ says; one at `end` lies outside.
  const auto from = std::upper_bound(turns_.begin(), turns_.end(), begin);
  const auto to = std::lower_bound(from, turns_.end(), end);
  for (auto turn = from; turn != to; ++turn) result.turns_.push_back(*turn - begin);
  return result;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += (byte & 0xc0) != 0x80;
  return count;
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) {
    ++at;
    while (at < text.size() && (text[at] & 0xc0) == 0x80) ++at;
  }
  return at;
}
// <<< task 2.6.marks

bool is_python_space(unsigned code_point) {
  return (unicode_classes(code_point) & kSpace) != 0 || (code_point >= 0x1c && code_point <= 0x1f);
}

}  // namespace ladder::jinja
