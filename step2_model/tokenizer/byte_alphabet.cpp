#include "step2_model/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

// A character for each byte, and a byte (or -1) for each of the alphabet's characters.
struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, 256 + 68> byte{};
};

// Printable bytes stand for themselves, the others for U+0100 and so on in order.
Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const int character = printable ? byte : 256 + others++;
    alphabet.character[static_cast<size_t>(byte)] = static_cast<uint16_t>(character);
    alphabet.byte[static_cast<size_t>(character)] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

const Alphabet& the_alphabet() {
  static const Alphabet alphabet = make_alphabet();
  return alphabet;
}

}  // namespace

std::optional<std::string> bytes_of_written(std::string_view written) {
  const Alphabet& alphabet = the_alphabet();
  std::string bytes;
  for (size_t at = 0; at < written.size();) {
    const Utf8Char character = utf8_decode(written.data() + at);
    at += static_cast<size_t>(character.length);
    if (character.code_point >= alphabet.byte.size() || alphabet.byte[character.code_point] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet.byte[character.code_point]));
  }
  return bytes;
}

std::string written_of_bytes(std::string_view bytes) {
  const Alphabet& alphabet = the_alphabet();
  std::string written;
  for (const char byte : bytes) utf8_append(written, alphabet.character[static_cast<uint8_t>(byte)]);
  return written;
}

}  // namespace ladder
