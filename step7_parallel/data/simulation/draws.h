#pragma once
// Draws for workloads, by hand: the standard leaves open which numbers its distributions make, and one seed is to mean the
// same workload everywhere.
#include <cmath>
#include <cstdint>
#include <random>

namespace ladder {

// In [low, high].
inline int64_t draw_uniform(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

inline double draw_exponential(std::mt19937_64& random, double mean) {
  return -mean * std::log((static_cast<double>(random() >> 11) + 0.5) * 0x1p-53);
}

}  // namespace ladder
