#include "step2_model/chat/jinja/print.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>

#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {
namespace {

bool is_printable(uint32_t code_point) {
  if (code_point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

// In single quotes, or in double quotes where it has single ones and no double ones.
void append_string_repr(TextBuilder& out, const Text& text) {
  out.walk(text);
  const std::string& bytes = text.bytes();
  const bool has_single = bytes.find('\'') != std::string::npos,
             has_double = bytes.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  text.for_each_stretch([&](std::string_view stretch, Origin origin) {
    size_t plain = 0;
    for (size_t at = 0; at < stretch.size();) {
      const Utf8Char c = utf8_decode(stretch.data() + at);
      std::string escaped;
      if (c.code_point == static_cast<uint32_t>(quote) || c.code_point == '\\') {
        escaped = {'\\', static_cast<char>(c.code_point)};
      } else if (c.code_point == '\n') {
        escaped = "\\n";
      } else if (c.code_point == '\r') {
        escaped = "\\r";
      } else if (c.code_point == '\t') {
        escaped = "\\t";
      } else if (!is_printable(c.code_point)) {
        escaped = c.code_point < 0x100     ? fmt::format("\\x{:02x}", c.code_point)
                  : c.code_point < 0x10000 ? fmt::format("\\u{:04x}", c.code_point)
                                           : fmt::format("\\U{:08x}", c.code_point);
      }
      const auto length = static_cast<size_t>(c.length);
      if (!escaped.empty()) {
        out.append(stretch.substr(plain, at - plain), origin);
        out.append(escaped, origin);
        plain = at + length;
      }
      at += length;
    }
    out.append(stretch.substr(plain), origin);
  });
  out.append(std::string_view(&quote, 1));
}

void append_list_repr(TextBuilder& out, const List& list) {
  if (list.kind == Sequence::iterator || list.kind == Sequence::range)
    refuse("printing a {} is not supported",
           Value(std::make_shared<List>(list.kind, std::vector<Value>(), nullptr)).type_name());
  const bool is_tuple = list.kind == Sequence::tuple;
  if (list.kind == Sequence::keys) out.append("dict_keys(", list.origin);
  if (list.kind == Sequence::values) out.append("dict_values(", list.origin);
  if (list.kind == Sequence::items) out.append("dict_items(", list.origin);
  out.append(is_tuple ? "(" : "[", list.origin);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ", list.origin);
    append_repr(out, list.items[i]);
  }
  if (is_tuple && list.items.size() == 1) out.append(",", list.origin);
  out.append(is_tuple ? ")" : "]", list.origin);
  if (list.kind == Sequence::keys || list.kind == Sequence::values || list.kind == Sequence::items)
    out.append(")", list.origin);
}

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c != '.' && c != '-') digits.push_back(c);
  std::string result = text.starts_with('-') ? "-" : "";
  const int size = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    result += digits.substr(0, 1);
    if (size > 1) result += "." + digits.substr(1);
    return result + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return result + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (size <= exponent + 1)
    return result + digits + std::string(static_cast<size_t>(exponent + 1 - size), '0') + ".0";
  return result + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

void append_repr(TextBuilder& out, const Value& value) {
  if (value.is_undefined()) return out.append("Undefined");
  if (value.is_none()) return out.append("None");
  if (value.is<bool>()) return out.append(value.boolean() ? "True" : "False");
  if (value.is_integer()) return out.append(std::to_string(value.integer()));
  if (value.is<double>()) return out.append(float_text(value.number()));
  if (const String* string = value.string()) return append_string_repr(out, string->text);
  if (const List* list = value.list()) return append_list_repr(out, *list);
  const Dict* dict = value.dict();
  if (dict == nullptr) refuse("printing a {} is not supported", value.type_name());
  out.append("{", dict->origin);
  bool first = true;
  for (const auto& [key, held] : dict->items) {
    if (!std::exchange(first, false)) out.append(", ", dict->origin);
    append_repr(out, key);
    out.append(": ", dict->origin);
    append_repr(out, held);
  }
  out.append("}", dict->origin);
}

Text print(Interpreter& interpreter, const Value& value) {
  if (const String* string = value.string()) {
    interpreter.budget().touch(string->text.bytes_held());
    return string->text;
  }
  TextBuilder out(interpreter.budget());
  if (!value.is_undefined()) append_repr(out, value);
  return out.take();
}

}  // namespace ladder::jinja
