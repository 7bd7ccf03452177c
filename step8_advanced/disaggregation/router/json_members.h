#pragma once
// The members of a JSON object where they stand in its text, so that some can be left out or added and all others go on byte
// for byte: numbers keep their digits, members their order, and a prompt of a megabyte is not made into a tree.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

struct JsonMember {
  std::string key;         // without escapes
  std::string_view whole;  // "key": value
  std::string_view value;
};

// None: the text is no JSON object. Of a value only its extent is looked at, not whether it is JSON.
std::optional<std::vector<JsonMember>> json_members(std::string_view text);

// The value of the last member of that key; empty: there is none.
std::string_view json_member(const std::vector<JsonMember>& members, std::string_view key);

// An object of the members but those of the keys `without`, and behind them `added` ("\"n\":1,\"stream\":false", or
// nothing).
std::string json_object(const std::vector<JsonMember>& members, const std::vector<std::string_view>& without,
                        std::string_view added);

}  // namespace ladder
