#pragma once
// What several ranks cost and bring, for `ladder bench`.
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/report.h"
#include "step6_engine/load_engine.h"

namespace ladder {

// Of the time of the steps of the rank that answers, the share that it spends in calls to the others of its stage, waiting
// for them included. Measured on the CPU.
double communication_share(const EngineMetrics& metrics);
// Of the time of the run, the share in which the last stage has nothing to compute.
double bubble_share(const Measurement& measurement);

// Both, where the configuration has such ranks and a CPU.
std::vector<std::pair<std::string, std::string>> describe_shares(const RunnerConfig& config,
                                                                 const Measurement& measurement);

// What a rank holds, and how many tokens fit in the caches of all, as predicted for this machine, of tensor-parallel ranks
// beside each other: 1, 2, 4, 8.
struct RankCapacity {
  int ranks = 0;
  std::string refused;                               // empty, or why there cannot be so many
  int64_t weight_bytes = 0, kv_bytes_per_token = 0;  // of a rank
  int64_t cached_tokens = 0;
};
std::vector<RankCapacity> rank_capacities(const EngineOptions& options, const DecoderSpec& spec,
                                          MachineMemory memory);
std::string describe_capacities(const std::vector<RankCapacity>& capacities);

}  // namespace ladder
