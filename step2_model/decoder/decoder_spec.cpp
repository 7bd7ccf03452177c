#include "step2_model/decoder/decoder_spec.h"

#include <algorithm>

namespace ladder {

void DecoderSpec::add_eos_token(int64_t id) {
  if (id < 0 || id >= vocab_size) return;
  const auto token = static_cast<int32_t>(id);
  if (std::find(eos_token_ids.begin(), eos_token_ids.end(), token) == eos_token_ids.end())
    eos_token_ids.push_back(token);
}

int64_t DecoderSpec::num_parameters() const {
  const int64_t q_width = num_heads * head_dim, kv_width = num_kv_heads * head_dim;
  int64_t layer = hidden_size * (q_width + 2 * kv_width) + q_width * hidden_size;  // attention
  layer += 3 * hidden_size * intermediate_size;                                    // gate, up, down
  layer += 2 * hidden_size;                                                        // the two norms
  if (qkv_bias) layer += q_width + 2 * kv_width;
  if (o_bias) layer += hidden_size;
  if (mlp_bias) layer += 2 * intermediate_size + hidden_size;
  if (qk_norm) layer += 2 * head_dim;
  const int64_t embeddings = vocab_size * hidden_size * (tie_word_embeddings ? 1 : 2);
  return num_layers * layer + embeddings + hidden_size;
}

}  // namespace ladder
