#include "step1_layers/sampling/philox.h"

#include <algorithm>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 1.8.draw: Philox4x32-10 and the uniform number of a token
std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt 3 - 1
  }
  return counter;
}

// The noise of a token before its logarithms (sample.cpp takes those), bit for bit as noise_cuda.cuh draws it.
float sampling_uniform(uint64_t seed, uint64_t output_index, uint32_t token_id) {
  const auto words = philox4x32_10(
      {token_id / 4, static_cast<uint32_t>(output_index), static_cast<uint32_t>(output_index >> 32), 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const float u = (static_cast<float>(words[token_id % 4]) + 0.5f) * 0x1p-32f;
  return std::min(u, 1.0f - 0x1p-24f);
}
// <<< task 1.8.draw

}  // namespace ladder
