#pragma once
// Task 1.6: rotary position embedding (RoFormer: Su et al., 2021, arXiv 2104.09864).
//
// A head's first rotary_dim values are pairs (x1, x2), each turned by an angle that grows with the position,
// so that the dot product of a query and a key depends on the distance between them alone:
//
//   x1' = x1 cos a - x2 sin a,   x2' = x2 cos a + x1 sin a,   a = position * inv_freq[i]
//
// The pair of value i is value i + rotary_dim / 2 (half-split), as in Hugging Face checkpoints. The original
// Llama files pair neighbours (2i, 2i + 1) instead; reading one layout as the other gives text that falls
// apart after about twenty tokens.
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/rotary/rope_config.h"

namespace ladder {

// The angular frequencies [rotary_dim / 2] in f32 as transformers makes them, and the factor that multiplies
// cosine and sine (the attention factor of YaRN and LongRoPE, else 1). max_len fixes the base of dynamic NTK and the set of
// LongRoPE's factors: transformers changes them as a sequence grows, which would make cached keys depend on how a prompt
// was chunked.
// Error: a field that makes no sense for its kind, by its name in config.json.
struct RopeFrequencies {
  std::vector<float> inv_freq;
  float attention_factor = 1.0f;
};
RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t max_len);

// f32 [max_len, rotary_dim]: row p holds the rotary_dim / 2 cosines of position p, then its sines, both
// multiplied by the attention factor.
Tensor make_rope_table(const RopeConfig& config, int64_t max_len);

struct RotaryEmbeddingArgs {
  Tensor positions;  // [tokens] i32, each in [0, max_len)
  Tensor q;          // [tokens, heads, head_dim], rotated in place
  Tensor k;          // [tokens, kv_heads, head_dim], rotated in place
  Tensor table;      // f32 [max_len, rotary_dim], rotary_dim <= head_dim; values past rotary_dim stay
};

std::span<const Variant<RotaryEmbeddingArgs>> rotary_embedding_variants();

// Error naming `op`, as for rotary_embedding: for operators that contain the rotation.
void check_rotary_embedding(const RotaryEmbeddingArgs& args, std::string_view op);

// q and k are f32, bf16 or f16 and may be views into the qkv rows; arithmetic in float, rounded once.
// Error: shapes or dtypes that do not fit together; a position outside the table.
void rotary_embedding(const OpContext& ctx, const Tensor& positions, const Tensor& q, const Tensor& k,
                      const Tensor& table);

}  // namespace ladder
