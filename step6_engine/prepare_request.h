#pragma once
// The first half of adding a request: text to tokens, and every check that can be made before the engine's
// loop sees it. It is a function of the request and of numbers that never change, so it runs on the caller's
// thread, where its errors belong.
#include <memory>
#include <string>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"
#include "step5_scheduler/scheduler.h"
#include "step6_engine/request.h"

namespace ladder {

struct PreparedRequest {
  RequestId request_id;  // empty: to be numbered
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
  std::shared_ptr<const KvTransferParams> kv_transfer;  // null: none
};

// Bad words become the ids that the tokenizer writes them with, at the beginning of a text and after a space.
// `tokenizer` may be null. Error, naming the field: an empty prompt; text, stop strings or bad words without
// a tokenizer; kv_transfer without a connector; and what Scheduler::check() refuses (parameters out of range, ids outside the vocabulary, a
// prompt that is too long, a request that cannot fit the KV cache even alone).
PreparedRequest prepare_request(const Request& request, const Tokenizer* tokenizer,
                                const Scheduler& scheduler);

}  // namespace ladder
