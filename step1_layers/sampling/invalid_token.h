#pragma once
#include <cstdint>

namespace ladder {

// The token of a row from which none can be drawn: its logits hold a NaN, or all of them are -inf. It is
// never a token id.
inline constexpr int32_t kInvalidToken = -1;

}  // namespace ladder
