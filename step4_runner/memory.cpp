#include "step4_runner/memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "step3_sequence/sampling_params.h"
#include "step4_runner/model_runner.h"
#include "step4_runner/weight_bytes.h"

namespace ladder {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// The CUDA context, the kernels, the matrix library's workspace, the captured graphs.
constexpr int64_t kDeviceOverhead = 1024 * kMiB;

// The number after `key` in a file of "key value" lines, or the whole file's where key is empty; -1: none.
int64_t read_number(const char* path, const std::string& key = {}) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  int64_t value = -1;
  return file >> value ? value : -1;
}

// One rank's width of what is split over the ranks; a KV head stays whole.
struct RankWidths {
  int64_t q, kv, mlp, expert, shared_expert, vocab;
};

RankWidths rank_widths(const DecoderSpec& spec, const RunnerConfig& config) {
  const int64_t ranks = config.tensor_parallel_size;
  return {spec.num_heads / ranks * spec.head_dim,
          std::max<int64_t>(spec.num_kv_heads / ranks, 1) * spec.head_dim,
          spec.intermediate_size / ranks,
          spec.experts.intermediate_size / (config.expert_parallel ? 1 : num_expert_ranks(config)),
          spec.experts.shared_intermediate_size / ranks,
          (spec.vocab_size + ranks - 1) / ranks};
}

// K and V of one token, of one layer of one rank.
int64_t layer_kv_bytes(const DecoderSpec& spec, const RunnerConfig& config) {
  const int64_t heads = rank_widths(spec, config).kv / spec.head_dim;
  return heads * 2 * kv_head_bytes(config.kv_cache_dtype, config.dtype, spec.head_dim);
}

// Of a layer with experts, which all tokens of a step go to: the norm's output, the router's, and what the experts that
// run at a time leave behind, their results in float.
int64_t mixture_bytes(const DecoderSpec& spec, const RankWidths& widths, int64_t rows, int64_t element) {
  const int64_t hidden = spec.hidden_size, top_k = spec.experts.rule.top_k;
  const int64_t routed =
      spec.experts.num_experts * dtype_size(DType::f32) + 2 * top_k * dtype_size(DType::i32);
  const int64_t results = top_k * (hidden * dtype_size(DType::f32) + 2 * dtype_size(DType::i32));
  const int64_t one_expert = (hidden + 3 * std::max(widths.expert, widths.shared_expert)) * element;
  return rows * (hidden * element + routed + results + one_expert + hidden * dtype_size(DType::f32));
}

// On GPUs whose replicas share out experts: places for the tokens of all their ranks, and for what becomes of them at the experts
// (step 7, expert/gpu/expert_memory.h), with ids and weights.
int64_t exchanged_bytes(const DecoderSpec& spec, const RunnerConfig& config) {
  if (config.device.is_cpu() || config.expert_replicas == 1 || spec.num_expert_layers() == 0) return 0;
  const int64_t ranks = config.tensor_parallel_size,
                rows = (config.batch.max_num_batched_tokens + ranks - 1) / ranks * num_expert_ranks(config);
  return rows * (2 * spec.hidden_size * dtype_size(config.dtype) +
                 spec.experts.rule.top_k * (dtype_size(DType::i32) + dtype_size(DType::f32)));
}

// The widest moment of one rank's largest step: in a layer, or between the LM head and the sampler.
int64_t activation_bytes(const DecoderSpec& spec, const RunnerConfig& config, GridPlace place) {
  const int64_t ranks = config.tensor_parallel_size;
  const int64_t element = dtype_size(config.dtype);
  const int64_t all_rows = config.batch.max_num_batched_tokens, shares = config.prefill_context_parallel_size;
  const int64_t rows = std::min(all_rows, all_rows / shares + (shares > 1 ? 2 : 0));  // the fullest share
  const int64_t hidden = spec.hidden_size;
  const RankWidths widths = rank_widths(spec, config);
  const int64_t q = widths.q, kv = widths.kv, mlp = widths.mlp, vocab = widths.vocab;
  const int64_t attention_layer =
      q + 2 * kv + std::max(hidden, q);              // qkv, then the normalised input or the output
  const int64_t mlp_layer = mlp + hidden + 2 * mlp;  // activated, normalised input, gate and up
  const int64_t packed_input = hidden * dtype_size(DType::f32);  // the matrix product's copy
  int64_t layer = rows * (std::max(attention_layer, mlp_layer) * element + packed_input);
  if (const int64_t shared = config.decode_context_parallel_size; shared > 1) {
    // Queries and results of the group's heads, and of the own ones to new keys, and what they weigh; results on the way too.
    layer += rows * ((4 * shared + 2) * q * element +
                     (3 * shared + 2) * spec.num_heads / ranks * dtype_size(DType::f32));
    // New keys and values, in blocks of each sequence's own (step7_parallel/context/local_keys.h), and where each goes.
    constexpr int64_t kFreshSlots = 64;
    const int64_t seqs = std::min(config.batch.max_num_seqs, rows);
    layer += (rows + kFreshSlots * seqs) * (2 * kv * element + dtype_size(DType::i64)) +
             seqs * (rows / kFreshSlots + 1) * dtype_size(DType::i32);
  }
  if (shares > 1)  // the keys and values of its rows and of all
    layer += (shares + 1) * rows * 2 * kv * element;
  if (spec.num_expert_layers() > 0)  // with tokens of all replicas, at most
    layer = std::max(layer, mixture_bytes(spec, widths, rows * config.expert_replicas, element) +
                                exchanged_bytes(spec, config));
  // The residual stream is there throughout, and what comes from the stage before.
  int64_t stream = rows * (place.stage == 0 ? 2 : 3) * hidden * element;
  if (shares > 1) stream += (all_rows + (shares + 1) * rows) * hidden * element;  // the hidden states of all
  if (place.stage + 1 < config.pipeline_parallel_size) return stream + layer;

  const int64_t row_bytes = spec.vocab_size * dtype_size(DType::f32);
  // Several ranks gather their shares of the logits before they put them in order.
  const int64_t gathered_row = ranks == 1 ? 0 : row_bytes + vocab * dtype_size(DType::f32);
  const int64_t best =
      (kMaxLogprobs + kMaxLogprobTokenIds) * (dtype_size(DType::i32) + dtype_size(DType::f32));  // of one row
  const int64_t sampled = std::min(config.batch.max_num_seqs, all_rows);
  const int64_t raw = std::min(sampled, config.device.is_cpu() ? Sampler::kRows : Sampler::kDeviceRows);
  const int64_t scored = std::min(all_rows, ModelRunner::kLogitsRows);
  if (place.context_rank > 0) return stream + layer;
  if (place.tensor_rank > 0)  // its share of the logits, for the first rank
    return stream +
           std::max(layer, std::max(sampled, scored) * (hidden * element + vocab * dtype_size(DType::f32)));
  // The lists of used tokens are staged for all rows of a step; on a GPU not in the arena.
  const int64_t penalties =
      config.device.is_cpu()
          ? sampled * std::min(config.batch.max_model_len, spec.vocab_size) * 2 * dtype_size(DType::i32)
          : 0;
  // And a mask and the edited tokens of every row.
  const int64_t edits =
      config.device.is_cpu()
          ? sampled * (bitmask_words(spec.vocab_size) * dtype_size(DType::i32) +
                       std::min(kMaxEditedTokens, spec.vocab_size) * 2 * dtype_size(DType::i32))
          : 0;
  // Top-k and top-p sort a row in scratch of their own, one per thread.
  const int64_t filters = config.device.is_cpu()
                              ? std::min<int64_t>(config.threads / num_ranks(config), raw) * 2 * row_bytes
                              : raw * row_bytes;
  const int64_t logits =
      sampled * (hidden * element + row_bytes) +
      std::max({sampled * gathered_row, penalties + edits + raw * (row_bytes + best) + filters,
                scored * (hidden * element + row_bytes + std::max(gathered_row, best))});
  return stream + std::max(layer, logits);
}

