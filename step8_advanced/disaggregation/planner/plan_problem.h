#pragma once
// What a planner is asked: who sends what, what was promised to them, and what there is to answer with.
#include <cstdint>
#include <string>
#include <vector>

#include "step7_parallel/data/simulation/step_time_model.h"

namespace ladder {

struct PlannedRequest {
  double arrival = 0;  // seconds; of a problem without `rate` these are real times
  int64_t num_prompt = 0;
  int64_t num_output = 0;
  int64_t num_cached = 0;  // of the prompt, its beginning, which an engine's prefix cache holds already
};

// What a request must get to count. `share` of the requests must.
struct ServiceLevel {
  double ttft = 0;  // seconds to the first token
  double tpot = 0;  // seconds between its tokens, in the mean over the answer
  double gap = 0;   // seconds between any two of its tokens; 0: not asked for
  double share = 0.9;
};

// The way of keys and values out of one instance, and into one. Every instance has one.
struct KvLink {
  double bytes_per_second = 0;
  double latency = 0;  // seconds of each transfer besides its bytes
  bool layer_by_layer =
      false;  // sent while later layers are still being computed; else when the prompt is done
};

// An engine of so many GPUs.
struct PlannedEngine {
  int tensor_parallel_size = 1;
  StepTimeModel model;
  int64_t num_kv_tokens = 0;  // that its cache holds
  int64_t max_num_seqs = 256;
};

struct PlanProblem {
  std::vector<PlannedRequest> requests;  // a sample of them; all that is computed is a mean over it
  double rate = 0;                       // requests a second, of all instances together
  ServiceLevel level;
  int num_gpus = 2;
  std::vector<PlannedEngine> engines;  // those that may be built, by tensor_parallel_size
  int64_t kv_bytes_per_token = 0;      // of all layers and ranks
  int64_t num_layers = 1;
  KvLink link;
  std::vector<int64_t> chunks{512, 2048, 8192};  // max_num_batched_tokens to choose from, ascending
};

enum class DeploymentKind {
  unchunked,      // engines that compute a prompt whole, between two steps of those who are being answered
  chunked,        // ... that mix pieces of prompts with their steps
  disaggregated,  // prompts on the one kind of instance, answers on the other
};

struct Instances {
  int count = 0;
  int tensor_parallel_size = 1;
};

struct Deployment {
  DeploymentKind kind = DeploymentKind::chunked;
  Instances prefill;  // not disaggregated: all of them
  Instances decode;   // none, unless disaggregated
  int64_t chunk =
      0;  // max_num_batched_tokens where prompts are computed; unchunked: the longest prompt fits beside all answers

  int num_gpus() const {
    return prefill.count * prefill.tensor_parallel_size + decode.count * decode.tensor_parallel_size;
  }
};

// The engine of that size. Error: there is none in the problem.
const PlannedEngine& engine_of(const PlanProblem& problem, int tensor_parallel_size);
// One that a prompt and its answer of the problem always fit.
int64_t longest_sequence(const PlanProblem& problem);
// "2P1D (TP 1, TP 2)", "3 engines (TP 1), chunks of 2048"
std::string describe(const Deployment& deployment);

// Error naming the field: nothing to share out, no request, a promise of nothing, sizes below 1.
void check_problem(const PlanProblem& problem);

}  // namespace ladder
