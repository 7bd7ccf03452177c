#pragma once
// Tasks 4.2 to 4.6: one rank's share of a step.
//
//   prepare(scheduled)  the persistent batch applies what changed and lays out the rows, which travel to the
//                       device
//   run(step)           the model, then the LM head on the rows that yield a token
//   sample(step)        the first rank draws and broadcasts the tokens; the batch gets placeholders for them
//
// launch() is the three in a row. On a GPU none of them waits: what launch() returns is collected when the
// step is done, and the next step may be launched before, its unknown tokens filled in on the device. A step
// that is not too long is then replayed from a captured graph. Every rank runs the same steps, so their
// batches stay the same.
//
// In a pipeline this is one stage: run() begins with the hidden states of the stage before and ends by sending its own to
// the next; only the last stage has an LM head and samples. The tokens come to the batches of all stages with a later
// step (KnownTokens): nobody waits but a stage for the one before it.
//
//   model_runner.cpp    4.4.runner  launch() and its stages
//   warm_up.cpp         4.2.warmup  the largest steps, and what is left for the cache
//   prompt_logprobs.cpp 4.3.prompt  log probabilities of prompts
//   stage_step.cpp      4.5.inputs  steps ahead: which tokens are waited for, and one copy of all that a step needs
//   replay_step.cpp     4.6         which steps are replayed from a graph, and their capture
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/context.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/distributed/measured_communicator.h"
#include "step2_model/model.h"
#include "step3_sequence/step_phase.h"
#include "step4_runner/batch.h"
#include "step4_runner/device_inputs.h"
#include "step4_runner/executor.h"
#include "step4_runner/kv_cache_size.h"
#include "step4_runner/launched_step.h"
#include "step4_runner/sampler.h"
#include "step4_runner/step_graphs.h"
#include "step4_runner/step_io.h"

namespace ladder {

class ModelRunner {
 public:
  // Rows of the LM head at a time where every prompt position needs logits: [kLogitsRows, vocab] is the most
  // that a long prompt's log probabilities take.
  static constexpr int64_t kLogitsRows = 128;
  // Steps that may be launched and not collected, where there is no pipeline.
  static constexpr int kMaxInFlight = 2;

  // `config` is resolved; `ctx` carries the device, the parallel groups and the kernels. Allocates the KV
  // cache, unless the warm-up has to measure its size.
  ModelRunner(const OpContext& ctx, const RunnerConfig& config, std::shared_ptr<Model> model);
  // A second one over the model and the cache of `owner`, which outlives it: its steps may run on another thread, and on
  // another stream of the device, while those of `owner` do (step 8, 8.7.lanes). Made when `owner` has run its largest steps.
  // Of `config` the sizes of a step are its own.
  ModelRunner(const OpContext& ctx, const RunnerConfig& config, const ModelRunner& owner);
  ~ModelRunner();  // waits for what is in flight

  // Before the warm-up. Its steps are of one phase: graphs of the other's are not captured.
  void serve_phase(StepPhase phase) { phase_ = phase; }
  // Before the warm-up. Other streams of the device that steps may run on, for one on some of its multiprocessors (step 8,
  // 8.7.border); the runner's own is number 0. Of each context the stream and CudaContext are taken. All are warmed up, and have
  // graphs of their own: a graph runs where it was captured.
  void add_contexts(std::span<const OpContext> others);
  // The context of the steps that are launched from now on; they begin when those before them are done.
  void select_context(size_t index);
  size_t num_contexts() const { return contexts_.size(); }
  // After the warm-up. How long the device takes for a step of so many sequences that compute num_tokens together, each
  // behind num_computed_tokens, in the selected context: the shortest of three. Nothing is written into the cache.
  double measure_step(int64_t num_seqs, int64_t num_tokens, int64_t num_computed_tokens);
  // After the warm-up: a greedy step from every decode graph of every context. What runs for the first time is brought to the GPU,
  // and may wait for whatever runs on other streams, on an H200 for the whole step of a prompt; and which argmax a step takes
  // depends on its rows and on the multiprocessors.
  void replay_graphs();

