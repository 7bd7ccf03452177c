#pragma once
// What goes into the engine and what comes out of it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "step3_sequence/sampling_params.h"
#include "step3_sequence/sequence.h"
#include "step4_runner/executor.h"
#include "step6_engine/metrics/metrics.h"

namespace ladder {

using RequestId = int64_t;

// A prompt as text or, where `prompt` is empty, as token ids.
struct Request {
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
};

// What one step brought for one completion.
struct CompletionUpdate {
  RequestId request = 0;
  int64_t completion = 0;  // 0 .. n - 1
  std::vector<int32_t> token_ids;
  std::string
      text;  // the text that became certain; it may lag behind the tokens (stop strings, half characters)
  FinishReason finish_reason = FinishReason::none;
};

struct CompletionOutput {
  // Every token that was generated: also the end token, and the tokens whose text a stop string cut off.
  std::vector<int32_t> token_ids;
  std::optional<std::string>
      text;  // none without a tokenizer; neither special tokens nor the stop string are in it
  FinishReason finish_reason = FinishReason::none;
  std::vector<PositionLogprobs> logprobs;  // one per token, if asked for
};

struct RequestOutput {
  RequestId request = 0;
  std::vector<int32_t> prompt_token_ids;
  std::vector<CompletionOutput> completions;  // n of them
  // If asked for: entry i is about prompt token i + 1, given those before it; one fewer than prompt tokens.
  std::vector<PositionLogprobs> prompt_logprobs;
  RequestMetrics metrics;
};

}  // namespace ladder
