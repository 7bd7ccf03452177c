#include "step4_runner/kv_cache_size.h"

#include <algorithm>
#include <cstring>

#include "step1_layers/attention/kv_codes.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step4_runner/kv_cache_piece.h"
#include "step4_runner/rank_grid.h"
#include "step4_runner/redundant_experts.h"

namespace ladder {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kDevicePage = 2 * kMiB;  // a GPU gives memory out in pieces of this size

void expect_range(int64_t value, FlagRange range, const char* flag) {
  LADDER_CHECK(value >= range.min && value <= range.max, "{} is {}, expected {} to {}", flag, value,
               range.min, range.max);
}

// Positions that the model's rotary embedding is made for: what --max-model-len becomes where it is not set.
int64_t model_positions(const DecoderSpec& spec) {
  const double own = static_cast<double>(spec.max_position_embeddings);
  double positions = own;
  if (spec.rope.kind == RopeKind::linear) positions = own * spec.rope.factor;
  if (spec.rope.kind == RopeKind::yarn)
    positions =
        std::max(own, static_cast<double>(spec.rope.original_max_position_embeddings) * spec.rope.factor);
  return static_cast<int64_t>(std::clamp(positions, 1.0, static_cast<double>(kMaxModelLenRange.max)));
}

// Dynamic NTK stretches to whatever length it is asked for, and is exact for its own length if it is not
// asked.
int64_t max_positions(const DecoderSpec& spec) {
  return spec.rope.kind == RopeKind::dynamic_ntk ? kMaxModelLenRange.max : model_positions(spec);
}

// Whole heads on every rank, and of experts a share of each one's width or at least one whole expert. KV heads may be fewer than ranks: neighbours then hold the same one.
bool can_be_split(const DecoderSpec& spec, int64_t ranks, bool whole_experts) {
  const bool has_dense = spec.num_expert_layers() < spec.num_layers;
  return spec.num_heads % ranks == 0 && (!has_dense || spec.intermediate_size % ranks == 0) &&
         (whole_experts ? spec.experts.num_experts >= ranks : spec.experts.intermediate_size % ranks == 0) &&
         spec.experts.shared_intermediate_size % ranks == 0 &&
         (spec.num_kv_heads % ranks == 0 || ranks % spec.num_kv_heads == 0);
}

// "MLP of 3072", "experts of 1408 and 5632"
std::string mlp_widths(const DecoderSpec& spec) {
  std::string text;
  if (spec.num_expert_layers() < spec.num_layers) text = fmt::format("MLP of {}", spec.intermediate_size);
  if (spec.num_expert_layers() == 0) return text;
  text += fmt::format("{}experts of {}", text.empty() ? "" : " and ", spec.experts.intermediate_size);
  if (spec.experts.shared_intermediate_size > 0)
    text += fmt::format(" and {}", spec.experts.shared_intermediate_size);
  return text;
}

// What is split beside whole experts: ", MLP of 3072", ", shared expert of 5632".
std::string other_widths(const DecoderSpec& spec) {
  std::string text;
  if (spec.num_expert_layers() < spec.num_layers) text = fmt::format(", MLP of {}", spec.intermediate_size);
  if (spec.experts.shared_intermediate_size > 0)
    text += fmt::format(", shared expert of {}", spec.experts.shared_intermediate_size);
  return text;
}

std::string sizes_that_fit(const DecoderSpec& spec, bool whole_experts) {
  std::vector<int64_t> sizes;
  for (int64_t ranks = 1; ranks <= std::min(spec.num_heads, kTensorParallelSizeRange.max); ++ranks)
    if (can_be_split(spec, ranks, whole_experts)) sizes.push_back(ranks);
  const int64_t last = sizes.back();
  sizes.pop_back();
  return sizes.empty() ? std::to_string(last) : fmt::format("{} or {}", fmt::join(sizes, ", "), last);
}

void check_decode_context(const DecoderSpec& spec, const RunnerConfig& config) {
  const int64_t ranks = config.decode_context_parallel_size, run = config.kv_interleave_size;
  LADDER_CHECK(
      ranks > 1 || run == 1,
      "--cp-kv-cache-interleave-size {}: expected --decode-context-parallel-size, whose ranks take so many tokens "
      "in turns",
      run);
  if (ranks == 1) return;
  const int64_t sharing = std::max<int64_t>(config.tensor_parallel_size / spec.num_kv_heads, 1);
  LADDER_CHECK(
      ranks >= 1 && sharing % ranks == 0,
      "--decode-context-parallel-size {}: with --tensor-parallel-size {} each of the model's {} KV heads is on {} "
      "rank{}: expected a divisor of that",
      ranks, config.tensor_parallel_size, spec.num_kv_heads, sharing, sharing == 1 ? "" : "s");
  LADDER_CHECK(run >= 1 && run <= kBlockSizeRange.max && config.batch.block_size % (ranks * run) == 0,
               "--block-size {}: expected a multiple of --decode-context-parallel-size {} times "
               "--cp-kv-cache-interleave-size {}",
               config.batch.block_size, ranks, run);
}

void check_kv_cache_dtype(const RunnerConfig& config) {
  if (config.kv_cache_dtype == KvCacheDType::automatic) return;
  const std::string_view name = kv_cache_dtype_name(config.kv_cache_dtype);
  LADDER_CHECK(config.decode_context_parallel_size == 1 && config.prefill_context_parallel_size == 1,
               "--kv-cache-dtype {}: expected auto, as ranks that share out a context exchange keys as they "
               "are (--{}-context-parallel-size {})",
               name, config.decode_context_parallel_size > 1 ? "decode" : "prefill",
               std::max(config.decode_context_parallel_size, config.prefill_context_parallel_size));
}

void check_prefill_context(const RunnerConfig& config) {
  const int64_t ranks = config.prefill_context_parallel_size;
  expect_range(ranks, kPrefillContextParallelSizeRange, "--prefill-context-parallel-size");
  if (ranks == 1) return;
  LADDER_CHECK(
      config.decode_context_parallel_size == 1,
      "--prefill-context-parallel-size {} and --decode-context-parallel-size {}: expected one of them, as "
      "with the first every rank keeps all keys",
      ranks, config.decode_context_parallel_size);
  LADDER_CHECK(!config.expert_parallel,
               "--prefill-context-parallel-size {}: expected no --enable-expert-parallel, whose experts are "
               "shared out over tensor-parallel ranks alone",
               ranks);
  LADDER_CHECK(
      config.expert_replicas == 1,
      "--prefill-context-parallel-size {}: expected no --data-parallel-split-experts, whose experts are "
      "split over tensor-parallel ranks of the replicas alone",
      ranks);
}

void check_balanced_experts(const DecoderSpec& spec, const RunnerConfig& config) {
  LADDER_CHECK(config.num_redundant_experts == 0 || config.balance_experts,
               "--num-redundant-experts {}: expected --enable-eplb, which says what they are copies of",
               config.num_redundant_experts);
  if (!config.balance_experts) return;
  LADDER_CHECK(
      config.expert_parallel,
      "--enable-eplb: expected --enable-expert-parallel, with which ranks have whole experts to move");
  check_redundant_experts(spec.experts.num_experts, num_expert_ranks(config), config.num_redundant_experts);
}

void check_flags(const DecoderSpec& spec, const RunnerConfig& config) {
  const BatchConfig& batch = config.batch;
  expect_range(batch.max_num_seqs, kMaxNumSeqsRange, "--max-num-seqs");
  expect_range(batch.max_num_batched_tokens, kMaxNumBatchedTokensRange, "--max-num-batched-tokens");
  if (batch.max_model_len != 0)
    expect_range(batch.max_model_len, {kMaxModelLenRange.min, max_positions(spec)}, "--max-model-len");
  expect_range(batch.block_size, kBlockSizeRange, "--block-size");
  if (batch.num_kv_blocks != 0) expect_range(batch.num_kv_blocks, kNumKvBlocksRange, "--num-kv-blocks");
  expect_range(config.kv_memory, {0, int64_t{1} << 50}, "--kv-memory");
  if (config.threads != 0) expect_range(config.threads, kThreadsRange, "--threads");
  expect_range(config.tensor_parallel_size, kTensorParallelSizeRange, "--tensor-parallel-size");
  expect_range(config.pipeline_parallel_size, kPipelineParallelSizeRange, "--pipeline-parallel-size");
  const bool whole_experts = config.expert_parallel;
  LADDER_CHECK(!whole_experts || spec.num_expert_layers() > 0,
               "--enable-expert-parallel: the model has no experts, expected a mixture of experts");
  LADDER_CHECK(
      can_be_split(spec, config.tensor_parallel_size, whole_experts),
      "--tensor-parallel-size {} does not fit the model's {} heads, {} key/value heads and {}: expected {}",
      config.tensor_parallel_size, spec.num_heads, spec.num_kv_heads,
      whole_experts ? fmt::format("{} experts{}", spec.experts.num_experts, other_widths(spec))
                    : mlp_widths(spec),
      sizes_that_fit(spec, whole_experts));
  LADDER_CHECK(config.expert_replicas == 1 || spec.num_expert_layers() > 0,
               "--data-parallel-split-experts: the model has no experts, expected a mixture of experts");
  LADDER_CHECK(whole_experts || spec.experts.intermediate_size % num_expert_ranks(config) == 0,
               "--data-parallel-split-experts: the experts' width of {} over the {} ranks of {} replicas "
               "(--data-parallel-size): expected a divisor of it",
               spec.experts.intermediate_size, num_expert_ranks(config), config.expert_replicas);
  LADDER_CHECK(
      !whole_experts || config.expert_replicas == 1 || spec.experts.num_experts >= num_expert_ranks(config),
      "--enable-expert-parallel: the model's {} experts are fewer than the {} ranks of {} replicas "
      "(--data-parallel-size)",
      spec.experts.num_experts, num_expert_ranks(config), config.expert_replicas);
  check_balanced_experts(spec, config);
  check_kv_cache_dtype(config);
  check_decode_context(spec, config);
  check_prefill_context(config);
  LADDER_CHECK(config.pipeline_parallel_size <= spec.num_layers,
               "--pipeline-parallel-size {}: the model has {} layers, and each stage needs one",
               config.pipeline_parallel_size, spec.num_layers);
  if (config.stage_ends.empty()) return;
  bool ascend = std::ssize(config.stage_ends) == config.pipeline_parallel_size && config.stage_ends[0] > 0 &&
                config.stage_ends.back() == spec.num_layers;
  for (size_t stage = 1; stage < config.stage_ends.size(); ++stage)
    ascend &= config.stage_ends[stage] > config.stage_ends[stage - 1];
  LADDER_CHECK(
      ascend,
      "--pipeline-layers: expected {} numbers of layers, each at least 1, that add up to {}; the stages would "
      "end at {}",
      config.pipeline_parallel_size, spec.num_layers, fmt::join(config.stage_ends, ", "));
}

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / kMiB;
}

