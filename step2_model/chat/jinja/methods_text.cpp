// The methods of Python's str that templates call.
#include <algorithm>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/methods.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/python_text.h"
#include "step2_model/chat/jinja/text_search.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {
namespace {

const Text& text_of(const Value& value) {
  return value.string()->text;
}

template <Text (*function)(Budget&, const Text&)>
Value mapped(Interpreter& in, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "the method");
  return in.text(function(in.budget(), text_of(self)));
}

template <bool left, bool right>
Value strip_method(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [characters] = bind<1>(given, "strip", {"chars"});
  const bool has_set = characters != nullptr && !characters->is_none();
  return in.text(strip(in.budget(), text_of(self),
                       has_set ? &string_argument(characters, "strip").text.bytes() : nullptr, left, right));
}

template <bool from_right>
Value split_method(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [separator, most] = bind<2>(given, "split", {"sep", "maxsplit"});
  const bool has_separator = separator != nullptr && !separator->is_none();
  std::vector<Value> pieces;
  for (Text& piece : split(in.budget(), text_of(self),
                           has_separator ? &string_argument(separator, "split").text.bytes() : nullptr,
                           integer_argument(most, "split", -1), from_right))
    pieces.push_back(in.text(std::move(piece)));
  return in.list(std::move(pieces));
}

Value split_lines_method(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [keep_ends] = bind<1>(given, "splitlines", {"keepends"});
  std::vector<Value> lines;
  for (Text& line : split_lines(in.budget(), text_of(self), flag_argument(keep_ends, false)))
    lines.push_back(in.text(std::move(line)));
  return in.list(std::move(lines));
}

template <bool from_right>
Value partition(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [separator] = bind<1>(given, "partition", {"sep"}, 1);
  const String& by = string_argument(separator, "partition");
  std::vector<Text> pieces = split(in.budget(), text_of(self), &by.text.bytes(), 1, from_right);
  const Value nothing = in.text("");
  if (pieces.size() == 1 && from_right) return in.list({nothing, nothing, self}, Sequence::tuple);
  if (pieces.size() == 1) return in.list({self, nothing, nothing}, Sequence::tuple);
  return in.list({in.text(pieces[0]), *separator, in.text(pieces[1])}, Sequence::tuple);
}

// Begin and end of [start, end) in bytes; nothing where start lies behind the text.
std::optional<std::pair<size_t, size_t>> range_of(Interpreter& in, const Value& self, const Value* start,
                                                  const Value* end) {
  const auto length = static_cast<int64_t>(self.string()->length);
  const auto place = [&](const Value* value, int64_t otherwise) {
    if (value == nullptr || value->is_none()) return otherwise;
    const int64_t at = integer_argument(value, "a method of str", 0);
    return std::max<int64_t>(at < 0 ? at + length : at, 0);
  };
  const int64_t from = place(start, 0), to = std::min(place(end, length), length);
  if (from > to) return std::nullopt;
  const std::string& bytes = text_of(self).bytes();
  const auto offset = [&](int64_t at) {
    if (at == length) return bytes.size();
    if (at == 0 || self.string()->is_ascii()) return static_cast<size_t>(at);
    in.budget().walk(bytes.size());
    return code_point_offset(bytes, static_cast<size_t>(at));
  };
  return std::pair(offset(from), offset(to));
}

template <bool at_end>
Value starts_with(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [parts, start, end] =
      bind<3>(given, at_end ? "endswith" : "startswith", {"prefix", "start", "end"}, 1);
  const auto range = range_of(in, self, start, end);
  const auto holds = [&](const Value& part) {
    const std::string& bytes = string_argument(&part, "startswith and endswith").text.bytes();
    if (!range) return false;
    const std::string_view text =
        std::string_view(text_of(self).bytes()).substr(range->first, range->second - range->first);
    in.budget().touch(bytes.size());
    return at_end ? text.ends_with(bytes) : text.starts_with(bytes);
  };
  if (parts->list() == nullptr || parts->list()->kind != Sequence::tuple) return Value::of(holds(*parts));
  const std::vector<Value>& list = parts->list()->items;
  return Value::of(std::any_of(list.begin(), list.end(), holds));
}

