#pragma once
// Task 1.8: Philox4x32-10, a counter-based random number generator (Salmon et al., 2011, "Parallel random
// numbers: as easy as 1, 2, 3"; the Random123 library).
//
// It has no state: a 128-bit counter and a 64-bit key go in, four random words come out. So the noise of a
// token can be computed anywhere, in any order, alone or beside a thousand others, and is always the same.
#include <array>
#include <cstdint>

namespace ladder {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The noise of the sampler, a function of (seed, output_index, token_id) alone, on every device:
//
//   words = philox4x32_10(counter = {token_id / 4, low word of output_index, high word of output_index, 0},
//                         key     = {low word of seed, high word of seed})
//   word  = words[token_id % 4]
//   u     = min((float(word) + 0.5) * 2^-32, 1 - 2^-24)                  uniform in (0, 1)
//
// in float arithmetic, rounding to nearest even. Its smallest value is 2^-33: near 0, where the rare winners
// of sample.h come from, u keeps the resolution of all 32 bits.
float sampling_uniform(uint64_t seed, uint64_t output_index, uint32_t token_id);

}  // namespace ladder
