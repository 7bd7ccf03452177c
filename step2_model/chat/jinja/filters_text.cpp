// Filters that give a text or a number.
#include <array>
#include <cmath>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/filters.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/methods.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/python_text.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {

int64_t integer_argument(const Value* value, std::string_view who, int64_t otherwise) {
  if (value == nullptr) return otherwise;
  if (!value->is_integer()) refuse("{}: expected an int, found a {}", who, value->type_name());
  return value->integer();
}

const String& string_argument(const Value* value, std::string_view who) {
  if (value->string() == nullptr) refuse("{}: expected a str, found a {}", who, value->type_name());
  return *value->string();
}

bool flag_argument(const Value* value, bool otherwise) {
  return value == nullptr ? otherwise : is_true(*value);
}

namespace {

// Filters of texts take any value, as its text.
template <Text (*function)(Budget&, const Text&)>
Value mapped(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "the filter");
  return in.text(function(in.budget(), print(in, subject)));
}

// Jinja's title: words begin after white space and after - ( { [ <.
Text title_filter(Budget& budget, const Text& text) {
  bool first = true;
  return map_characters(budget, text, [&](uint32_t c, std::string& out) {
    const bool separates = is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (first && !separates) {
      append_upper(c, out);
    } else {
      append_lower(c, out);
    }
    first = separates;
  });
}

Value trim(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [characters] = bind<1>(given, "trim", {"chars"});
  const bool has_set = characters != nullptr && !characters->is_none();
  return in.text(strip(in.budget(), print(in, subject),
                       has_set ? &string_argument(characters, "trim").text.bytes() : nullptr, true, true));
}

Value replace(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [old_part, new_part, count] = bind<3>(given, "replace", {"old", "new", "count"}, 2);
  const int64_t most = count == nullptr || count->is_none() ? -1 : integer_argument(count, "replace", -1);
  return in.text(replace_all(in.budget(), print(in, subject), print(in, *old_part).bytes(),
                             print(in, *new_part), std::max<int64_t>(most, -1)));
}

// Lines after the first begin with the indent; empty ones do not unless `blank`.
Value indent(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [width, first, blank] = bind<3>(given, "indent", {"width", "first", "blank"});
  Text by;
  if (width != nullptr && width->string() != nullptr) {
    by = print(in, *width);
  } else {
    const auto spaces = static_cast<size_t>(std::max<int64_t>(integer_argument(width, "indent", 4), 0));
    in.budget().require(spaces);
    in.budget().touch(spaces);
    by = Text(std::string(spaces, ' '), Origin::trusted);
  }
  string_argument(&subject, "indent");
  Text text = print(in, subject);
  text.append("\n", Origin::trusted);  // as Jinja does, so that a last line break keeps its line
  TextBuilder out(in.budget());
  if (flag_argument(first, false)) out.append(by);
  bool is_first = true;
  for (const Text& line : split_lines(in.budget(), text, false)) {
    if (!std::exchange(is_first, false)) {
      out.append("\n");
      if (!line.empty() || flag_argument(blank, false)) out.append(by);
    }
    out.append(line);
  }
  return in.text(out.take());
}

Value center(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [width] = bind<1>(given, "center", {"width"});
  return call_method(in, in.text(print(in, subject)), "center",
                     {{Value::of(integer_argument(width, "center", 80))}, {}});
}

Value escape(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "escape");
  if (subject.string() != nullptr && subject.string()->markup) return subject;
  return in.text(escape_html(in.budget(), print(in, subject)), true);
}

Value string(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "string");
  return in.text(print(in, subject));
}

Value format(Interpreter& in, const Value& subject, const Arguments& given) {
  if (!given.named.empty()) refuse("format with named arguments is not supported");
  return format_percent(in, print(in, subject), given.positional);
}

Value wordcount(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "wordcount");
  int64_t words = 0;
  bool within = false;
  const Text text = print(in, subject);
  in.budget().walk(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_decode(text.bytes().data() + at);
    const bool is_word = c.code_point == '_' || (unicode_classes(c.code_point) & (kLetter | kNumber)) != 0;
    words += is_word && !within;
    within = is_word;
    at += static_cast<size_t>(c.length);
  }
  return Value::of(words);
}

Value to_integer(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [otherwise, base] = bind<2>(given, "int", {"default", "base"});
  const Value none = otherwise == nullptr ? Value::of(int64_t{0}) : *otherwise;
  if (subject.is_undefined()) refuse("'{}' is undefined", subject.undefined_name());
  if (subject.is_integer()) return Value::of(subject.integer());
  std::optional<double> number;
  if (const String* text = subject.string()) {
    const int64_t digits = integer_argument(base, "int", 10);
    if (digits < 2 || digits > 36) refuse("int: the base lies between 2 and 36");
    if (const auto value = parse_integer(in.budget(), text->text.bytes(), static_cast<int>(digits)))
      return Value::of(*value);
    number = parse_float(in.budget(), text->text.bytes());
  } else if (subject.is<double>()) {
    number = subject.number();
  }
  if (!number || !std::isfinite(*number)) return none;
  if (std::abs(*number) >= 9.2e18) refuse("an integer needs more than 64 bits");
  return Value::of(static_cast<int64_t>(*number));
}

