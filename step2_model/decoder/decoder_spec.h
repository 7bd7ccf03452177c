#pragma once
// Task 2.4: a decoder described by data. There is one decoder in the project; a model family is a small file
// that reads its config.json into this description and says which checkpoint tensor fills which parameter.
#include <cstdint>
#include <string>
#include <vector>

#include "step1_layers/core/dtype.h"
#include "step1_layers/moe/router.h"
#include "step1_layers/rotary/rope_config.h"

namespace ladder {

enum class NormKind : uint8_t { rms_norm, layer_norm };  // layer_norm: with a bias
enum class MlpActivation : uint8_t { silu, gelu_tanh, gelu, relu };

// The layers whose MLP is a mixture of experts (step1_layers/moe/), all of them alike.
struct ExpertsSpec {
  int64_t num_experts = 0;        // 0: no layer has any
  int64_t intermediate_size = 0;  // of one expert
  RouterRule rule;                // its top_k experts compute a token
  // An expert besides, which computes every token; its output is weighed by sigmoid(a row of weights * x). 0: none.
  int64_t shared_intermediate_size = 0;
  std::vector<bool> layers;  // which they are; as many as the model has
};

struct DecoderSpec {
  std::string architecture;  // "Qwen3ForCausalLM", as config.json names it
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // not always hidden_size / num_heads
  int64_t max_position_embeddings = 0;
  NormKind norm = NormKind::rms_norm;
  double norm_eps = 1e-6;
  bool post_norm = false;  // a layer's norms come after the additions, x = norm(x + f(x)), and not before f
  bool final_norm = true;  // after the last layer
  bool qkv_bias = false;   // q, k, v projections
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm of every query and key head before the rotation
  bool tie_word_embeddings = false;
  bool lm_head_bias = false;  // of a head that is not tied
  bool gated_mlp = true;      // down(activation(gate(n)) * up(n)); else fc2(activation(fc1(n)))
  // Of embedding and head. 0: hidden_size. Else two matrices lead from one width to the other.
  int64_t embedding_size = 0;
  // A row is added to each token's embedding, of a table whose row position_offset is that of position 0; then
  // rope.kind is none.
  bool learned_positions = false;
  int64_t position_offset = 0;
  MlpActivation activation = MlpActivation::silu;
  ExpertsSpec experts;
  RopeConfig rope;
  std::string quantization_config;       // that object of config.json as JSON text; empty: dense weights
  DType checkpoint_dtype = DType::bf16;  // what config.json says the weights are; --dtype auto follows it
  std::vector<int32_t> eos_token_ids;    // end tokens, each once; may be empty
  int32_t bos_token_id = -1;             // -1: none

  // An end token that another file names (the tokenizer's eos_token). One that is known already, or that lies
  // outside of the vocabulary and so can never be produced, changes nothing.
  void add_eos_token(int64_t id);

  int64_t embedding_width() const { return embedding_size > 0 ? embedding_size : hidden_size; }
  int64_t norm_parameters() const { return norm == NormKind::layer_norm ? 2 * hidden_size : hidden_size; }
  // What lies outside of layers, embedding, head and last norm: on the side of the embedding, and of the head.
  int64_t parameters_before_layers() const {
    return (learned_positions ? (max_position_embeddings + position_offset) * hidden_size : 0) +
           projection_parameters();
  }
  int64_t projection_parameters() const { return embedding_size > 0 ? embedding_size * hidden_size : 0; }

  bool has_experts(int64_t layer) const {
    return experts.num_experts > 0 && experts.layers[static_cast<size_t>(layer)];
  }
  int64_t num_expert_layers() const;
  // What a token meets in a layer, on average: the MLP, or the chosen experts and the shared one.
  int64_t mean_active_mlp_width() const;

  int64_t num_parameters() const;
  // Of them, those that a token meets: of experts the chosen ones and the shared one.
  int64_t num_active_parameters() const;
};

}  // namespace ladder
