#pragma once
// Results of an mma, of which a lane has two neighbours of a row, as packs of sixteen bytes: for kernels that write whole ones.
#include "step1_layers/core/cuda_kernel.cuh"

namespace ladder {

// The four lanes of a quad hold the pairs of columns of a row, of four octets of columns: lane t the t-th pair of each. From
// here on lane t holds all pairs of octet t.
__device__ inline uint4 gather_octet(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  auto swap = [](uint32_t& first, uint32_t& second, int distance) {
    const bool upper = (threadIdx.x & distance) != 0;
    const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? first : second, distance);
    (upper ? first : second) = got;
  };
  swap(a, c, 2);
  swap(b, d, 2);
  swap(a, b, 1);
  swap(c, d, 1);
  return {a, b, c, d};
}

}  // namespace ladder
