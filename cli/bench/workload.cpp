#include "cli/bench/workload.h"

#include <algorithm>
#include <random>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// In [low, high]. The standard library's distributions differ from one implementation to the next; this does
// not.
int64_t uniform(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

}  // namespace

std::vector<Request> make_requests(const Workload& workload, int64_t vocab_size) {
  LADDER_CHECK(workload.min_prompt_len <= workload.max_prompt_len,
               "--max-prompt-len {}: expected at least --min-prompt-len {}", workload.max_prompt_len,
               workload.min_prompt_len);
  LADDER_CHECK(workload.min_output_len <= workload.max_output_len,
               "--max-output-len {}: expected at least --min-output-len {}", workload.max_output_len,
               workload.min_output_len);
  std::mt19937_64 random(workload.seed);
  const int64_t last_id = std::min<int64_t>(10000, vocab_size) - 1;
  std::vector<int32_t> shared(static_cast<size_t>(workload.shared_prefix_len));
  for (int32_t& id : shared) id = static_cast<int32_t>(uniform(random, 0, last_id));

  std::vector<Request> requests(static_cast<size_t>(workload.num_requests));
  for (Request& request : requests) {
    request.prompt_token_ids = shared;
    for (int64_t i = uniform(random, workload.min_prompt_len, workload.max_prompt_len); i > 0; --i)
      request.prompt_token_ids.push_back(static_cast<int32_t>(uniform(random, 0, last_id)));
    request.sampling.max_tokens = uniform(random, workload.min_output_len, workload.max_output_len);
    request.sampling.temperature = workload.temperature;
    request.sampling.ignore_eos = true;
    request.sampling.seed = random();
  }
  return requests;
}

std::vector<Request> make_warm_up(Workload workload, int64_t vocab_size, Device device) {
  if (device.is_cpu()) return {};
  workload.seed ^= 0x5bd1e995;
  workload.num_requests = std::min<int64_t>(workload.num_requests, 32);
  workload.max_output_len = std::min<int64_t>(workload.max_output_len, 8);
  workload.min_output_len = std::min(workload.min_output_len, workload.max_output_len);
  return make_requests(workload, vocab_size);
}

}  // namespace ladder