Value to_float(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [otherwise] = bind<1>(given, "float", {"default"});
  if (subject.is_undefined()) refuse("'{}' is undefined", subject.undefined_name());
  if (subject.is_number()) return Value::of(subject.number());
  const String* text = subject.string();
  const auto number = text == nullptr ? std::nullopt : parse_float(in.budget(), text->text.bytes());
  return number ? Value::of(*number) : otherwise == nullptr ? Value::of(0.0) : *otherwise;
}

Value abs_filter(Interpreter&, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "abs");
  if (subject.is_integer() && subject.integer() != INT64_MIN) return Value::of(std::abs(subject.integer()));
  if (!subject.is<double>()) refuse("abs: expected a number, found a {}", subject.type_name());
  return Value::of(std::abs(subject.number()));
}

// Rounds the decimal digits of a number as Python does: half of the last digit goes by its exact value.
Value round_filter(Interpreter&, const Value& subject, const Arguments& given) {
  const auto [precision, method] = bind<2>(given, "round", {"precision", "method"});
  const int64_t digits = integer_argument(precision, "round", 0);
  const std::string how = method == nullptr ? "common" : string_argument(method, "round").text.bytes();
  if (!subject.is_number()) refuse("round: expected a number, found a {}", subject.type_name());
  if (digits < -300 || digits > 300) refuse("round: the precision lies between -300 and 300");
  const double value = subject.number();
  if (how == "common") {
    if (subject.is_integer() && digits >= 0) return Value::of(subject.integer());
    if (!std::isfinite(value)) return Value::of(value);
    if (digits < 0) {
      const double unit = std::pow(10.0, static_cast<double>(-digits));
      const double rounded = std::nearbyint(value / unit) * unit;
      if (subject.is_integer() && !(std::abs(rounded) < 9.2e18)) refuse("an integer needs more than 64 bits");
      return subject.is_integer() ? Value::of(static_cast<int64_t>(rounded)) : Value::of(rounded);
    }
    return Value::of(std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr));
  }
  if (how != "ceil" && how != "floor")
    refuse("round: the method is common, ceil or floor, found \"{}\"", how);
  const double unit = std::pow(10.0, static_cast<double>(digits));
  return Value::of((how == "ceil" ? std::ceil(value * unit) : std::floor(value * unit)) / unit);
}

Value tojson(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [ascii, indents, separators, sort_keys] =
      bind<4>(given, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag_argument(ascii, false);
  style.sort_keys = flag_argument(sort_keys, false);
  if (indents != nullptr && !indents->is_none()) {
    style.indents = true;
    if (const String* text = indents->string()) {
      in.budget().touch(text->text.size());
      style.indent = text->text.bytes();
      style.origin = text->text.least_origin();
    } else {
      const int64_t width = std::max<int64_t>(integer_argument(indents, "tojson", 0), 0);
      if (width > 1000) refuse("tojson: the indent is at most 1000, found {}", width);
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (separators != nullptr && !separators->is_none()) {
    const std::shared_ptr<List> pair = in.iterate(*separators);
    if (pair->items.size() != 2) refuse("tojson: expected two separators, found {}", pair->items.size());
    for (const Value& separator : pair->items) {
      const Text& text = string_argument(&separator, "tojson").text;
      in.budget().touch(text.size());
      if (text.least_origin() == Origin::outside) style.origin = Origin::outside;
    }
    style.item_separator = pair->items[0].string()->text.bytes();
    style.key_separator = pair->items[1].string()->text.bytes();
  }
  return in.text(to_json(in, subject, style));
}

Value safe(Interpreter& in, const Value& subject, const Arguments& given) {
  expect_no_arguments(given, "safe");
  return in.text(print(in, subject), true);
}

Value default_filter(Interpreter& in, const Value& subject, const Arguments& given) {
  const auto [otherwise, boolean] = bind<2>(given, "default", {"default_value", "boolean"});
  const bool missing = subject.is_undefined() || (flag_argument(boolean, false) && !is_true(subject));
  if (!missing) return subject;
  return otherwise == nullptr ? in.text("") : *otherwise;
}

constexpr FilterEntry kFilters[] = {
    {"abs", abs_filter},
    {"capitalize", mapped<capitalize>},
    {"center", center},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape},
    {"escape", escape},
    {"float", to_float},
    {"format", format},
    {"indent", indent},
    {"int", to_integer},
    {"lower", mapped<lower>},
    {"replace", replace},
    {"round", round_filter},
    {"safe", safe},
    {"string", string},
    {"title", mapped<title_filter>},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", mapped<upper>},
    {"wordcount", wordcount},
};

}  // namespace

const FilterEntry* find_text_filter(std::string_view name) {
  for (const FilterEntry& filter : kFilters)
    if (filter.name == name) return &filter;
  return nullptr;
}

const FilterEntry* find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_list_filter, find_selection_filter})
    if (const FilterEntry* filter = find(name)) return filter;
  return nullptr;
}

}  // namespace ladder::jinja
