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

// Both, where the configuration has such ranks; of communication on a CPU alone.
std::vector<std::pair<std::string, std::string>> describe_shares(const RunnerConfig& config,
                                                                 const Measurement& measurement);

// On a GPU the host's clock does not see what the collectives of a captured step take. So the same requests are run once
// more, by one rank that has of the model what each of several has, and nobody to talk to: what it takes less is
// communication, waiting for the slower rank included.
//
// The share of each of `ranks` tensor-parallel ranks as a model by itself.
DecoderSpec model_of_a_rank(DecoderSpec spec, int ranks);
// The options with which it runs, on one rank with random weights. Error, naming the flag: there is no such model, as the
// ranks are no tensor-parallel ones alone, or are on a CPU, where the share is measured anyway.
EngineOptions options_of_a_rank(EngineOptions options);
// Runs them so: a warm-up, and what is measured. The engine of several ranks is gone before, whose GPU this takes.
Measurement measure_a_rank(const EngineOptions& options, const ModelFolder& folder,
                           const std::vector<Request>& warm_up, const std::vector<Request>& requests);
// The line that bench prints, of seconds with communication and without.
std::pair<std::string, std::string> describe_communication(double with, double without);

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
