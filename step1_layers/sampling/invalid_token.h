#pragma once
#include <cstdint>

namespace ladder {

// The token of a row from which none can be drawn: its logits hold a NaN, or all of them are -inf. It is
// never a token id. argmax.cpp and sample.cpp write it on the CPU; on a GPU invalid_best() and id_of()
// (argmax_cuda.cuh), and draw/*_cuda.cu where a row takes another way. What happens to the request decides
// step5_scheduler/update.cpp: it ends with an error, and the others go on.
inline constexpr int32_t kInvalidToken = -1;

}  // namespace ladder
