// Input: a tokenizer.json, then optionally a zero byte and a text. Whatever the file says, the answer is a
// tokenizer or an Error; a tokenizer must encode the text, and its two ways to decode must agree.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  // Short texts: a pattern may take its limit of steps at every character.
  const std::string_view text =
      zero == std::string_view::npos ? "Hi <|im_end|> 12\n" : input.substr(zero + 1, 64);
  try {
    const ladder::Tokenizer tokenizer = ladder::Tokenizer::parse(json, "fuzz");
    for (const bool parse_special : {true, false}) {
      const std::vector<int32_t> ids = tokenizer.encode(text, true, parse_special);
      ladder::IncrementalDecoder decoder(tokenizer);
      std::string pieces;
      for (const int32_t id : ids) pieces += decoder.push(id);
      pieces += decoder.finish();
      if (pieces != tokenizer.decode(ids)) std::abort();
    }
  } catch (const ladder::Error&) {
  }
  return 0;
}
