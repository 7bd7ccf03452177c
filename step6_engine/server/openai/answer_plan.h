#pragma once
// What a body asks for, read and checked: the engine's requests, and how the answer to them is written.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "step6_engine/request.h"
#include "step6_engine/server/openai/served_model.h"
#include "step6_engine/server/openai/tools/tool_call_parser.h"

namespace ladder {

enum class Api { completions, chat };

struct AnswerPlan {
  Api api = Api::completions;
  std::string id;       // "cmpl-..."
  int64_t created = 0;  // seconds since 1970
  std::shared_ptr<const ServedModel> model;
  int64_t n = 1;  // choices of each prompt; choice `i` of prompt `p` has the index p * n + i
  bool stream = false;
  bool include_usage = false;     // of a stream: a last chunk with the usage of all choices
  bool continuous_usage = false;  // of a stream: every chunk with that of its choice so far
  bool logprobs = false;          // of the answer's tokens
  int64_t num_top_logprobs = 0;   // -1: the whole vocabulary
  bool prompt_logprobs = false;   // vLLM's field beside the answer
  bool echo = false;              // each choice begins with its prompt
  bool only_echo = false;         // completions, max_tokens 0: nothing else is wanted
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  // "token_id:7" in place of a token's text
  ToolCallParserMaker tool_call_parser;     // empty: the text is the answer

  struct Prompt {
    int64_t num_tokens = 0;
    std::string echo;                     // the text that its choices begin with
    std::vector<int32_t> token_ids = {};  // where the answer shows them
  };
  std::vector<Prompt> prompts;
};

// The request of plan.prompts[i] is requests[i].
struct GenerationPlan {
  std::vector<Request> requests;
  AnswerPlan answer;
};

}  // namespace ladder