// K and V of every layer of a rank are allocations of their own.
int64_t num_cache_tensors(const DecoderSpec& spec, const RunnerConfig& config, int stage) {
  return 2 * layers_of(config, spec.num_layers, stage).size();
}

// What the cache takes from the GPU of a rank.
int64_t device_cache_bytes(const DecoderSpec& spec, const RunnerConfig& config, int stage) {
  const int64_t tensors = num_cache_tensors(spec, config, stage);
  const int64_t bytes = rank_kv_bytes_per_token(spec, config, stage) * slots_of_rank(config) *
                        config.batch.num_kv_blocks / tensors;
  return tensors * ((bytes + kDevicePage - 1) / kDevicePage * kDevicePage);
}

// A cache of a size that was asked for. What the libraries and the graphs take is not known yet, so that
// what passes may still be a little too much; what does not pass is too much in any case.
void expect_room(const DecoderSpec& spec, const RunnerConfig& config, MachineMemory memory) {
  if (config.device.is_cpu()) return;
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage) {
    const MemoryPlan plan = predict_rank_memory(spec, config, {0, stage});
    const int64_t cache = device_cache_bytes(spec, config, stage), beside = plan.weights + plan.activations;
    LADDER_CHECK(
        cache + beside <= memory.available,
        "out of GPU memory: the KV cache takes {:.1f} MiB and the model {:.1f} MiB beside it, together {:.1f}, "
        "and {} has {:.1f} of {:.1f} MiB free: expected a lower {}{}",
        mib(cache), mib(beside), mib(cache + beside), device_name(config.device), mib(memory.available),
        mib(memory.total), config.kv_memory > 0 ? "--kv-memory" : "--num-kv-blocks",
        beside <= memory.available ? "" : ", and a smaller model or lower --max-num-batched-tokens");
  }
}

