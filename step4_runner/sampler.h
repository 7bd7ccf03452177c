#pragma once
// Task 4.3: the sampling pipeline: logits in, one token per row out.
//
//   raw logits -> masks and biases -> penalties -> temperature -> min-p -> top-k -> top-p -> noise -> argmax
//        |
//        +-> log probabilities: natural logs of the raw logits' softmax, whatever else the request asks for
//
// The order is vLLM's V1 sampler's (min-p before top-k and top-p). Masks and biases are what requests
// (allowed_token_ids, bad_words, min_tokens, logit_bias) and logits processors want. A row of temperature 0 is
// greedy: masks, biases and penalties still apply, the rest does not. The noise of a row depends on nothing
// but (seed, output index, token id), so a request gives the same tokens in any batch. A stage that no row
// asks for is not run: a batch of plain greedy requests costs one argmax.
//
// A row that holds a NaN, or whose tokens are all forbidden, gives kInvalidToken (invalid_token.h); a NaN that
// a mask overwrites is not seen. The other rows are not affected.
//
// The work has two halves. plan() looks at the requests, on the host: which stages are needed, and the
// numbers of every row, which travel with the other inputs of the step. sample() launches the stages and
// reads nothing back, so a GPU's tokens may be collected a step later.
//
// Rows go through the pipeline in chunks, so that the copy of raw logits that log probabilities need, and the
// scratch memory of the operators, stay bounded whatever the batch.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step4_runner/batch.h"
#include "step4_runner/logits_edits.h"
#include "step4_runner/logprobs.h"
#include "step4_runner/sampling_plan.h"
#include "step4_runner/step_io.h"

namespace ladder {

class Sampler {
 public:
  // Rows of a chunk. A GPU works on all rows at once.
  static constexpr int64_t kRows = 64, kDeviceRows = 1024;
  static int64_t chunk_rows(Device device) { return device.is_cpu() ? kRows : kDeviceRows; }

  explicit Sampler(int64_t vocab_size) : vocab_size_(vocab_size) {}

  void add_processor(std::shared_ptr<LogitsProcessor> processor) {
    processors_.push_back(std::move(processor));
  }

  // Whether plan() needs the tokens themselves, and not only their number: of the step before, too.
  bool needs_tokens(const SamplingParams& sampling) const;
  // Row r belongs to sequences[r]; they stay as they are until the plan is staged.
  SamplingPlan plan(std::span<BatchSequence* const> sequences) const;
  int64_t download_bytes(const SamplingPlan& plan, Device device) const;

  // token_ids [rows] i32 for logits [rows, vocab] f32, which are overwritten; the plan is staged. Scratch
  // memory comes from the context's arena. Log probabilities come back through `download`, download_bytes() of
  // it.
  std::vector<LoggedRows> sample(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan,
                                 const Tensor& token_ids, StepDownload& download) const;

 private:
  int64_t vocab_size_;
  std::vector<std::shared_ptr<LogitsProcessor>> processors_;
};

}  // namespace ladder
