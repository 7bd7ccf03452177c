#pragma once
// What Python's str can do, on texts that keep their marks. Filters and methods share these.
#include <functional>
#include <optional>

#include "step2_model/chat/jinja/value.h"

namespace ladder::jinja {

// str.strip(characters): all characters of the set go from the ends; without a set, Python's white space.
Text strip(Budget& budget, const Text& text, const std::string* characters, bool left, bool right);
// str.replace(old, new, count); a count below 0 means all.
Text replace_all(Budget& budget, const Text& text, std::string_view old_part, const Text& new_part,
                 int64_t count = -1);
// str.split(separator, most) and, from the right, str.rsplit; without a separator at runs of white space.
std::vector<Text> split(Budget& budget, const Text& text, const std::string* separator, int64_t most,
                        bool from_right);
std::vector<Text> split_lines(Budget& budget, const Text& text, bool keep_ends);

// Every character through `map`, which may give several; the marks stay.
Text map_characters(Budget& budget, const Text& text, const std::function<void(uint32_t, std::string&)>& map);
// Upper and lower case by Unicode's simple mappings, and ß to SS.
void append_upper(uint32_t code_point, std::string& out);
void append_lower(uint32_t code_point, std::string& out);
bool is_cased(uint32_t code_point);
Text upper(Budget& budget, const Text& text);
Text lower(Budget& budget, const Text& text);
Text capitalize(Budget& budget, const Text& text);
// str.title(): a letter after what is no letter is upper case.
Text title(Budget& budget, const Text& text);
// For HTML: & < > " and ' as entities.
Text escape_html(Budget& budget, const Text& text);
// The lower case of a value that is a text: what Jinja sorts and compares by.
Value without_case(Interpreter& interpreter, const Value& value);

// int(text) and float(text); nothing where it is no number.
std::optional<int64_t> parse_integer(Budget& budget, std::string_view text, int base);
std::optional<double> parse_float(Budget& budget, std::string_view text);

}  // namespace ladder::jinja
