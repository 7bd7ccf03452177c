// Python's two ways to put values into a text: "%s" % value and "{}".format(value).
#include <cmath>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/chat/jinja/python_text.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {
namespace {

struct Conversion {
  bool left = false, plus = false, space = false, zero = false;
  int64_t width = 0, precision = -1;
  char letter = 's';
};

Conversion read_conversion(std::string_view format, size_t& at) {
  Conversion result;
  const auto more = [&] {
    if (at >= format.size()) refuse("a % conversion is not complete");
    return format[at];
  };
  const auto number = [&](int64_t& value) {
    for (; more() >= '0' && more() <= '9'; ++at) {
      value = value * 10 + (format[at] - '0');
      if (value > 1 << 20) refuse("a % conversion has at most {} characters", 1 << 20);
    }
  };
  for (;; ++at) {
    const char c = more();
    if (c == '-')
      result.left = true;
    else if (c == '+')
      result.plus = true;
    else if (c == ' ')
      result.space = true;
    else if (c == '0')
      result.zero = true;
    else
      break;
  }
  number(result.width);
  if (more() == '.') {
    ++at;
    result.precision = 0;
    number(result.precision);
  }
  result.letter = more();
  ++at;
  return result;
}

std::string number_text(const Conversion& conversion, const Value& value) {
  std::string digits;
  if (!value.is_number()) refuse("%{}: expected a number, found a {}", conversion.letter, value.type_name());
  const double real = value.number();
  if (conversion.precision > 300) refuse("a % conversion has at most 300 digits");
  const int64_t precision = conversion.precision < 0 ? 6 : conversion.precision;
  switch (conversion.letter) {
    case 'd':
    case 'i':
      if (!value.is_integer() && !(std::abs(real) < 9.2e18)) refuse("an integer needs more than 64 bits");
      digits = std::to_string(value.is_integer() ? value.integer() : static_cast<int64_t>(real));
      break;
    case 'x':
      if (!value.is_integer()) refuse("%x: expected an int, found a {}", value.type_name());
      digits = fmt::format("{:x}", value.integer());
      break;
    case 'f':
      digits = fmt::format("{:.{}f}", real, precision);
      break;
    case 'e':
      digits = fmt::format("{:.{}e}", real, precision);
      break;
    case 'g':
      digits = fmt::format("{:.{}g}", real, std::max<int64_t>(precision, 1));
      break;
    default:
      refuse("the conversion %{} is not supported", conversion.letter);
  }
  const bool negative = digits.starts_with('-');
  if (negative) digits.erase(0, 1);
  const std::string sign = negative ? "-" : conversion.plus ? "+" : conversion.space ? " " : "";
  const auto size = static_cast<int64_t>(digits.size() + sign.size());
  if (conversion.zero && !conversion.left && size < conversion.width)
    digits.insert(0, static_cast<size_t>(conversion.width - size), '0');
  return sign + digits;
}

}  // namespace

Value format_percent(Interpreter& in, const Text& format, std::span<const Value> values) {
  const std::string& bytes = format.bytes();
  TextBuilder out(in.budget());
  size_t used = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.append(format.slice(at, percent));
    at = percent + 1;
    if (percent == bytes.size()) break;
    const Conversion conversion = read_conversion(bytes, at);
    if (conversion.letter == '%') {
      out.append("%");
      continue;
    }
    if (used == values.size()) refuse("% formats more values than there are");
    const Value& value = values[used++];
    Text text;
    if (conversion.letter == 's' || conversion.letter == 'r') {
      TextBuilder repr(in.budget());
      if (conversion.letter == 'r') append_repr(repr, value);
      text = conversion.letter == 's' ? print(in, value) : repr.take();
      if (conversion.precision >= 0)
        text = text.slice(0, code_point_offset(text.bytes(), static_cast<size_t>(conversion.precision)));
    } else if (conversion.letter == 'c' && value.string() != nullptr && value.string()->length == 1) {
      text = value.string()->text;
    } else {
      text = Text(number_text(conversion, value), Origin::trusted);
    }
    const int64_t missing = conversion.width - static_cast<int64_t>(count_code_points(text.bytes()));
    const std::string padding(static_cast<size_t>(std::max<int64_t>(missing, 0)), ' ');
    if (!conversion.left) out.append(padding);
    out.append(text);
    if (conversion.left) out.append(padding);
  }
  // A single value that is no tuple may go unused only where it is a dict, which is the way to format by name.
  if (used < values.size()) refuse("% formats fewer values than there are");
  return in.text(out.take());
}

Value format_braces(Interpreter& in, const Text& format, const Arguments& arguments) {
  const std::string& bytes = format.bytes();
  TextBuilder out(in.budget());
  size_t next = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(format.slice(at, brace));
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.append(format.slice(brace, brace + 1));
      at = brace + 2;
      continue;
    }
    const size_t end = bytes.find('}', brace);
    if (bytes[brace] == '}' || end == std::string::npos) refuse("format: a brace has no partner");
    const std::string field = bytes.substr(brace + 1, end - brace - 1);
    if (field.find_first_of(":!.[{") != std::string::npos)
      refuse("format: \"{{{}}}\" is not supported, only {{}}, {{0}} and {{name}}", field);
    const Value* value = nullptr;
    if (field.empty() || (field[0] >= '0' && field[0] <= '9')) {
      const size_t index =
          field.empty() ? next++
                        : static_cast<size_t>(parse_integer(in.budget(), field, 10).value_or(INT64_MAX));
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& [name, given] : arguments.named)
        if (name == field) value = &given;
    }
    if (value == nullptr) refuse("format: there is no value for \"{{{}}}\"", field);
    out.append(print(in, *value));
    at = end + 1;
  }
  return in.text(out.take());
}

}  // namespace ladder::jinja
