#pragma once
// Task 6.8: the seam to what finds tool calls in a model's text, one implementation per way of writing them.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

// What became certain of one tool call. The pieces of a call have its index; `id` and `name` stand in its first one
// alone, and its `arguments`, one after the other, are one JSON text.
struct ToolCallDelta {
  int64_t index = 0;
  std::string id = {};
  std::string name = {};
  std::string arguments = {};
};

struct ToolTextDelta {
  std::string content = {};  // text that belongs to no call
  std::vector<ToolCallDelta> tool_calls = {};
};

// The text of one completion, piece by piece. All deltas together are the same however the text was cut, and none
// splits a character that was given whole.
class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;
  virtual ToolTextDelta append(std::string_view text) = 0;
  // No more text will come: what was held back. What looked like a call and is none comes back as content.
  virtual ToolTextDelta finish() = 0;
};

using ToolCallParserMaker = std::function<std::unique_ptr<ToolCallParser>()>;

// For "parallel_tool_calls": false: the same without the calls after the first, which are dropped (as vLLM).
ToolCallParserMaker first_call_only(ToolCallParserMaker make);

}  // namespace ladder
