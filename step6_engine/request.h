#pragma once
// What goes into the engine and what comes out of it. The names are vLLM's (vllm/outputs.py).
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "step3_sequence/kv_transfer.h"
#include "step3_sequence/sampling_params.h"
#include "step3_sequence/sequence.h"
#include "step4_runner/executor.h"
#include "step6_engine/metrics/metrics.h"

namespace ladder {

using RequestId = std::string;

// A prompt as text or, where `prompt` is empty, as token ids.
struct Request {
  RequestId request_id;  // empty: the engine numbers it. Two that run at the same time need two ids.
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
  std::optional<KvTransferParams> kv_transfer;  // for an engine that is connected to others
  // Its reader takes the output alone and may get no updates before it: so nothing is lost where another engine begins anew
  // (vLLM: RequestOutputKind.FINAL_ONLY).
  bool output_only = false;
};

// What ended a completion whose reason is FinishReason::stop: nothing to name where it was an end token of the
// model, one of stop_token_ids, or one of the stop strings.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

// What one step brought for one completion.
struct CompletionUpdate {
  RequestId request_id;
  int64_t completion = 0;  // 0 .. n - 1
  std::vector<int32_t> token_ids;
  // The text that became certain; it may lag behind the tokens (stop strings, half characters).
  std::string text;
  std::vector<PositionLogprobs> logprobs;  // one per token of token_ids, if asked for
  FinishReason finish_reason = FinishReason::none;
  StopReason stop_reason;
};

struct CompletionOutput {
  // Every token that was generated: also the end token, and the tokens whose text a stop string cut off.
  std::vector<int32_t> token_ids;
  std::optional<std::string> text;         // none without a tokenizer
  std::vector<PositionLogprobs> logprobs;  // one per token, if asked for
  // abort and error keep what was generated before.
  FinishReason finish_reason = FinishReason::none;
  StopReason stop_reason;
  std::string error;  // why, where the reason is FinishReason::error
};

struct RequestOutput {
  RequestId request_id;
  std::vector<int32_t> prompt_token_ids;
  std::vector<CompletionOutput> completions;  // n of them
  // If asked for: entry i is about prompt token i + 1, given those before it; one fewer than prompt tokens.
  std::vector<PositionLogprobs> prompt_logprobs;
  RequestMetrics metrics;
  std::optional<KvTransferParams> kv_transfer;  // where its keys and values are kept for another engine
};

}  // namespace ladder
