#pragma once
// The alphabet in which byte-level BPE writes bytes as visible characters (GPT-2, bytes_to_unicode).
//
// tokenizer.json is text, and a token may be any bytes. So each byte has a character: the printable ones of
// Latin-1 (0x21 to 0x7e, 0xa1 to 0xac, 0xae to 0xff) stand for themselves, the other 68 for U+0100, U+0101, ...
// in order. That is why a space is written "Ġ" (U+0120).
#include <optional>
#include <string>
#include <string_view>

namespace ladder {

// The bytes that a token's written form stands for, or nothing where a character of it is not in the
// alphabet. `written` is valid UTF-8.
std::optional<std::string> bytes_of_written(std::string_view written);

// The written form of some bytes.
std::string written_of_bytes(std::string_view bytes);

}  // namespace ladder
