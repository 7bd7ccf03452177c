#pragma once
// Task 2.1: from config.json to a DecoderSpec. load_decoder_spec (model.h) reads a folder; these are its
// parts, which take text, so that tests and the fuzzer reach them without files.
#include <string_view>

#include "step1_layers/rotary/rope_config.h"
#include "step2_model/config/config_file.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// `generation_config` may be empty: then config.json's end tokens count. `what` and `generation_what` begin
// the messages (the names of the files). Field by field, key and value where it is absent ("-": an Error):
//
//   architecture             architectures, else by model_type            -
//   vocab_size, hidden_size, intermediate_size, max_position_embeddings   -     as they are called
//   num_layers, num_heads    num_hidden_layers, num_attention_heads       -
//   norm_eps                 rms_norm_eps, in [0, 1)                       1e-6
//   tie_word_embeddings                                                    false
//   activation, checkpoint_dtype, quantization_config                      see the functions above
//   head_dim, num_kv_heads, biases, qk_norm    by the family (family.h, read_config)
//   rope                     parse_rope_config, when head_dim is known
//   eos_token_ids            eos_token_id, of generation_config if it has one: one id, a list, or null; each
//                            goes through add_eos_token
//   bos_token_id             bos_token_id, the first of a list, if it is in the vocabulary
//
// Keys that change the mathematics are refused before the family reads its own. Error, naming file and field: a
// value of another type or outside its bounds, and what is said below.
DecoderSpec parse_decoder_spec(std::string_view config, std::string_view what,
                               std::string_view generation_config, std::string_view generation_what);

// The rotary embedding, from either form of the keys: rope_theta and rope_scaling {type or rope_type, ...} at
// the top level, or rope_parameters {rope_theta, rope_type, ...}. Where both say something, transformers'
// order holds: rope_scaling before rope_parameters (an empty rope_scaling is none), the theta inside of it before
// the one beside it, rope_type before type, but an original_max_position_embeddings beside before the one inside.
// Absent: theta 10,000; kind default; original max_position_embeddings. rotary_dim is head_dim.
//
//   linear    factor (required, at least 1)
//   dynamic   factor (required); original is max_position_embeddings whatever the keys say; head_dim above 2
//   yarn      factor (max_position_embeddings / original, at least 1); beta_fast (32) >= beta_slow (1), where 0
//             counts as absent; attention_factor, mscale, mscale_all_dim (none); truncate (true); original
//   llama3    factor, low_freq_factor < high_freq_factor (all required); original
//   longrope  short_factor, long_factor (required, head_dim / 2 numbers each); factor as yarn; original; short_mscale,
//             long_mscale, attention_factor (none)
//
// Error, naming the field: another kind, a field that no kind has, a partial_rotary_factor other than 1, a theta
// of at most 1, a number that must be above 0 and is not.
RopeConfig parse_rope_config(const ConfigObject& config, int64_t head_dim, int64_t max_position_embeddings);

// Error, naming the key: the file has one that changes the mathematics and is not implemented (soft-capped
// logits, experts where the family has none, ...: the list in unsupported_keys.cpp, unless its value is neutral); layer_types that are not
// num_layers times "full_attention"; or, without layer_types, use_sliding_window and a window (an absent
// sliding_window is one of 4096 tokens, null is none, and so is one of max_position_embeddings or more where the
// rotary embedding is the standard one) that layers from max_window_layers (28) on would have. Keys that are
// unknown and not on that list are taken to be harmless: configs are full of them.
void refuse_unsupported_keys(const ConfigObject& config, int64_t num_layers, bool has_experts);

}  // namespace ladder
