#include "bench/course_race/roofline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace ladder::course {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(__x86_64__)
#define LADDER_EACH_WIDTH __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define LADDER_EACH_WIDTH
#endif

// Sixteen lanes eight times over: enough chains for two units of latency four.
constexpr int kLanes = 16 * 10;

LADDER_EACH_WIDTH float multiply_and_add(int64_t rounds, float factor) {
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = static_cast<float>(i);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < kLanes; ++i) sums[i] = sums[i] * factor + 0.5f;
  float sum = 0;
  for (const float value : sums) sum += value;
  return sum;
}

}  // namespace

double copy_rate(int64_t bytes) {
  const auto half = static_cast<size_t>(std::max<int64_t>(bytes / 2, 4096));
  std::vector<char> from(half, 1), to(half, 2);
  double best = 1e30;
  for (int i = 0; i < 12; ++i) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), half);
    asm volatile("" : : "r"(to.data()) : "memory");
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return 2.0 * static_cast<double>(half) / best;
}

double fma_rate() {
  constexpr int64_t kRounds = 20000;
  volatile float factor = 0.999f, kept = 0;
  static_cast<void>(kept);
  double best = 1e30;
  for (int i = 0; i < 8; ++i) {
    const auto begin = Clock::now();
    kept = multiply_and_add(kRounds, factor);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return 2.0 * kLanes * kRounds / best;
}

}  // namespace ladder::course