  // Runs the largest steps there can be, so that the arena is as large as it will ever have to be, and
  // freezes it. On a GPU the KV cache, where its size was predicted, gets what is left of the memory, and the
  // graphs are captured. Error: no memory is left.
  void warm_up();
  // The same in parts. Of runners that share a cache each runs its largest steps; then the owner makes room in the cache, and
  // each other one takes it over; then each ends.
  void run_largest_steps();
  void size_cache(std::span<const ModelRunner* const> sharers = {});
  void take_over_cache(const ModelRunner& owner);
  void end_warm_up();

  // At most max_steps_in_flight() (rank_grid.h) launched steps may be uncollected. The answer may be collected on another
  // thread, in a pipeline that of the last stage. `known`: in a pipeline the tokens of the next steps whose tokens were
  // not given before, oldest first. Error: a sequence computes a token that is not among them.
  std::shared_ptr<const LaunchedStep> launch(const SchedulerOutput& step,
                                             std::span<const KnownTokens> known = {});
  StepOutput execute(const SchedulerOutput& step) { return launch(step)->collect(); }

  // The prompt tokens whose log probabilities a step computes.
  struct PromptPositions {
    std::vector<int64_t> rows;
    std::vector<WantedLogprobs> wanted;
    std::vector<size_t> owner;
    std::vector<int32_t> chosen;
    Tensor device_rows, device_chosen, device_selected;  // i32
  };
  // A step that is being launched: what each stage leaves for those after it.
  struct Step {
    std::unique_ptr<ArenaScope> memory;  // what the stages take of the arena
    std::shared_ptr<LaunchedStep> launched;
    PromptPositions prompt;
    const StepGraphs::Graph* graph = nullptr;  // it is replayed from; nullptr: launched kernel by kernel
    bool graph_has_logits = false;             // and that is a decode graph
    SamplingPlan plan;
    Tensor hidden;  // [rows, hidden_size]; undefined: the graph has the logits
    Tensor
        logits;  // f32 [rows that yield a token, vocab], raw until sample(); undefined: there are none here
  };
  // begin() and stage(): the batch is prepared, and the inputs are on their way to where the kernels read them. Error,
  // where RunnerConfig::check_batches asks: other ranks have another batch.
  Step prepare(const SchedulerOutput& scheduled);
  // Leaves the hidden states in step.hidden, and on the first rank in step.logits a row for each of the batch's
  // logits_indices(); without such rows the LM head does not run. A step that has a graph is replayed from it. In a
  // pipeline the hidden states of the stage before come first, and this stage's go to the next one instead of the head.
  void run(Step& step);
  // At most once; then step.launched can be collected. The first rank of the last stage draws (on the CPU it plans here,
  // too), all of that stage get the tokens in the inputs' sampled_ids(), and they come back with the step. What the
  // download and the upload have of the step is kept until its event `done`, which is recorded last; the batch advances
  // when its rows were read, and the step's tokens are unknown until fill_in_tokens() or learn() comes to them.
  void sample(Step& step);

  // Replays the last step's graph and draw, `count` times in a row with no other work of the host, and waits:
  // seconds per replay. For measuring what the host costs. Error: the last step was not replayed from a
  // decode graph.
  double replay_last_step(int64_t count);

  Sampler& sampler() { return sampler_; }
  const RunnerConfig& config() const { return config_; }  // num_kv_blocks is known after the warm-up
  const Batch& batch() const { return batch_; }
  const Model& model() const { return *model_; }
  const std::vector<KvCacheView>& kv_caches() const { return kv_caches_; }  // after the warm-up they stay
  bool samples() const { return is_last_stage() && tp_group(ctx_).rank() == 0 && cp_group(ctx_).rank() == 0; }
  MemoryPlan memory() const;  // measured on this rank, `other` left out

