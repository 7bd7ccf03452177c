// Task 4.2: the warm-up: how much memory the largest steps take, and what is left of a GPU's for the KV
// cache.
#include <algorithm>
#include <limits>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/linear/matmul.h"
#include "step4_runner/model_runner.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

namespace {

constexpr int64_t kSpareBytes = int64_t{16} << 20;
// A layer of a captured graph, at most: its nodes and their arguments. An H200 takes 30 KB (Qwen3-0.6B in
// bf16, one rank).
constexpr int64_t kGraphLayerBytes = int64_t{64} << 10;
// What comes after the cache: kernels that no warm-up step ran, the lists of a step with many penalties.
constexpr int64_t kLateBytes = int64_t{64} << 20;

// The least of what the ranks of the group have; each of them gets it.
int64_t least_of(const OpContext& ctx, Communicator& group, int64_t mine) {
  const Tensor all = Tensor::empty({group.size()}, DType::i64, ctx.device);
  group.all_gather(ctx, Tensor::from<int64_t>({{mine}}, {1}).to(ctx.device), all);
  device_synchronize(ctx.device, ctx.stream);
  const Tensor host = all.to(Device{});
  return *std::min_element(host.data<int64_t>(), host.data<int64_t>() + group.size());
}

}  // namespace

void ModelRunner::allocate_cache() {
  kv_caches_ = allocate_kv_caches(model_->kv_cache_specs(), config_.batch.num_kv_blocks,
                                  slots_of_rank(config_), ctx_.device);
}

// >>> task 4.2.warmup: run the largest steps, give the arena what they took in one piece, and freeze it
double ModelRunner::run_warm_up_step(int64_t num_seqs, int64_t num_tokens, int64_t num_computed_tokens,
                                     const SamplingParams& sampling) {
  SchedulerOutput scheduled;
  for (int64_t i = 0; i < num_seqs; ++i) {
    NewSequence sequence;
    sequence.id = i;
    const int64_t share = num_tokens / num_seqs + (i < num_tokens % num_seqs ? 1 : 0);
    const int64_t count = std::min(share, config_.batch.max_model_len - num_computed_tokens);
    sequence.num_prompt_tokens = num_computed_tokens + count;
    sequence.num_computed_tokens = num_computed_tokens;
    sequence.token_ids.assign(static_cast<size_t>(sequence.num_prompt_tokens), 0);
    sequence.sampling = sampling;
    sequence.block_table.assign(static_cast<size_t>(config_.batch.max_blocks_per_seq()), 0);
    scheduled.scheduled.push_back({i, count, {}});
    scheduled.total_num_tokens += count;
    scheduled.new_sequences.push_back(std::move(sequence));
  }
  Step step = begin(scheduled);
  // The tables of all of them name block 0: nothing may be written there.
  const Tensor& slots = batch_.attention().slot_mapping;
  std::fill_n(slots.data<int64_t>(), slots.numel(), -1);
  // The lists that the sampler stages grow with the tokens that a sequence has used, at most every one of the
  // vocabulary, and with the tokens that requests forbid. On a GPU they are not in the arena.
  if (ctx_.device.is_cpu() && samples()) {
    const int64_t vocab = model_->spec().vocab_size, used = std::min(config_.batch.max_model_len, vocab);
    std::vector<int32_t> all(static_cast<size_t>(vocab));
    std::iota(all.begin(), all.end(), 0);
    for (BatchSequence* sequence : batch_.sampled_sequences()) {
      sequence->counts.update(std::span(all).first(static_cast<size_t>(used)), used);
      SamplingParams& asked = sequence->sampling;
      asked.allowed_token_ids = {static_cast<int32_t>(sequence->id % vocab)};  // a mask of its own
      asked.min_tokens = std::numeric_limits<int64_t>::max();
      asked.all_stop_token_ids.assign(all.begin(), all.begin() + std::min(vocab, kMaxEditedTokens));
    }
  }
  stage(step);
  run(step);
  sample(step);
  step.launched->done->wait();
  unknown_.clear();  // nobody asks for its tokens
  batch_ = Batch(config_.batch, model_->spec().vocab_size);
  return step.launched->done->seconds_since(step.launched->begun);
}

