#include "cli/bench/workload.h"

#include <algorithm>
#include <iterator>

#include "step1_layers/core/error.h"
#include "step7_parallel/data/simulation/draws.h"

namespace ladder {

std::vector<int32_t> random_ids(std::mt19937_64& random, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids)
    id = static_cast<int32_t>(draw_uniform(random, 0, std::min<int64_t>(10000, vocab_size) - 1));
  return ids;
}

void check_lengths(const Workload& workload) {
  LADDER_CHECK(workload.min_prompt_len <= workload.max_prompt_len,
               "--max-prompt-len {}: expected at least --min-prompt-len {}", workload.max_prompt_len,
               workload.min_prompt_len);
  LADDER_CHECK(workload.min_output_len <= workload.max_output_len,
               "--max-output-len {}: expected at least --min-output-len {}", workload.max_output_len,
               workload.min_output_len);
}

std::vector<Request> make_requests(const Workload& workload, int64_t vocab_size) {
  check_lengths(workload);
  std::mt19937_64 random(workload.seed);
  const std::vector<int32_t> shared = random_ids(random, workload.shared_prefix_len, vocab_size);

  std::vector<Request> requests(static_cast<size_t>(workload.num_requests));
  for (Request& request : requests) {
    request.prompt_token_ids = shared;
    const int64_t own = draw_uniform(random, workload.min_prompt_len, workload.max_prompt_len);
    std::ranges::copy(random_ids(random, own, vocab_size), std::back_inserter(request.prompt_token_ids));
    request.sampling.max_tokens = draw_uniform(random, workload.min_output_len, workload.max_output_len);
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
