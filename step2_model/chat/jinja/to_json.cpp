// Python's json.dumps.
#include <algorithm>
#include <cmath>

#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder::jinja {
namespace {

class Writer {
 public:
  Writer(Budget& budget, const JsonStyle& style) : budget_(budget), style_(style), out_(budget) {}

  void write(const Value& value, Origin origin, size_t level);
  Text take() { return out_.take(); }

 private:
  void write_string(const Text& text, Origin origin);
  void write_dict(const Dict& dict, size_t level);
  void write_layout(std::string_view text, Origin origin) {
    out_.append(text, style_.origin == Origin::outside ? Origin::outside : origin);
  }
  void new_line(Origin origin, size_t level) {
    if (!style_.indents) return;
    out_.append("\n", origin);
    for (size_t i = 0; i < level; ++i) write_layout(style_.indent, origin);
  }
  void separate(Origin origin, size_t level) {
    write_layout(style_.item_separator, origin);
    new_line(origin, level);
  }

  Budget& budget_;
  const JsonStyle& style_;
  TextBuilder out_;
};

std::string escaped(uint32_t code_point) {
  switch (code_point) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      break;
  }
  if (code_point < 0x10000) return fmt::format("\\u{:04x}", code_point);
  code_point -= 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (code_point >> 10), 0xdc00 + (code_point & 0x3ff));
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_text(value);
}

void Writer::write_string(const Text& text, Origin origin) {
  out_.append("\"", origin);
  out_.walk(text);
  text.for_each_stretch([&](std::string_view stretch, Origin mark) {
    size_t plain = 0;
    for (size_t at = 0; at < stretch.size();) {
      const Utf8Char c = utf8_decode(stretch.data() + at);
      const auto length = static_cast<size_t>(c.length);
      if (c.code_point < 0x20 || c.code_point == '"' || c.code_point == '\\' ||
          (style_.ascii && c.code_point >= 0x7f)) {
        out_.append(stretch.substr(plain, at - plain), mark);
        if (c.code_point == 0x7f) {
          out_.append("\x7f", mark);
        } else {
          out_.append(escaped(c.code_point), mark);
        }
        plain = at + length;
      }
      at += length;
    }
    out_.append(stretch.substr(plain), mark);
  });
  out_.append("\"", origin);
}

void Writer::write_dict(const Dict& dict, size_t level) {
  std::vector<const std::pair<Value, Value>*> items;
  for (const auto& item : dict.items) items.push_back(&item);
  if (style_.sort_keys)
    std::stable_sort(items.begin(), items.end(),
                     [&](const auto* a, const auto* b) { return less(a->first, b->first, budget_); });
  out_.append("{", dict.origin);
  bool first = true;
  for (const auto* item : items) {
    if (std::exchange(first, false)) {
      new_line(dict.origin, level + 1);
    } else {
      separate(dict.origin, level + 1);
    }
    const Value& key = item->first;
    if (const String* name = key.string()) {
      write_string(name->text, dict.origin);
    } else if (key.is_number() || key.is_none()) {
      out_.append("\"", dict.origin);
      write(key, dict.origin, level + 1);
      out_.append("\"", dict.origin);
    } else {
      refuse("tojson: a {} cannot be a key", key.type_name());
    }
    write_layout(style_.key_separator, dict.origin);
    write(item->second, dict.origin, level + 1);
  }
  if (!items.empty()) new_line(dict.origin, level);
  out_.append("}", dict.origin);
}

void Writer::write(const Value& value, Origin origin, size_t level) {
  budget_.step();
  if (value.is_none()) return out_.append("null", origin);
  if (value.is<bool>()) return out_.append(value.boolean() ? "true" : "false", origin);
  if (value.is_integer()) return out_.append(std::to_string(value.integer()), origin);
  if (value.is<double>()) return out_.append(json_float(value.number()), origin);
  if (const String* string = value.string()) {
    // The quotes of a text from outside are outside, too.
    const Text& text = string->text;
    return write_string(text, text.empty() ? origin : text.origin_at(0));
  }
  if (const Dict* dict = value.dict()) return write_dict(*dict, level);
  const List* list = value.list();
  if (list == nullptr || list->kind > Sequence::tuple) refuse("tojson: JSON has no {}", value.type_name());
  out_.append("[", list->origin);
  for (size_t i = 0; i < list->items.size(); ++i) {
    if (i == 0) {
      new_line(list->origin, level + 1);
    } else {
      separate(list->origin, level + 1);
    }
    write(list->items[i], list->origin, level + 1);
  }
  if (!list->items.empty()) new_line(list->origin, level);
  out_.append("]", list->origin);
}

}  // namespace

Text to_json(Interpreter& interpreter, const Value& value, const JsonStyle& style) {
  Writer writer(interpreter.budget(), style);
  writer.write(value, Origin::trusted, 0);
  return writer.take();
}

}  // namespace ladder::jinja
