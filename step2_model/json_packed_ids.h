#pragma once
// JSON with long lists of token ids. As a Json each id takes 16 bytes, and a list of them three times as long to make and
// destroy as to read: a prompt of 200,000 ids stands in a body of a megabyte.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "step2_model/json.h"

namespace ladder {

// A list of at least that many is packed.
inline constexpr size_t kPackedFrom = 256;

// As parse_json(), but an array of at least kPackedFrom integers, all of them in [0, 2^31), becomes a value of
// nlohmann's binary type, which no text parses to. json_brief() shows it as the array that it was.
Json parse_json_with_packed_ids(std::string_view text, std::string_view what, int max_depth = 64);

// None: the value is no packed list.
std::optional<std::vector<int32_t>> packed_ids(const Json& value);

}  // namespace ladder
