#pragma once
// Task 8.6.kivi, experimental: keys with a scale per channel, as KIVI has them (Liu et al., 2024, arXiv 2402.02750).
//
//   keys     each channel of a head over kKiviGroup tokens     a channel that is large in every token has its own scale
//   values   each token over kKiviGroup channels of a head     values have no such channels
//
//             channel                     channel
//          | . . . . . . |            | . | . | . | . |
//   token  |-------------|     token  | . | . | . | . |        what shares a lowest value and a scale: a token's channels,
//          | . . . . . . |            | . | . | . | . |        or a channel's tokens
//
// A group of tokens can be rounded when the last of them is there, so the newest stay as they are: a cache of this kind keeps two
// forms side by side, which the engine's does not. Here keys and values become what their codes stand for, for experiments.
#include "step1_layers/core/tensor.h"

namespace ladder {

inline constexpr int64_t kKiviGroup = 32;

// [tokens, heads, dim] f32, contiguous, on the CPU, in their place, to four bits (kv_codes.h). Tokens behind the last whole group
// stay as they are. Error: a dim that is no multiple of kKiviGroup.
void round_per_channel(const Tensor& keys);
void round_per_token(const Tensor& values);

}  // namespace ladder
