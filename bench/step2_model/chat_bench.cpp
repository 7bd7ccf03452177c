// Rendering a conversation of 100 messages. Without settings: models/tinyworld's template;
//   LADDER_CHAT_MODEL   a folder with a chat template (Qwen3's, say)
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "step2_model/chat/chat_template.h"

namespace ladder {
namespace {

void render_100_messages(benchmark::State& state) {
  const char* folder = std::getenv("LADDER_CHAT_MODEL");
  const ChatTemplate chat_template =
      load_chat_template(folder != nullptr ? folder : LADDER_SOURCE_DIR "/models/tinyworld");
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 50; ++i) {
    messages.push_back(
        {"user", "Question number " + std::to_string(i) + " about something that takes a line."});
    messages.push_back(
        {"assistant", "<think>\nA thought.\n</think>\n\nAn answer to it, which takes a line as well."});
  }
  int64_t bytes = 0;
  for (auto _ : state) bytes += static_cast<int64_t>(chat_template.render(messages).size());
  state.SetBytesProcessed(bytes);
}
BENCHMARK(render_100_messages)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ladder
