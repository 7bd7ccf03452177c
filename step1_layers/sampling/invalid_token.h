#pragma once
#include <cstdint>

namespace ladder {

// The token of a row from which none can be drawn: its logits hold a NaN, or all of them are -inf. It is
// never a token id. argmax.cpp and sample.cpp write it on the CPU, invalid_best() (argmax_cuda.cuh) on a GPU;
// the scheduler's update ends the request with an error.
inline constexpr int32_t kInvalidToken = -1;

}  // namespace ladder
