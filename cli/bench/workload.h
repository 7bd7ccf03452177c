#pragma once
// Requests made of random token ids, the field's common workload: the same seed makes the same requests
// everywhere.
#include <cstdint>
#include <random>
#include <vector>

#include "step1_layers/core/device.h"
#include "step6_engine/request.h"

namespace ladder {

struct Workload {
  int64_t num_requests = 256;
  int64_t shared_prefix_len = 0;  // tokens that all prompts begin with, on top of their own
  int64_t min_prompt_len = 100;
  int64_t max_prompt_len = 1024;
  int64_t min_output_len = 100;
  int64_t max_output_len = 1024;
  double temperature = 0.6;
  uint64_t seed = 0;
};

// That many, uniform below min(10000, vocab_size).
std::vector<int32_t> random_ids(std::mt19937_64& random, int64_t count, int64_t vocab_size);

// Error: a range of lengths that is empty.
void check_lengths(const Workload& workload);

// Lengths uniform in their ranges, ids from random_ids(), end tokens ignored. Error: as check_lengths().
std::vector<Request> make_requests(const Workload& workload, int64_t vocab_size);

// A few short requests like them, of other tokens: what a GPU's libraries do once (loading kernels, looking
// for the best one) is then done. Run before what is measured; nothing on the CPU, which has nothing of the
// kind.
std::vector<Request> make_warm_up(Workload workload, int64_t vocab_size, Device device);

}  // namespace ladder