// The cache is known: an open length becomes what it holds. `flag`: what would make it larger.
void fit_length(const DecoderSpec& spec, RunnerConfig& config, const char* flag) {
  const int64_t num_slots = config.batch.num_kv_blocks * config.batch.block_size;
  if (config.max_model_len_is_default)
    config.batch.max_model_len = std::min(config.batch.max_model_len, num_slots);
  LADDER_CHECK(
      num_slots >= config.batch.max_model_len,
      "the KV cache ({:.1f} MiB, {} blocks of {} tokens) does not hold one sequence of --max-model-len {}: "
      "raise {} or lower --max-model-len",
      mib(kv_bytes_per_token(spec, config) * num_slots), config.batch.num_kv_blocks, config.batch.block_size,
      config.batch.max_model_len, flag);
}

// What the GPUs' caches may have before anything is measured: the rank with the least room decides.
RunnerConfig predict_kv_cache(const DecoderSpec& spec, const RunnerConfig& config, MachineMemory memory) {
  RunnerConfig smallest = config;
  for (int stage = 0; stage < config.pipeline_parallel_size; ++stage) {
    const int64_t used =
        memory.total - memory.available + predict_rank_memory(spec, config, {0, stage}).total();
    const RunnerConfig sized = size_kv_cache(spec, config, memory.total, used, stage);
    if (stage == 0 || sized.batch.num_kv_blocks < smallest.batch.num_kv_blocks) smallest = sized;
  }
  return smallest;
}

