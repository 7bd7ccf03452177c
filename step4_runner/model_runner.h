#pragma once
// Tasks 4.2 and 4.4 to 4.6: one rank's share of a step.
//
//   prepare(step)   the persistent batch takes in what changed and lays out the rows, which travel to the
//                   device
//   run()           the model, then the LM head on the rows that yield a token
//   sample(logits)  rank 0 draws, the others hear of it; the batch takes in placeholders for the tokens
//
// launch() is the three in a row. On a GPU none of them waits: what launch() returns is collected when the
// step is done, and the next step may be launched before, its unknown tokens filled in on the device. A step
// that is not too long is then replayed from a captured graph. Every rank runs the same steps, so their
// batches stay the same.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/context.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/model.h"
#include "step4_runner/batch.h"
#include "step4_runner/device_inputs.h"
#include "step4_runner/executor.h"
#include "step4_runner/launched_step.h"
#include "step4_runner/memory.h"
#include "step4_runner/sampler.h"
#include "step4_runner/step_graphs.h"
#include "step4_runner/step_io.h"

namespace ladder {

class ModelRunner {
 public:
  // Rows of the LM head at a time where every prompt position needs logits: [kLogitsRows, vocab] is the most
  // that a long prompt's log probabilities take.
  static constexpr int64_t kLogitsRows = 128;
  // Steps that may be launched and not collected.
  static constexpr int kMaxInFlight = 2;

  // `config` is resolved; `ctx` carries the device, the parallel groups and the kernels. Allocates the KV
  // cache, unless its size is left open for the warm-up.
  ModelRunner(const OpContext& ctx, const RunnerConfig& config, std::unique_ptr<Model> model);
  ~ModelRunner();  // waits for what is in flight

  // Runs the largest steps there can be, so that the arena is as large as it will ever have to be, and
  // freezes it. On a GPU the KV cache, where its size is open, gets what is left of the memory, and the
  // graphs are captured. Error: no memory is left.
  void warm_up();

  // At most kMaxInFlight launched steps may be uncollected. The answer may be collected on another thread.
  std::shared_ptr<const LaunchedStep> launch(const SchedulerOutput& step);
  StepOutput execute(const SchedulerOutput& step) { return launch(step)->collect(); }

  void prepare(const SchedulerOutput& step);
  // Raw logits f32 [rows, vocab] of the batch's logits_indices, on the device, valid until the next
  // prepare(); sample() overwrites them. Undefined if no row yields a token.
  Tensor run();
  StepOutput sample(const Tensor& logits);

  // Replays the last step's graph and draw, `count` times in a row with no other work of the host, and waits:
  // seconds per replay. For measuring what the host costs. Error: the last step was not replayed from a
  // decode graph.
  double replay_last_step(int64_t count);

  bool replayed() const { return graph_ != nullptr; }  // whether the last step came from a graph
  Sampler& sampler() { return sampler_; }
  const RunnerConfig& config() const { return config_; }  // num_kv_blocks is known after the warm-up
  const Batch& batch() const { return batch_; }
  const Model& model() const { return *model_; }
  MemoryPlan memory() const;  // measured on this rank, `other` left out

 private:
  void begin(const SchedulerOutput& step);
  void stage();
  std::shared_ptr<const LaunchedStep> launch_sampling(const Tensor& logits);
  void collect_prompt_positions();
  void launch_prompt_logprobs();
  void take_in_tokens(size_t num_left_unknown);
  ModelInput model_input() const;
  Tensor gather_rows(const Tensor& hidden, std::span<const int64_t> rows, const Tensor& device_rows);
  // warm_up.cpp
  void run_warm_up_step(int64_t num_seqs, int64_t num_tokens, int64_t num_computed_tokens,
                        const SamplingParams& sampling);
  void size_open_cache();
  void allocate_cache();
  void capture_graphs();
  int64_t download_bytes() const;
  const StepGraphs::Graph* find_graph();
  int64_t most_seqs(int64_t rows) const { return std::min(rows, config_.batch.max_num_seqs); }
  bool is_first_rank() const { return tp_group(ctx_).rank() == 0; }

  // The prompt tokens whose log probabilities this step computes.
  struct PromptPositions {
    std::vector<int64_t> rows, top;
    std::vector<size_t> owner;
    std::vector<int32_t> chosen;
    Tensor device_rows, device_chosen;  // i32
  };

  RunnerConfig config_;
  std::unique_ptr<Arena> arena_;
  OpContext ctx_;
  std::unique_ptr<Model> model_;
  std::vector<KvCacheView> kv_caches_;
  Batch batch_;
  DeviceInputs inputs_;
  StepUpload upload_;
  StepDownload download_;
  Sampler sampler_;
  StepGraphs decode_graphs_, mixed_graphs_;

  // Of the step being launched.
  std::optional<ArenaScope> step_scope_;  // what run() and sample() take lives as long as the step
  std::shared_ptr<LaunchedStep> launched_;
  const StepGraphs::Graph* graph_ = nullptr;  // the one it is replayed from
  bool decodes_ = false;                      // and it is a decode graph
  Tensor hidden_;                             // of this step's rows; undefined: the graph has the logits
  PromptPositions prompt_;
  SamplingPlan plan_;
  Tensor logits_;

  std::deque<std::shared_ptr<const LaunchedStep>> unknown_;  // launched, and their tokens not taken in
  int64_t activation_bytes_ = 0;                             // the warm-up's peak
};

}  // namespace ladder
