#pragma once
// Tasks 4.2 and 4.4: one rank's share of a step.
//
//   prepare(step)   the persistent batch takes in what changed and lays out the rows
//   run()           the model, then the LM head on the rows that yield a token
//   sample(logits)  rank 0 draws, the others hear of it; the batch takes in the tokens
//
// execute() is the three in a row. Every rank runs them with the same SchedulerOutput, so their batches stay
// the same.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/context.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/model.h"
#include "step4_runner/batch.h"
#include "step4_runner/executor.h"
#include "step4_runner/memory.h"
#include "step4_runner/sampler.h"

namespace ladder {

class ModelRunner {
 public:
  // Rows of the LM head at a time where every prompt position needs logits: [kLogitsRows, vocab] is the most
  // that a long prompt's log probabilities take.
  static constexpr int64_t kLogitsRows = 128;

  // `config` is resolved; `ctx` carries the device, the parallel groups and the kernels. Allocates the KV
  // cache.
  ModelRunner(const OpContext& ctx, const RunnerConfig& config, std::unique_ptr<Model> model);

  // Runs the largest step there can be, so that the arena is as large as it will ever have to be, and freezes
  // it.
  void warm_up();

  StepOutput execute(const SchedulerOutput& step);

  void prepare(const SchedulerOutput& step);
  // Raw logits f32 [rows, vocab] of the batch's logits_indices, valid until the next prepare(); sample()
  // overwrites them. Undefined if no row yields a token.
  Tensor run();
  StepOutput sample(const Tensor& logits);

  Sampler& sampler() { return sampler_; }
  const Batch& batch() const { return batch_; }
  const Model& model() const { return *model_; }
  MemoryPlan memory() const;  // measured on this rank, `other` left out

 private:
  Tensor gather_rows(const Tensor& hidden, std::span<const int64_t> rows);
  void add_prompt_logprobs(StepOutput& output);
  bool is_first_rank() const { return tp_group(ctx_).rank() == 0; }

  RunnerConfig config_;
  std::unique_ptr<Arena> arena_;
  OpContext ctx_;
  std::unique_ptr<Model> model_;
  std::vector<KvCacheView> kv_caches_;
  Batch batch_;
  Sampler sampler_;

  std::optional<ArenaScope> step_scope_;  // what run() and sample() take lives as long as the step
  Tensor hidden_;                         // of this step's rows
  int64_t step_ = 0;
  int64_t activation_bytes_ = 0;  // the warm-up's peak
};

}  // namespace ladder
