// A model's text, given whole, byte by byte and in pieces, to both parsers of tool calls: the answer is the same, nothing
// is lost, and nothing is made up. The first byte says how long the pieces are.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "step6_engine/server/openai/tools/tool_call_parsers.h"

namespace {

struct Answer {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Answer&) const = default;
};

void expect(bool holds) {
  if (!holds) std::abort();
}

Answer parse(const ladder::ToolCallParserMaker& make, std::string_view text, size_t piece, size_t step) {
  const auto parser = make();
  Answer answer;
  const auto take = [&answer](const ladder::ToolTextDelta& delta) {
    answer.content += delta.content;
    for (const ladder::ToolCallDelta& call : delta.tool_calls) {
      if (!call.id.empty()) {
        expect(call.index == std::ssize(answer.calls) && !call.name.empty());
        answer.calls.emplace_back(call.name, "");
      }
      expect(call.index >= 0 && call.index < std::ssize(answer.calls));
      answer.calls[static_cast<size_t>(call.index)].second += call.arguments;
    }
  };
  for (size_t begin = 0; begin < text.size(); piece += step) {
    const std::string part(text.substr(begin, piece));  // a copy that ends with the call
    take(parser->append(part));
    begin += part.size();
  }
  take(parser->finish());
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (const char* name : {"hermes", "llama3_json"}) {
    const ladder::ToolCallParserMaker make = ladder::tool_call_parser_of(name);
    const Answer whole = parse(make, text, std::max<size_t>(text.size(), 1), 0);
    expect(whole == parse(make, text, 1, 0));
    expect(whole == parse(make, text, data[0] % 64 + 1, data[0] / 64));
    // What is no call is content, byte for byte; the content of others is what stands around them.
    expect(whole.calls.empty() ? whole.content == text : whole.content.size() < text.size());
    for (const auto& [function, arguments] : whole.calls)
      expect(!function.empty() && arguments.starts_with('{') && arguments.ends_with('}'));
  }
  return 0;
}
