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
// The work has two halves. plan() looks at the requests, on the host: which stages are needed, and the
// numbers of every row, which travel with the other inputs of the step. sample() launches the stages and
// reads nothing back, so a GPU's tokens may be collected a step later.
//
// Rows go through the pipeline in chunks, so that the copy of raw logits that log probabilities need, and the
// scratch memory of the operators, stay bounded whatever the batch.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/sampling/penalties.h"
#include "step4_runner/batch.h"
#include "step4_runner/executor.h"
#include "step4_runner/step_io.h"

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

// What plan() found out. Tensors of one value per row; undefined where no row needs them.
struct SamplingPlan {
  int64_t rows = 0;
  bool all_greedy = true;
  Tensor temperature, min_p, top_p;  // f32
  Tensor top_k;                      // i32
  Tensor seeds, output_index;        // i64
  bool any_penalty = false;
  ApplyPenaltiesArgs penalties;                      // without its logits
  std::vector<std::optional<int64_t>> num_logprobs;  // per row, as in SamplingParams
};

// Log probabilities of some rows, on the host once the step is done.
struct LoggedRows {
  std::vector<int64_t> rows;  // of the step
  std::vector<int64_t> top;   // for each: how many of the best
  Tensor chosen;              // i32 [rows]
  Tensor chosen_logprobs;     // f32 [rows]
  Tensor top_ids;             // i32 [rows, k], undefined where no row wants any
  Tensor top_logprobs;        // f32 [rows, k]
};
// In the order of logged.rows. The step is done.
std::vector<PositionLogprobs> read_logprobs(const LoggedRows& logged);

class Sampler {
 public:
  // Rows of a chunk. A GPU works on all rows at once.
  static constexpr int64_t kRows = 64, kDeviceRows = 1024;

  void add_processor(std::shared_ptr<LogitsProcessor> processor) {
    processors_.push_back(std::move(processor));
  }

  // Bytes that plan() stages, at most.
  int64_t upload_bytes(std::span<BatchSequence* const> sequences) const;
  // Row r belongs to sequences[r].
  SamplingPlan plan(const OpContext& ctx, std::span<BatchSequence* const> sequences,
                    StepUpload& upload) const;
  // Whether plan() needs the tokens themselves, and not only their number: of the step before, too.
  static bool needs_tokens(const SamplingParams& sampling);

  // token_ids [rows] i32 for logits [rows, vocab] f32, which are overwritten. Scratch memory comes from the
  // context's arena. Log probabilities come back through `download`.
  std::vector<LoggedRows> sample(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan,
                                 const Tensor& token_ids, StepDownload& download) const;

 private:
  std::vector<std::shared_ptr<LogitsProcessor>> processors_;
};

// The log probability of chosen [rows] i32 in logits [rows, vocab] f32 and, for each row, the top[r] best (0:
// none).
LoggedRows position_logprobs(const OpContext& ctx, const Tensor& logits, const Tensor& chosen,
                             std::span<const int64_t> top, StepDownload& download);
// How many of the best K of SamplingParams asks for: -1 is the whole vocabulary.
inline int64_t num_best(int64_t k, int64_t vocab_size) {
  return k < 0 ? vocab_size : k;
}
// Bytes that a row's log probabilities take on their way back.
int64_t logprob_bytes(int64_t top);

}  // namespace ladder