// What the CPU's cache may have where neither --num-kv-blocks nor --kv-memory is set.
int64_t host_cache_budget(const DecoderSpec& spec, const RunnerConfig& config, MachineMemory memory,
                          int64_t block_bytes) {
  const MemoryPlan plan = predict_memory(spec, config);  // the cache not counted: it has no blocks yet
  const int64_t left = std::max<int64_t>(memory.available - plan.total(), 0) / 10 * 9;
  LADDER_CHECK(
      left >= block_bytes,
      "the model needs {:.1f} MiB beside its KV cache, and of this machine's memory {:.1f} MiB are free for it: "
      "expected a smaller model, a smaller --dtype, or fewer replicas here",
      mib(plan.total()), mib(memory.available));
  return std::min({memory.total / 4, int64_t{4096} * kMiB, left});
}

}  // namespace

// >>> task 4.2.sizes: settle how many blocks the cache has and how long a sequence may be
RunnerConfig size_kv_cache(const DecoderSpec& spec, RunnerConfig config, int64_t total, int64_t used,
                           int stage) {
  const int64_t tensors = num_cache_tensors(spec, config, stage);
  const int64_t block_bytes =
      rank_kv_bytes_per_token(spec, config, stage) * slots_of_rank(config) / tensors;  // of one tensor
  const auto budget = static_cast<int64_t>(static_cast<double>(total) * config.gpu_memory_utilization) - used;
  const int64_t tensor_budget = std::max<int64_t>(budget, 0) / tensors / kDevicePage * kDevicePage;
  LADDER_CHECK(
      tensor_budget >= block_bytes,
      "the model needs {:.1f} MiB beside its KV cache, what others hold of {}'s memory included, and "
      "--gpu-memory-utilization {} of its {:.1f} MiB is {:.1f}: expected a higher --gpu-memory-utilization, "
      "a smaller model, or lower --max-num-batched-tokens or --max-num-seqs",
      mib(used), device_name(config.device), config.gpu_memory_utilization, mib(total),
      mib(static_cast<int64_t>(static_cast<double>(total) * config.gpu_memory_utilization)));
  config.batch.num_kv_blocks = std::min<int64_t>(tensor_budget / block_bytes, kNumKvBlocksRange.max);
  fit_length(spec, config, "--gpu-memory-utilization");
  return config;
}

