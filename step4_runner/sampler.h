#pragma once
// Task 4.3: the sampling pipeline: logits in, one token per row out.
//
//   raw logits -> logits processors -> penalties -> temperature -> min-p -> top-k -> top-p -> noise -> argmax
//        |
//        +-> log probabilities: natural logs of the raw logits' softmax, untouched by what the request asks
//        for
//
// The order is vLLM's V1 sampler's (min-p before top-k and top-p). A row of temperature 0 is greedy:
// penalties still apply, the rest does not. The noise of a row depends on nothing but (seed, output index,
// token id), so a request gives the same tokens in any batch. A stage that no row asks for is not run: a
// batch of plain greedy requests costs one argmax.
//
// Rows go through the pipeline kRows at a time, so that the copy of raw logits that log probabilities need,
// and the scratch memory of the operators, stay bounded whatever the batch.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step4_runner/batch.h"
#include "step4_runner/executor.h"

namespace ladder {

// The seam for structured output and logit biases (step 8). The logits may be on a device and the step in a
// captured graph, so nobody is called back per token on the host: a processor uploads a bitmask or a list of
// biases, and apply() launches the operator that uses it.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;
  // Once per step, before the first apply(). `sequences`: those that yield a token, in row order.
  virtual void prepare(const OpContext& ctx, std::span<BatchSequence* const> sequences) = 0;
  // Edits logits [rows, vocab] f32, which belong to sequences [first, first + rows).
  virtual void apply(const OpContext& ctx, const Tensor& logits, int64_t first) = 0;
};

class Sampler {
 public:
  static constexpr int64_t kRows = 64;

  void add_processor(std::shared_ptr<LogitsProcessor> processor) {
    processors_.push_back(std::move(processor));
  }

  // token_ids [rows] i32 for logits [rows, vocab] f32, which are overwritten; row r belongs to sequences[r].
  // Scratch memory comes from the context's arena. Returns one entry per row; empty ones where no log
  // probabilities were asked for, and nothing at all where no row asked.
  std::vector<PositionLogprobs> sample(const OpContext& ctx, const Tensor& logits,
                                       std::span<BatchSequence* const> sequences,
                                       const Tensor& token_ids) const;

 private:
  std::vector<std::shared_ptr<LogitsProcessor>> processors_;
};

// The log probability of chosen[r] in row r of logits [rows, vocab] f32 and, for each row, the top[r] best
// (0: none).
std::vector<PositionLogprobs> position_logprobs(const OpContext& ctx, const Tensor& logits,
                                                std::span<const int32_t> chosen,
                                                std::span<const int64_t> top);

}  // namespace ladder