// The program and its libraries, the tokenizer's tables, the batch.
int64_t other_bytes(const DecoderSpec& spec, const RunnerConfig& config) {
  // The exchange has its places twice, where the other ranks can write.
  if (!config.device.is_cpu()) return kDeviceOverhead + 2 * exchanged_bytes(spec, config);
  const int64_t block_tables =
      config.batch.max_num_seqs * config.batch.max_blocks_per_seq() * dtype_size(DType::i32);
  return 24 * kMiB + spec.vocab_size * 256 + block_tables * num_ranks(config);
}

}  // namespace

MachineMemory machine_memory() {
  MachineMemory memory;
  memory.total = std::max<int64_t>(read_number("/proc/meminfo", "MemTotal:"), 0) * 1024;
  memory.available = std::max<int64_t>(read_number("/proc/meminfo", "MemAvailable:"), 0) * 1024;
  // A control group's limit (version 2, then version 1); file pages count as used there but can be dropped.
  struct Group {
    const char *limit, *used, *stat;
  };
  for (const Group& group :
       {Group{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
        Group{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
              "/sys/fs/cgroup/memory/memory.stat"}}) {
    const int64_t limit = read_number(group.limit), used = read_number(group.used);
    if (limit <= 0 || used < 0 || limit >= memory.total) continue;
    memory.total = limit;
    memory.available = std::min(
        memory.available, limit - used + std::max<int64_t>(read_number(group.stat, "inactive_file"), 0));
  }
  return memory;
}

int64_t kv_bytes_per_token(const DecoderSpec& spec, const RunnerConfig& config) {
  return spec.num_layers * layer_kv_bytes(spec, config) * config.tensor_parallel_size *
         config.prefill_context_parallel_size / config.decode_context_parallel_size;
}

int64_t rank_kv_bytes_per_token(const DecoderSpec& spec, const RunnerConfig& config, int stage) {
  return layers_of(config, spec.num_layers, stage).size() * layer_kv_bytes(spec, config);
}

MachineMemory memory_of(Device device) {
  if (device.type != DeviceType::cuda) return machine_memory();
  const CudaDeviceInfo gpu = cuda_device_info(device.index);
  return {gpu.total_bytes, gpu.free_bytes};
}

MemoryPlan predict_rank_memory(const DecoderSpec& spec, const RunnerConfig& config, GridPlace place) {
  MemoryPlan plan;
  plan.weights = weight_bytes(spec, config, place).total();
  plan.kv =
      rank_kv_bytes_per_token(spec, config, place.stage) * slots_of_rank(config) * config.batch.num_kv_blocks;
  plan.activations = activation_bytes(spec, config, place);
  plan.other = other_bytes(spec, config);
  return plan;
}

MemoryPlan predict_memory(const DecoderSpec& spec, const RunnerConfig& config) {
  MemoryPlan plan;
  for (int rank = 0; rank < num_ranks(config); ++rank) {
    const MemoryPlan of_rank = predict_rank_memory(spec, config, place_of(config, rank));
    plan.weights += of_rank.weights;
    plan.kv += of_rank.kv;
    plan.activations += of_rank.activations;
  }
  plan.other = other_bytes(spec, config);
  if (!config.device.is_cpu()) plan.other *= num_ranks(config);
  return plan;
}

}  // namespace ladder