RunnerConfig resolve_runner_config(const DecoderSpec& spec, RunnerConfig config, MachineMemory memory) {
  const BatchConfig limits = default_batch_limits(config.device.type);
  if (config.batch.max_num_seqs == 0) config.batch.max_num_seqs = limits.max_num_seqs;
  if (config.batch.max_num_batched_tokens == 0)  // room for a token of every sequence
    config.batch.max_num_batched_tokens = std::max(limits.max_num_batched_tokens, config.batch.max_num_seqs);
  check_flags(spec, config);
  if (config.threads == 0) config.threads = num_threads();
  if (config.batch.max_model_len == 0) {
    config.max_model_len_is_default = true;
    config.batch.max_model_len = model_positions(spec);
  }
  if (config.batch.num_kv_blocks > 0 && !config.num_kv_blocks_is_predicted) {
    fit_length(spec, config, "--num-kv-blocks");
    expect_room(spec, config, memory);
    return config;
  }
  const int64_t block_bytes = kv_bytes_per_token(spec, config) * config.batch.block_size;
  if (config.kv_memory == 0 && !config.device.is_cpu()) {
    config.num_kv_blocks_is_predicted = true;
    config.batch.num_kv_blocks = 0;  // not counted in what the rest takes
    return predict_kv_cache(spec, config, memory);
  }
  int64_t budget = config.kv_memory;
  int64_t max_blocks = kNumKvBlocksRange.max;
  if (budget == 0) {
    budget = host_cache_budget(spec, config, memory, block_bytes);
    max_blocks = config.batch.max_num_seqs *
                 ((config.batch.max_model_len + config.batch.block_size - 1) / config.batch.block_size);
  }
  config.batch.num_kv_blocks = std::min(budget / block_bytes, max_blocks);
  LADDER_CHECK(config.batch.num_kv_blocks > 0,
               "--kv-memory: expected at least the {} bytes of one KV block, found {}", block_bytes, budget);
  fit_length(spec, config, "--kv-memory");
  expect_room(spec, config, memory);
  return config;
}

RunnerConfig resolve_runner_config(const DecoderSpec& spec, const RunnerConfig& config) {
  return resolve_runner_config(spec, config, memory_of(config.device));
}
// <<< task 4.2.sizes

// Written by all threads at once: the first touch of a page is what makes the system find memory for it.
static Tensor touched(const Shape& shape, DType dtype) {
  Tensor tensor = Tensor::empty(shape, dtype);
  parallel_for(tensor.nbytes(), kMiB, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(tensor.raw()) + begin, 0, static_cast<size_t>(end - begin));
  });
  return tensor;
}

std::vector<KvCacheView> allocate_kv_caches(std::span<const KvCacheSpec> specs, int64_t num_blocks,
                                            int64_t block_size, Device device) {
  if (!device.is_cpu()) {
    const int64_t size = kv_piece_bytes(specs, num_blocks, block_size);
    const std::shared_ptr<void> memory = device_allocate(device, size);
    device_fill(memory.get(), device, 0, size);
    return kv_caches_in(memory, size, specs, num_blocks, block_size, device);
  }
  std::vector<KvCacheView> caches;
  for (const KvCacheSpec& spec : specs)
    caches.push_back(make_kv_cache(spec, num_blocks, block_size, touched));
  return caches;
}

}  // namespace ladder