void ModelRunner::run_largest_steps() {
  // One piece, with room to spare, first: memory that grows piece by piece leaves gaps, which the peak would
  // count.
  const MemoryPlan plan = predict_rank_memory(
      model_->spec(), config_, {tp_group(ctx_).rank(), pp_group(ctx_).rank(), cp_group(ctx_).rank()});
  arena_->reserve((ctx_.device.is_cpu() ? 2 : 1) * plan.activations);
  if (config_.num_kv_blocks_is_predicted && kv_caches_.empty())  // one block, which is not written
    kv_caches_ = allocate_kv_caches(model_->kv_cache_specs(), 1, slots_of_rank(config_), ctx_.device);

  // As many rows as a step may have, on as many sequences; on a GPU, whose kernels take scratch for long
  // sequences, also on one, at its end, and as many sequences as there may be at theirs.
  const int64_t rows = config_.batch.max_num_batched_tokens;
  const int64_t num_seqs = std::min(config_.batch.max_num_seqs, rows);
  SamplingParams everything;  // that the sampler can do
  everything.seed = 0;
  everything.min_p = 0.01;
  everything.top_k = 50;
  everything.top_p = 0.9;
  everything.repetition_penalty = 1.1;
  everything.presence_penalty = everything.frequency_penalty = 0.1;
  everything.logprobs = everything.prompt_logprobs = kMaxLogprobs;
  everything.logprob_token_ids.assign(kMaxLogprobTokenIds, 0);
  run_warm_up_step(num_seqs, rows, 0, everything);
  if (!ctx_.device.is_cpu()) {
    run_warm_up_step(1, rows, std::max<int64_t>(config_.batch.max_model_len - rows, 0), everything);
    run_warm_up_step(num_seqs, num_seqs, config_.batch.max_model_len - 1, everything);
    // Where each row may be a sequence of its own that is a decode step: a prompt among so many takes other scratch.
    if (num_seqs == rows && rows > 1)
      run_warm_up_step(rows - 1, rows, std::max<int64_t>(config_.batch.max_model_len - 2, 0), everything);
    // A kernel that runs for the first time is loaded, which no request should wait for, and takes memory.
    for (size_t context = contexts_.size(); context-- > 0;) {
      select_context(context);
      for (const int64_t count : row_classes(rows)) run_warm_up_step(std::min(count, num_seqs), count, 0, {});
    }
  }

  activation_bytes_ = arena_->peak_bytes();
  arena_ = std::make_unique<Arena>(ctx_.device);
  ctx_.arena = arena_.get();
  // With room to spare: an operator's scratch need not grow evenly with the rows, and untouched memory costs
  // nothing on a CPU.
  arena_->reserve(activation_bytes_ + activation_bytes_ / (ctx_.device.is_cpu() ? 4 : 16) + kSpareBytes);
}

void ModelRunner::end_warm_up() {
  for (size_t context = contexts_.size(); context-- > 0;) {
    select_context(context);
    if (!ctx_.device.is_cpu() && config_.cuda_graphs) capture_graphs();
  }
  arena_->freeze();
  batch_ = Batch(config_.batch, model_->spec().vocab_size);
}

// The GPU's memory holds everything now but the cache, the graphs and what comes late. (The inputs are made
// anew for the length that the cache allows, before the cache: they are no larger than before.)
void ModelRunner::size_cache(std::span<const ModelRunner* const> sharers) {
  if (!config_.num_kv_blocks_is_predicted) return;
  kv_caches_.clear();
  device_synchronize(ctx_.device, ctx_.stream);
  const MachineMemory memory = memory_of(ctx_.device);
  const int stage = pp_group(ctx_).rank();
  int64_t used = memory.total - memory.available + graph_bytes() + kLateBytes;
  for (const ModelRunner* sharer : sharers) used += sharer->graph_bytes() + kLateBytes;
  config_ = size_kv_cache(model_->spec(), config_, memory.total, used, stage);
  // All ranks have the same blocks: as many as the one with the least room. Replicas that share out experts too, as the graphs
  // that they capture together depend on what length a cache allows.
  Communicator* const experts = ctx_.parallel != nullptr ? ctx_.parallel->ep : &single_rank();
  for (Communicator* group : {&tp_group(ctx_), &pp_group(ctx_), &cp_group(ctx_), experts}) {
    config_.batch.num_kv_blocks = least_of(ctx_, *group, config_.batch.num_kv_blocks);
    config_.batch.max_model_len = least_of(ctx_, *group, config_.batch.max_model_len);
  }
  batch_ = Batch(config_.batch, model_->spec().vocab_size);
  inputs_ = DeviceInputs(ctx_.device, config_.batch);
  allocate_cache();
}
// <<< task 4.2.warmup

void ModelRunner::warm_up() {
  run_largest_steps();
  size_cache();
  end_warm_up();
}

int64_t ModelRunner::graph_bytes() const {
  if (!config_.cuda_graphs) return 0;
  const int64_t num_graphs = (std::ssize(decode_sizes()) + std::ssize(mixed_sizes())) * std::ssize(contexts_);
  return num_graphs * std::ssize(model_->kv_cache_specs()) * kGraphLayerBytes;
}

void ModelRunner::take_over_cache(const ModelRunner& owner) {
  config_.batch.num_kv_blocks = owner.config_.batch.num_kv_blocks;
  config_.batch.max_model_len = owner.config_.batch.max_model_len;
  config_.num_kv_blocks_is_predicted = false;
  batch_ = Batch(config_.batch, model_->spec().vocab_size);
  inputs_ = DeviceInputs(ctx_.device, config_.batch);
  kv_caches_ = owner.kv_caches_;
}

double ModelRunner::measure_step(int64_t num_seqs, int64_t num_tokens, int64_t num_computed_tokens) {
  double best = run_warm_up_step(num_seqs, num_tokens, num_computed_tokens, {});
  for (int i = 0; i < 2; ++i)
    best = std::min(best, run_warm_up_step(num_seqs, num_tokens, num_computed_tokens, {}));
  return best;
}

void ModelRunner::replay_graphs() {
  if (ctx_.device.is_cpu() || !config_.cuda_graphs) return;
  SamplingParams greedy;
  greedy.temperature = 0;
  for (size_t context = contexts_.size(); context-- > 0;) {
    select_context(context);
    GraphSize before;
    for (const GraphSize& size : decode_sizes()) {
      // Of two of as many rows the second one is for sequences that are too long for the first.
      run_warm_up_step(size.rows, size.rows, size.rows == before.rows ? before.max_seq_len : 0, greedy);
      before = size;
    }
  }
}

}  // namespace ladder
