#pragma once
// Task 6.7: a streamed answer: what the engine brought, as server-sent events.
//
//   data: {"id":"cmpl-1","object":"text_completion",...,"choices":[{"index":0,"text":" day",...}]}\n\n
//   ...
//   data: {...,"choices":[],"usage":{...}}\n\n           where include_usage asks for it
//   data: [DONE]\n\n
//
// A chunk is written for every update of the engine that brought tokens, also where their text is not certain yet:
// benchmarks take chunks for tokens. In a chat the first chunk of a choice has its role. An answer of 256 streams
// writes a million chunks in minutes, so what is the same in all of them is made once, and the rest is appended to one
// buffer.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "step6_engine/request.h"
#include "step6_engine/server/openai/answer_plan.h"
#include "step6_engine/server/openai/usage.h"

namespace ladder {

class ChunkWriter {
 public:
  explicit ChunkWriter(const AnswerPlan& plan);  // which outlives it

  // Appends the chunks of an update of prompt `prompt`: a first one with the role (a chat) or the echo, then one with
  // the update's text, tokens, log probabilities, and the reason why the choice ended, if it did. Nothing for an update
  // that brought neither a token nor an end. plan.only_echo: the echo and the end, and no text.
  void write(std::string& out, int64_t prompt, const CompletionUpdate& update);
  // Counts what only the end of a prompt's request tells: its cached tokens, and where its keys are kept.
  void count(const RequestOutput& output);
  // Appends what ends the stream: a chunk without choices with the usage of all of them, where asked for, and
  // kv_transfer_params, where there are some; then [DONE].
  void finish(std::string& out) const;

 private:
  struct Choice {
    bool begun = false;
    int64_t num_tokens = 0;   // so far
    int64_t text_offset = 0;  // of the next token's log probability
    std::unique_ptr<ToolCallParser> tools;
    bool has_called = false;  // a tool
  };

  // `,"logprobs":..,"finish_reason":..` and what follows, to the blank line.
  void end_chunk(std::string& out, int64_t prompt, Choice& choice, const CompletionUpdate& update) const;
  // `,"delta":{..}` from the text that became certain, through the parser of tool calls where there is one. False, and
  // nothing is appended: there is nothing to tell.
  bool write_delta(std::string& out, Choice& choice, const CompletionUpdate& update) const;
  // The role, and what is echoed.
  void write_role(std::string& out, int64_t prompt, int64_t index) const;

  const AnswerPlan& plan_;
  std::string head_;  // "data: {"id":...,"choices":[{"index":"
  std::vector<Choice> choices_;
  Usage usage_;
  std::optional<KvTransferParams> kv_transfer_;
};

}  // namespace ladder
