#include "step2_model/json_packed_ids.h"

#include <cstring>
#include <limits>

namespace ladder {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Reads "1, 2, 3]" from `position`. True: it is a list of ids, and `position` that of its bracket; else `position` is
// where no id stands, with no string and no bracket passed over.
bool read_ids(std::string_view text, size_t& position, std::vector<int32_t>& ids) {
  size_t at = position;
  const auto skip_spaces = [&] {
    while (at < text.size() && is_space(text[at])) ++at;
  };
  while (true) {
    skip_spaces();
    position = at;
    if (at == text.size() || !is_digit(text[at])) return false;
    const bool is_zero = text[at] == '0';
    int64_t id = 0;
    size_t num_digits = 0;
    for (; at < text.size() && is_digit(text[at]) && num_digits <= 10; ++at, ++num_digits)
      id = 10 * id + (text[at] - '0');
    if ((is_zero && num_digits > 1) || id > std::numeric_limits<int32_t>::max()) return false;
    skip_spaces();
    if (at == text.size() || (text[at] != ',' && text[at] != ']')) return false;
    ids.push_back(static_cast<int32_t>(id));
    position = at;
    if (text[at] == ']') return true;
    ++at;
  }
}

// The position behind the string that begins at `at`, or the text's end.
size_t behind_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

}  // namespace

TextWithoutIds cut_out_ids(std::string_view text) {
  TextWithoutIds found;
  std::vector<int32_t> ids;
  size_t num_arrays = 0, kept = 0;  // the text before `kept` is in `rest`, or was cut out
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = behind_string(text, at);
      continue;
    }
    if (text[at++] != '[') continue;
    const size_t begin = at, array = num_arrays++;
    ids.clear();
    if (!read_ids(text, at, ids) || ids.size() < kPackedFrom) continue;
    found.rest += text.substr(kept, begin - kept);
    kept = at;
    found.lists.push_back(
        {.array = array, .begin = found.rest.size(), .size = at - begin, .ids = std::move(ids)});
  }
  if (!found.lists.empty()) found.rest += text.substr(kept);
  return found;
}

size_t TextWithoutIds::position_in_text(size_t position) const {
  size_t whole = position;
  for (const List& list : lists)
    if (list.begin < position) whole += list.size;
  return whole;
}

std::optional<std::vector<int32_t>> packed_ids(const Json& value) {
  if (!value.is_binary()) return {};
  const std::vector<uint8_t>& bytes = value.get_binary();
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::memcpy(ids.data(), bytes.data(), bytes.size());
  return ids;
}

}  // namespace ladder
