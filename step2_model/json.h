#pragma once
// Reading JSON that cannot be trusted: config.json, tokenizer.json, an index of shards, a request.
//
// nlohmann-json parses; what it lets through, and what would hurt later, is refused here: nesting deep enough
// to overflow the stack of a function that walks the tree, the same key twice (it would silently keep one), and
// numbers that convert to something they are not (1e3, 2.0, -1 and 2^64 read as unsigned integers). Every
// error is one line, starts with `what` (a file name, or a file name and a field) and says what was expected.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ladder {

using Json = nlohmann::json;
// With the members of an object in the order in which they were written: for what is written again, such as the
// definition of a tool in a prompt.
using OrderedJson = nlohmann::ordered_json;

// Throws Error with line (where there are several) and column on malformed text (invalid UTF-8 included), on
// a key that occurs twice in one object, and on more than max_depth objects and arrays within each other.
Json parse_json(std::string_view text, std::string_view what, int max_depth = 64);
OrderedJson parse_ordered_json(std::string_view text, std::string_view what, int max_depth = 64);

// The file as it is; Error where it is missing, is no regular file, cannot be read, or is larger than
// max_bytes.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 30);

// parse_json of a file; `what` is the file's name.
Json load_json(const std::filesystem::path& path, int max_depth = 64);

// The member of an object: json_find gives nullptr where it is absent or null, json_at throws there. Both
// throw where `object` is no object.
const Json* json_find(const Json& object, const std::string& key, std::string_view what);
const Json& json_at(const Json& object, const std::string& key, std::string_view what);

// The value as that type and nothing near it: an integer is written without fraction and exponent and lies in
// [min, max]; a number is finite; a string is a string.
int64_t json_int(const Json& value, std::string_view what, int64_t min = std::numeric_limits<int64_t>::min(),
                 int64_t max = std::numeric_limits<int64_t>::max());
double json_number(const Json& value, std::string_view what);
bool json_bool(const Json& value, std::string_view what);
const std::string& json_string(const Json& value, std::string_view what);

// How an error message shows a value: as JSON, shortened to some 60 characters.
std::string json_brief(const Json& value);

}  // namespace ladder
