// Task 2.6.filters: str's ways to cut and join, on marked texts.
#include "step2_model/chat/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "step1_layers/core/task_not_implemented.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/text_search.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {

// >>> task 2.6.filters: strip, replace, split and change case, every character with its mark
Text strip(Budget& budget, const Text& text, const std::string* characters, bool left, bool right) {
  const std::string& bytes = text.bytes();
  std::set<uint32_t> set;
  for (size_t at = 0; characters != nullptr && at < characters->size();) {
    budget.step();
    const Utf8Char c = utf8_decode(characters->data() + at);
    set.insert(c.code_point);
    at += static_cast<size_t>(c.length);
  }
  const auto goes = [&](size_t at) {
    const uint32_t c = utf8_decode(bytes.data() + at).code_point;
    return characters == nullptr ? is_python_space(c) : set.contains(c);
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end && goes(begin))
    begin += static_cast<size_t>(utf8_decode(bytes.data() + begin).length);
  while (right && begin < end) {
    size_t last = end - 1;
    while ((bytes[last] & 0xc0) == 0x80) --last;
    if (!goes(last)) break;
    end = last;
  }
  budget.walk(bytes.size() - (end - begin));
  return text.slice(begin, end);
}

Text replace_all(Budget& budget, const Text& text, std::string_view old_part, const Text& new_part,
                 int64_t count) {
  TextBuilder result(budget);
  const std::string& bytes = text.bytes();
  budget.touch(bytes.size());
  size_t done = 0;
  if (old_part.empty()) {  // between all characters, and at both ends
    for (; count != 0; --count) {
      result.append(new_part);
      if (done == bytes.size()) return result.take();
      const auto length = static_cast<size_t>(utf8_decode(bytes.data() + done).length);
      result.append(text.slice(done, done + length));
      done += length;
    }
  }
  for (; count != 0 && !old_part.empty(); --count) {
    const size_t found = find_bytes(bytes, old_part, done);
    if (found == std::string::npos) break;
    result.append(text.slice(done, found));
    result.append(new_part);
    done = found + old_part.size();
  }
  result.append(text.slice(done, bytes.size()));
  return result.take();
}

// The pieces between separators, at most `most` cuts where that is not negative.
std::vector<Text> split_at(Budget& budget, const Text& text, std::string separator, int64_t most,
                           bool from_right) {
  if (separator.empty()) refuse("split: the separator is empty");
  // From the right is from the left in the reversed text.
  std::string bytes = text.bytes();
  if (from_right) {
    std::reverse(bytes.begin(), bytes.end());
    std::reverse(separator.begin(), separator.end());
  }
  budget.touch(bytes.size() + separator.size());
  std::vector<size_t> cuts;
  for (size_t at = 0; static_cast<int64_t>(cuts.size()) != most;) {
    const size_t found = find_bytes(bytes, separator, at);
    if (found == std::string::npos) break;
    budget.step();
    cuts.push_back(from_right ? bytes.size() - found - separator.size() : found);
    at = found + separator.size();
  }
  if (from_right) std::reverse(cuts.begin(), cuts.end());
  budget.require(cuts.size() * sizeof(Text));
  std::vector<Text> pieces;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    pieces.push_back(text.slice(begin, cut));
    begin = cut + separator.size();
  }
  pieces.push_back(text.slice(begin, bytes.size()));
  return pieces;
}

// The words between runs of white space. After `most` cuts the rest is one piece, with the white space inside of it and
// at the far end of the text.
std::vector<Text> split_words(Budget& budget, const Text& text, int64_t most, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<std::pair<size_t, size_t>> words;
  bool within = false;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = utf8_decode(bytes.data() + at);
    const bool is_space = is_python_space(c.code_point);
    if (!is_space && !within) words.emplace_back(at, at);
    within = !is_space;
    at += static_cast<size_t>(c.length);
    if (within) words.back().second = at;
  }
  budget.walk(bytes.size());
  budget.require(words.size() * sizeof(Text));
  if (const auto cuts = static_cast<size_t>(most); most >= 0 && words.size() > cuts) {
    if (from_right) {
      const size_t end = words[words.size() - cuts - 1].second;
      words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(cuts));
      words.insert(words.begin(), {0, end});
    } else {
      words[cuts].second = bytes.size();
      words.resize(cuts + 1);
    }
  }
  std::vector<Text> pieces;
  for (const auto& [begin, end] : words) pieces.push_back(text.slice(begin, end));
  return pieces;
}

std::vector<Text> split(Budget& budget, const Text& text, const std::string* separator, int64_t most,
                        bool from_right) {
  return separator != nullptr ? split_at(budget, text, *separator, most, from_right)
                              : split_words(budget, text, most, from_right);
}
// <<< task 2.6.filters

