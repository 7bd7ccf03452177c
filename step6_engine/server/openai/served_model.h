#pragma once
// The model as a client sees it: what it is called, how its text becomes tokens, what it can hold.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/chat/chat_template.h"
#include "step2_model/tokenizer/tokenizer.h"
#include "step3_sequence/sampling_params.h"
#include "step6_engine/load_engine.h"
#include "step6_engine/server/openai/tools/tool_call_parser.h"

namespace ladder {

// Never changes once it is served: read from several threads.
struct ServedModel {
  std::vector<std::string> names;                     // at least one; answers carry the first
  std::shared_ptr<const Tokenizer> tokenizer;         // null: prompts are ids, and answers have no text
  std::shared_ptr<const ChatTemplate> chat_template;  // null: the model cannot chat
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;
  SamplingParams default_sampling;  // max_tokens: the most that an answer may have, whatever is asked for
  int64_t created = 0;              // seconds since 1970
  std::vector<int32_t> turn_end_token_ids;  // what ends an answer in a chat, beside the model's end tokens
  std::string tokenizer_info;               // JSON: what GET /tokenizer_info answers
  ToolCallParserMaker tool_call_parser;     // empty: no calls are looked for, tool_choice auto is a 400
  std::string folder;                       // for messages to be kept free of it

  bool is_called(std::string_view name) const;
};

// From a folder that was opened. `names` empty: the folder's name. Error: a chat template that cannot be read; that
// there is none is no error.
ServedModel make_served_model(const std::filesystem::path& path, const ModelFolder& folder,
                              int64_t max_model_len, std::vector<std::string> names = {});

}  // namespace ladder
