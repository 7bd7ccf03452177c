#pragma once
// JSON with long lists of token ids: a prompt of 200,000 ids stands in a body of a megabyte. As a Json each id takes 16
// bytes, and nlohmann's parser some 9 ns for each of its characters; so such lists are read by a loop of their own, and
// the parser sees the text without them.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/json.h"

namespace ladder {

// A list of at least that many is packed.
inline constexpr size_t kPackedFrom = 256;

// As parse_json(), but an array of at least kPackedFrom integers, all of them in [0, 2^31), becomes a value of
// nlohmann's binary type, which no text parses to. json_brief() shows it as the array that it was.
Json parse_json_with_packed_ids(std::string_view text, std::string_view what, int max_depth = 64);

// A text of JSON, and its lists to pack.
struct TextWithoutIds {
  struct List {
    size_t array;  // it is the array that this '[' begins: of all outside of strings, from 0
    size_t begin;  // of what was cut out, in `rest`: between its brackets
    size_t size;   // of what was cut out
    std::vector<int32_t> ids;
  };
  std::string rest;  // each list is "[]" in it; of use if there are lists
  std::vector<List> lists;
  // Where the character `position` of `rest` stands in the whole text.
  size_t position_in_text(size_t position) const;
};
// Whether the rest is valid JSON it does not ask: what it cuts out are whole arrays, so that the rest is as valid as the
// text, and wrong at the same place.
TextWithoutIds cut_out_ids(std::string_view text);

// None: the value is no packed list.
std::optional<std::vector<int32_t>> packed_ids(const Json& value);

}  // namespace ladder