 private:
  // A step that has its memory, and whose batch is prepared. On the CPU every token is filled in before.
  Step begin(const SchedulerOutput& scheduled);
  // In a pipeline: the tokens of the oldest steps that are not known yet. Error: they are another step's.
  void learn(std::span<const KnownTokens> known);
  // Error: the step computes a token that nobody has told.
  void expect_known_tokens() const;
  // Without a pipeline: tokens of the oldest launched steps replace their placeholders in the batch, until no more than this many
  // steps are left whose tokens it does not know. Waits for those it fills in.
  void fill_in_tokens(size_t num_left_unknown);
  // The hidden states of the stage before, in received_.
  void receive(Step& step, int64_t rows);
  ModelInput model_input() const;
  void measure_groups();
  Tensor gather_rows(const Tensor& hidden, std::span<const int64_t> rows, const Tensor& device_rows);
  // prompt_logprobs.cpp
  // What of the batch's prompts this step computes and a request wants: each row whose next token is a prompt token.
  PromptPositions prompt_positions() const;
  void stage_prompt_positions(
      PromptPositions& prompt);  // takes its device_* from the upload, and writes them
  // Launches their log probabilities, kLogitsRows at a time, into step.launched; on the first rank.
  void launch_prompt_logprobs(Step& step);
  // stage_step.cpp
  void stage(Step& step);
  // On a device. The batch is prepared while the step before runs, whose tokens are placeholders; those of the
  // step before that are waited for (in a pipeline nothing is: learn()). Where a sequence samples by its tokens (Sampler::needs_tokens), all are.
  void prepare_ahead(const SchedulerOutput& scheduled);
  // On a device. Chooses the graph, plans the sampling, stages all inputs and sends them in one copy of
  // upload_bytes() at most; the download gets room for download_bytes(). Waits for nothing.
  void stage_ahead(Step& step);
  int64_t upload_bytes(const Step& step, int64_t rows) const;
  int64_t download_bytes(const Step& step) const;
  // warm_up.cpp
  // Seconds of the device, 0 on a CPU.
  double run_warm_up_step(int64_t num_seqs, int64_t num_tokens, int64_t num_computed_tokens,
                          const SamplingParams& sampling);
  void allocate_cache();
  int64_t graph_bytes() const;  // of all that are going to be captured, at most
  // replay_step.cpp
  // The graph of step.graph, if one has room: a decode graph where every sequence computes one token and yields one, a
  // mixed one where some sequence computes more.
  void choose_graph(Step& step) const;
  // All of them, in the selected context, over a batch of spare rows: what a captured step reads on the host is a bound
  // (view_padded).
  void capture_graphs();
  // Those of the phase.
  std::vector<GraphSize> decode_sizes() const;
  std::vector<GraphSize> mixed_sizes() const;
  // Launches the graph. What it leaves in the arena is in use until the step's memory is given back; a decode graph's
  // output are the logits (of its first rows), a mixed one's the hidden states.
  void replay(Step& step);
  int64_t max_seqs(int64_t rows) const { return std::min(rows, config_.batch.max_num_seqs); }
  bool is_first_stage() const { return pp_group(ctx_).rank() == 0; }
  bool is_last_stage() const { return pp_group(ctx_).rank() + 1 == pp_group(ctx_).size(); }
  bool is_pipeline() const { return pp_group(ctx_).size() > 1; }

  RunnerConfig config_;
  std::unique_ptr<Arena> arena_;
  OpContext ctx_;
  std::shared_ptr<Model> model_;
  std::vector<KvCacheView> kv_caches_;
  Batch batch_;
  DeviceInputs inputs_;
  // On the CPU: the groups of ctx_, measured.
  std::unique_ptr<MeasuredCommunicator> measured_tp_, measured_pp_, measured_ep_, measured_cp_;
  ParallelContext measured_groups_;
  Tensor
      received_;  // [max_num_batched_tokens, hidden_size] of the stage before, where graphs know it; the first has none
  StepUpload upload_;
  StepDownload download_;
  Sampler sampler_;
  struct Graphs {
    StepGraphs decode, mixed;
  };
  std::vector<OpContext> contexts_;  // their streams and CudaContexts
  size_t context_ = 0;               // that ctx_ is
  std::vector<Graphs> graphs_;       // of contexts_
  StepPhase phase_ = StepPhase::any;

  // What replay_last_step() runs again.
  const StepGraphs::Graph* last_graph_ = nullptr;
  SamplingPlan last_plan_;

  std::deque<std::shared_ptr<const LaunchedStep>> unknown_;  // launched, their tokens not filled in
  int64_t activation_bytes_ = 0;                             // the warm-up's peak
};

}  // namespace ladder