// find, rfind, index and rindex: the place in code points, or -1 or a refusal.
template <bool from_right, bool must_be_there>
Value find_method(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [part, start, end] = bind<3>(given, "find", {"sub", "start", "end"}, 1);
  const std::string& sought = string_argument(part, "find").text.bytes();
  const auto range = range_of(in, self, start, end);
  const std::string& bytes = text_of(self).bytes();
  in.budget().touch(2 * bytes.size() + sought.size());
  size_t found = std::string::npos;
  if (range) {
    const std::string_view text = std::string_view(bytes).substr(range->first, range->second - range->first);
    found = !from_right      ? find_bytes(text, sought, 0)
            : sought.empty() ? text.size()
                             : find_last_bytes(text, sought);
  }
  if (found == std::string::npos) {
    if (must_be_there) refuse("index: the text is not found");
    return Value::of(int64_t{-1});
  }
  return Value::of(
      static_cast<int64_t>(count_code_points(std::string_view(bytes).substr(0, range->first + found))));
}

Value count(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [part, start, end] = bind<3>(given, "count", {"sub", "start", "end"}, 1);
  const std::string& sought = string_argument(part, "count").text.bytes();
  const auto range = range_of(in, self, start, end);
  if (!range) return Value::of(int64_t{0});
  const std::string_view text =
      std::string_view(text_of(self).bytes()).substr(range->first, range->second - range->first);
  in.budget().touch(text.size());
  if (sought.empty()) return Value::of(static_cast<int64_t>(count_code_points(text)) + 1);
  int64_t number = 0;
  for (size_t at = 0; (at = find_bytes(text, sought, at)) != std::string_view::npos; at += sought.size())
    ++number;
  in.budget().step(number);
  return Value::of(number);
}

Value replace(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [old_part, new_part, most] = bind<3>(given, "replace", {"old", "new", "count"}, 2);
  return in.text(replace_all(in.budget(), text_of(self), string_argument(old_part, "replace").text.bytes(),
                             string_argument(new_part, "replace").text,
                             std::max<int64_t>(integer_argument(most, "replace", -1), -1)));
}

Value join(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [parts] = bind<1>(given, "join", {"iterable"}, 1);
  TextBuilder joined(in.budget());
  bool first = true;
  if (parts->is_undefined()) return in.text("");
  for (const auto elements = in.iterate(*parts); const Value& part : elements->items) {
    if (!std::exchange(first, false)) joined.append(text_of(self));
    joined.append(string_argument(&part, "join").text);
  }
  return in.text(joined.take());
}

template <bool at_end>
Value remove_affix(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [affix] = bind<1>(given, at_end ? "removesuffix" : "removeprefix", {"affix"}, 1);
  const std::string &part = string_argument(affix, "removeprefix").text.bytes(),
                    &bytes = text_of(self).bytes();
  in.budget().touch(part.size());
  if (part.empty() || !(at_end ? bytes.ends_with(part) : bytes.starts_with(part))) return self;
  return in.text(at_end ? text_of(self).slice(0, bytes.size() - part.size())
                        : text_of(self).slice(part.size(), bytes.size()));
}

// How many characters are missing to this width.
int64_t missing_to(const Value& text, int64_t width) {
  return std::max(width, static_cast<int64_t>(text.string()->length)) -
         static_cast<int64_t>(text.string()->length);
}

// Padding to a width: -1 left-justifies, 1 right-justifies, 0 centers.
template <int side>
Value justify(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [width, fill] = bind<2>(given, "ljust, rjust and center", {"width", "fillchar"}, 1);
  const int64_t missing = missing_to(self, integer_argument(width, "ljust", 0));
  if (fill != nullptr && string_argument(fill, "ljust").length != 1)
    refuse("a fill character is one character");
  if (missing == 0) return self;
  in.budget().require(static_cast<size_t>(missing));
  // As CPython centers: the odd one goes left where the width is odd.
  const int64_t left = side < 0   ? 0
                       : side > 0 ? missing
                                  : missing / 2 + (missing & integer_argument(width, "", 0) & 1);
  TextBuilder out(in.budget());
  const Text by = fill == nullptr ? Text(" ", Origin::trusted) : text_of(*fill);
  for (int64_t i = 0; i < left; ++i) out.append(by);
  out.append(text_of(self));
  for (int64_t i = left; i < missing; ++i) out.append(by);
  return in.text(out.take());
}