std::vector<Text> split_lines(Budget& budget, const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  const std::string& bytes = text.bytes();
  budget.walk(bytes.size());
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = utf8_decode(bytes.data() + at);
    size_t length = static_cast<size_t>(c.length);
    const bool ends = (c.code_point >= 0x0a && c.code_point <= 0x0d) ||
                      (c.code_point >= 0x1c && c.code_point <= 0x1e) || c.code_point == 0x85 ||
                      c.code_point == 0x2028 || c.code_point == 0x2029;
    if (ends) {
      if (c.code_point == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') length = 2;
      budget.step();
      budget.require((lines.size() + 1) * sizeof(Text));
      lines.push_back(text.slice(begin, keep_ends ? at + length : at));
      begin = at + length;
    }
    at += length;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

Text map_characters(Budget& budget, const Text& text,
                    const std::function<void(uint32_t, std::string&)>& map) {
  TextBuilder result(budget);
  budget.walk(text.size());
  text.for_each_stretch([&](std::string_view stretch, Origin origin) {
    std::string mapped;
    for (size_t at = 0; at < stretch.size();) {
      const Utf8Char c = utf8_decode(stretch.data() + at);
      map(c.code_point, mapped);
      at += static_cast<size_t>(c.length);
    }
    result.append(mapped, origin);
  });
  return result.take();
}

void append_upper(uint32_t code_point, std::string& out) {
  if (code_point == 0xdf) {
    out += "SS";
  } else {
    utf8_append(out, static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point))));
  }
}

void append_lower(uint32_t code_point, std::string& out) {
  utf8_append(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

bool is_cased(uint32_t code_point) {
  const auto c = static_cast<utf8proc_int32_t>(code_point);
  return utf8proc_toupper(c) != c || utf8proc_tolower(c) != c || code_point == 0xdf;
}

Text upper(Budget& budget, const Text& text) {
  return map_characters(budget, text, append_upper);
}
Text lower(Budget& budget, const Text& text) {
  return map_characters(budget, text, append_lower);
}

namespace {

void append_title(uint32_t code_point, std::string& out) {
  if (code_point == 0xdf) {
    out += "Ss";
  } else {
    utf8_append(out, static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code_point))));
  }
}

}  // namespace

Text capitalize(Budget& budget, const Text& text) {
  bool first = true;
  return map_characters(budget, text, [&](uint32_t c, std::string& out) {
    std::exchange(first, false) ? append_title(c, out) : append_lower(c, out);
  });
}

Text title(Budget& budget, const Text& text) {
  bool within = false;
  return map_characters(budget, text, [&](uint32_t c, std::string& out) {
    within ? append_lower(c, out) : append_title(c, out);
    within = is_cased(c);
  });
}

Text escape_html(Budget& budget, const Text& text) {
  return map_characters(budget, text, [](uint32_t c, std::string& out) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&#34;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      utf8_append(out, c);
    }
  });
}

Value without_case(Interpreter& interpreter, const Value& value) {
  const String* string = value.string();
  return string == nullptr ? value : interpreter.text(lower(interpreter.budget(), string->text));
}

std::optional<int64_t> parse_integer(Budget& budget, std::string_view text, int base) {
  budget.walk(text.size());
  std::string digits = strip(budget, Text(text, Origin::trusted), nullptr, true, true).bytes();
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const auto prefix = [&](std::string_view a, std::string_view b, int of) {
    if (base == of && (digits.starts_with(a) || digits.starts_with(b))) digits.erase(0, 2);
  };
  prefix("0x", "0X", 16);
  prefix("0o", "0O", 8);
  prefix("0b", "0B", 2);
  for (size_t i = 0; i < digits.size(); ++i)
    if (digits[i] == '_' && (i == 0 || i + 1 == digits.size() || digits[i + 1] == '_')) return std::nullopt;
  std::erase(digits, '_');
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  if (negative) digits.insert(0, "-");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error == std::errc::result_out_of_range) refuse("an integer needs more than 64 bits");
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_float(Budget& budget, std::string_view text) {
  budget.walk(text.size());
  std::string digits = strip(budget, Text(text, Origin::trusted), nullptr, true, true).bytes();
  for (char& c : digits) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits == "infinity") digits = "inf";
  if (digits.empty() || digits[0] == '-' || digits.find('(') != std::string::npos) return std::nullopt;
  for (size_t i = 0; i < digits.size(); ++i)
    if (digits[i] == '_' && (i == 0 || i + 1 == digits.size() || digits[i - 1] < '0' || digits[i - 1] > '9' ||
                             digits[i + 1] < '0' || digits[i + 1] > '9'))
      return std::nullopt;
  std::erase(digits, '_');
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return negative ? -value : value;
}

}  // namespace ladder::jinja
