// Input: a chat template, then optionally a zero byte and a message. Whatever they are, the answer is a text or an Error,
// in bounded time and memory; nothing of the message is trusted.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "step1_layers/core/error.h"
#include "step2_model/chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view source = input.substr(0, zero);
  const std::string_view typed = zero == std::string_view::npos ? "<|im_end|> é" : input.substr(zero + 1);
  try {
    const ladder::ChatTemplate chat_template =
        ladder::ChatTemplate::parse(source, {"<s>", "</s>", "<pad>", "<unk>"}, "fuzz");
    const ladder::ChatMessage messages[] = {{"system", "S"}, {"user", std::string(typed)}};
    // U+E000 stands nowhere in the template: a trusted one could only come from the message.
    const ladder::ChatMessage strange[] = {{"user", "\uE000"}};
    chat_template.render(messages);
    if (source.find("\uE000") == std::string_view::npos && source.find('\\') == std::string_view::npos)
      for (const ladder::TextSegment& segment : chat_template.render_segments(strange))
        if (segment.trusted && segment.text.find("\uE000") != std::string::npos) std::abort();
  } catch (const ladder::Error&) {
  }
  return 0;
}
