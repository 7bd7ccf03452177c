// Nearly all bytes of an answer stand for themselves, so the escape looks for the next one that does not and copies
// what lies before it in one piece. Bytes from 0x80 on are looked at once, by utf8_valid_prefix(), and copied too.
#include "step6_engine/server/openai/json_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iterator>

#include "step2_model/tokenizer/unicode.h"

namespace ladder {

namespace {

// What a byte is written as after a backslash; 0: as itself, 'u': as \u00XX.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  for (size_t byte = 0; byte < 0x20; ++byte) escapes[byte] = 'u';
  escapes['"'] = '"';
  escapes['\\'] = '\\';
  escapes['\b'] = 'b';
  escapes['\f'] = 'f';
  escapes['\n'] = 'n';
  escapes['\r'] = 'r';
  escapes['\t'] = 't';
  return escapes;
}();

void append_escaped_utf8(std::string& out, std::string_view text) {
  size_t begin = 0;  // of what is not written yet
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const char escape = kEscapes[byte];
    if (escape == 0) continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    if (escape == 'u')
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    else
      (out += '\\') += escape;
  }
  out.append(text, begin);
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  if (utf8_valid_prefix(text) == static_cast<int64_t>(text.size())) return append_escaped_utf8(out, text);
  std::string replaced;
  utf8_append_replaced(replaced, text);
  append_escaped_utf8(out, replaced);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void append_json_logprob(std::string& out, float logprob) {
  fmt::format_to(std::back_inserter(out), "{}", std::isfinite(logprob) ? logprob : -9999.0f);
}

}  // namespace ladder