Value zfill(Interpreter& in, const Value& self, const Arguments& given) {
  const auto [width] = bind<1>(given, "zfill", {"width"}, 1);
  const Text& text = text_of(self);
  const int64_t missing = missing_to(self, integer_argument(width, "zfill", 0));
  in.budget().require(static_cast<size_t>(missing));
  const size_t sign = text.bytes().starts_with('-') || text.bytes().starts_with('+') ? 1 : 0;
  TextBuilder out(in.budget());
  out.append(text.slice(0, sign));
  for (int64_t i = 0; i < missing; ++i) out.append("0");
  out.append(text.slice(sign, text.size()));
  return in.text(out.take());
}

Value format(Interpreter& in, const Value& self, const Arguments& given) {
  return format_braces(in, text_of(self), given);
}

bool is_upper_letter(uint32_t c) {
  return is_cased(c) && [&] {
    std::string s, o;
    append_lower(c, s);
    utf8_append(o, c);
    return s != o;
  }();
}
bool is_lower_letter(uint32_t c) {
  return is_cased(c) && !is_upper_letter(c);
}
bool is_letter(uint32_t c) {
  return (unicode_classes(c) & kLetter) != 0;
}
bool is_digit(uint32_t c) {
  return c < 0x80 ? c >= '0' && c <= '9' : (unicode_classes(c) & kNumber) != 0;
}
bool is_letter_or_digit(uint32_t c) {
  return is_letter(c) || is_digit(c);
}
bool is_space(uint32_t c) {
  return is_python_space(c);
}

// Whether the text is not empty and all its characters are of the class.
template <bool (*belongs)(uint32_t)>
Value all_are(Interpreter& in, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "the method");
  const std::string& bytes = text_of(self).bytes();
  in.budget().walk(bytes.size());
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(utf8_decode(bytes.data() + at).length))
    if (!belongs(utf8_decode(bytes.data() + at).code_point)) return Value::of(false);
  return Value::of(!bytes.empty());
}

// isupper, islower: one letter has this case and none has the other.
template <bool (*wanted)(uint32_t), bool (*unwanted)(uint32_t)>
Value has_case(Interpreter& in, const Value& self, const Arguments& given) {
  expect_no_arguments(given, "the method");
  const std::string& bytes = text_of(self).bytes();
  in.budget().walk(bytes.size());
  bool any = false;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(utf8_decode(bytes.data() + at).length)) {
    const uint32_t c = utf8_decode(bytes.data() + at).code_point;
    if (unwanted(c)) return Value::of(false);
    any = any || wanted(c);
  }
  return Value::of(any);
}

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", mapped<capitalize>},
    {"casefold", mapped<lower>},
    {"center", justify<0>},
    {"count", count},
    {"endswith", starts_with<true>},
    {"find", find_method<false, false>},
    {"format", format},
    {"index", find_method<false, true>},
    {"isalnum", all_are<is_letter_or_digit>},
    {"isalpha", all_are<is_letter>},
    {"isdecimal", all_are<is_digit>},
    {"isdigit", all_are<is_digit>},
    {"islower", has_case<is_lower_letter, is_upper_letter>},
    {"isnumeric", all_are<is_digit>},
    {"isspace", all_are<is_space>},
    {"isupper", has_case<is_upper_letter, is_lower_letter>},
    {"join", join},
    {"ljust", justify<-1>},
    {"lower", mapped<lower>},
    {"lstrip", strip_method<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace},
    {"rfind", find_method<true, false>},
    {"rindex", find_method<true, true>},
    {"rjust", justify<1>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", split_lines_method},
    {"startswith", starts_with<false>},
    {"strip", strip_method<true, true>},
    {"title", mapped<title>},
    {"upper", mapped<upper>},
    {"zfill", zfill},
};

}  // namespace

Method find_text_method(std::string_view name) {
  return method_named(kTextMethods, name);
}

}  // namespace ladder::jinja
