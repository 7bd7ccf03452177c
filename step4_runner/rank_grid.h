#pragma once
// The ranks of one engine: a grid of pipeline stages, each split over tensor-parallel ranks.
//
//                       tensor rank 0   tensor rank 1
//   stage 0, layers 0 to 17     rank 0          rank 1        a stage's ranks split every layer between them and
//   stage 1, layers 18 to 35    rank 2          rank 3        sum over them; hidden states go down a column
//
// With prefill context parallelism each place of it is a row of so many ranks that hold the same and share out a step's
// tokens: context rank 0 is the grid above, context rank 1 another one like it.
//
// The numbers are vLLM's: rank = (stage * context ranks + context rank) * tensor ranks + tensor rank. So neighbouring ranks,
// which talk most, are tensor-parallel.
#include <algorithm>
#include <cstdint>

#include "step4_runner/runner_config.h"

namespace ladder {

struct GridPlace {
  int tensor_rank = 0;
  int stage = 0;
  int context_rank = 0;
  bool operator==(const GridPlace&) const = default;
};

inline int num_ranks(const RunnerConfig& config) {
  return config.tensor_parallel_size * config.prefill_context_parallel_size * config.pipeline_parallel_size;
}
inline GridPlace place_of(const RunnerConfig& config, int rank) {
  const int tp = config.tensor_parallel_size, cp = config.prefill_context_parallel_size;
  return {rank % tp, rank / tp / cp, rank / tp % cp};
}
inline int rank_at(const RunnerConfig& config, GridPlace place) {
  return (place.stage * config.prefill_context_parallel_size + place.context_rank) *
             config.tensor_parallel_size +
         place.tensor_rank;
}
// The three groups that a place is in, each numbered among those of its kind: the tensor ranks beside it, the stages before
// and after it, and the context ranks that hold the same. How many of each kind there are, by the same names.
struct GridGroups {
  int tensor = 0, column = 0, context = 0;
};
inline GridGroups groups_of(const RunnerConfig& config, GridPlace place) {
  const int tp = config.tensor_parallel_size, cp = config.prefill_context_parallel_size;
  return {place.stage * cp + place.context_rank, place.context_rank * tp + place.tensor_rank,
          place.stage * tp + place.tensor_rank};
}
inline GridGroups num_groups(const RunnerConfig& config) {
  const int tp = config.tensor_parallel_size, cp = config.prefill_context_parallel_size,
            pp = config.pipeline_parallel_size;
  return {pp * cp, cp * tp, pp * tp};
}
// The rank that samples and answers: the first one of the last stage.
inline int answering_rank(const RunnerConfig& config) {
  return rank_at(config, {0, config.pipeline_parallel_size - 1});
}

// Slots of a KV block on each rank.
inline int64_t slots_of_rank(const RunnerConfig& config) {
  return config.batch.block_size / config.decode_context_parallel_size;
}

struct LayerRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// Those of a stage, of a model with so many.
inline LayerRange layers_of(const RunnerConfig& config, int64_t num_layers, int stage) {
  const auto end_of = [&](int before) {
    if (before == 0) return int64_t{0};
    if (config.stage_ends.empty()) return num_layers * before / config.pipeline_parallel_size;
    return config.stage_ends[static_cast<size_t>(before) - 1];
  };
  return {end_of(stage), end_of(stage + 1)};
}

struct ExpertRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
// Those of a rank that has whole experts: neighbours, and the first ranks have one more where the ranks do not divide them.
inline ExpertRange experts_of_rank(int64_t num_experts, int64_t ranks, int64_t rank) {
  const auto end_of = [&](int64_t before) {
    return num_experts / ranks * before + std::min(before, num_experts % ranks);
  };
  return {end_of(rank), end_of(rank + 1)};
}

// The same, of this configuration: the ranks of a stage count replica after replica.
inline int num_expert_ranks(const RunnerConfig& config) {
  return config.tensor_parallel_size * config.expert_replicas;
}
inline int expert_rank(const RunnerConfig& config, int tensor_rank) {
  return config.expert_replica * config.tensor_parallel_size + tensor_rank;
}
// Redundant experts, of which all ranks have as many places, count on after the layer's own.
inline ExpertRange experts_of_rank(const RunnerConfig& config, int64_t num_experts, int tensor_rank) {
  return experts_of_rank(num_experts + config.num_redundant_experts, num_expert_ranks(config),
                         expert_rank(config, tensor_rank));
}

// Steps that may be submitted and not collected. A pipeline is full with one in every stage; one GPU computes a step
// while the host prepares the next.
inline int max_steps_in_flight(const RunnerConfig& config) {
  if (config.pipeline_parallel_size > 1) return config.naive_pipeline ? 1 : config.pipeline_parallel_size;
  return config.device.is_cpu() || !config.async_scheduling ? 1 : 2;
}

}  // namespace ladder
