#pragma once
// Task 6.8: tool calls out of a model's text, as its template taught it to write them.
//
//   hermes       Let me see.<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><tool_call>...     Qwen, Hermes
//   llama3_json  {"name": "f", "parameters": {"x": 1}}; {"name": ...}                                     Llama 3.1, 3.2
//                the first one may have <|python_tag|> before it, then also after text
//
// A call is held back until it is whole, then told at once, name and arguments: one that turns out to be none is text
// again, and what was told cannot be taken back. What is called are objects with a name, a string that is not empty, and
// arguments (or parameters), an object or a string that holds one; their bytes go to the client as the model wrote them.
// Around calls: text before the first one is content with all of its white space, white space and separators next to
// calls are not, text after calls is content. A call that the text's end cuts off is content; a whole one of hermes that
// only lacks its end tag is a call (as vLLM).
//
// Linear in the text. At most kMaxCallBytes are held back; a longer call is text.
#include <cstddef>
#include <string>
#include <string_view>

#include "step6_engine/server/openai/tools/json_scanner.h"
#include "step6_engine/server/openai/tools/tool_call_parser.h"

namespace ladder {

inline constexpr size_t kMaxCallBytes = size_t{1} << 18;

struct CallMarks {
  std::string_view open;   // before a call
  std::string_view close;  // after it; empty: the object's end is its end
  bool bare = false;  // objects at the text's beginning, and after a call and ';', are calls without a mark
};
inline constexpr CallMarks kHermesMarks{"<tool_call>", "</tool_call>", false};
inline constexpr CallMarks kLlama3Marks{"<|python_tag|>", "", true};

class MarkedCallParser final : public ToolCallParser {
 public:
  explicit MarkedCallParser(CallMarks marks) : marks_(marks), in_gap_(marks.bare), may_begin_(marks.bare) {}

  ToolTextDelta append(std::string_view text) override;
  ToolTextDelta finish() override;

 private:
  enum class Within { text, open_mark, before_object, object, after_object };

  // One byte on. The mark before a call, white space, an object, white space and the mark after it are held; a byte
  // that does not fit there gives back what is held and counts as text, and so does the byte after kMaxCallBytes.
  void feed(char c);
  // Outside of calls and marks: a mark may begin. In a gap white space, and where bare one ';' that allows another
  // call, up to 4096 bytes of both, go to space_; the first other byte ends the gap.
  void feed_text(char c);
  // White space, then the mark that closes the call. Where a byte does not fit, the part of the mark that was there may
  // begin another call: it is fed again, after all before it was given back.
  void feed_after_object(char c);
  void begin_object();  // at its '{'
  // What is held becomes a call with the next index and an id (call_of, random_call_id), and a gap begins, space_
  // forgotten; or it is given back, where the object calls nothing.
  void end_call();
  // space_, then what is held, is content; text goes on, in no gap.
  void give_back();

  const CallMarks marks_;
  Within within_ = Within::text;
  std::string held_;         // since a call may have begun
  size_t matched_ = 0;       // bytes of a mark
  size_t object_begin_ = 0;  // in held_
  JsonScanner scanner_;
  bool in_gap_;        // after a call (bare: and at the beginning), white space alone so far
  bool may_begin_;     // bare: an object here is a call
  std::string space_;  // of the gap
  int64_t num_calls_ = 0;
  ToolTextDelta delta_;
};

// hermes, llama3_json. Error naming --tool-call-parser: any other name.
ToolCallParserMaker tool_call_parser_of(std::string_view name);

}  // namespace ladder
