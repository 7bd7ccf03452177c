#pragma once
// What one core of this machine reaches, measured by the judge beside each race.
#include <cstdint>

namespace ladder::course {

// Bytes per second, read and written together, of copies between two buffers that are `bytes` together: the best of some.
// As small as the problem, so that what fits into a cache is measured in it.
double copy_rate(int64_t bytes);

// FLOP/s of fused multiply-adds on f32 in registers: the best of some.
double fma_rate();

}  // namespace ladder::course
