#pragma once
// Task 2.3: the scales of keys and values that some checkpoints carry, made for a cache whose 8-bit codes share one scale a layer
// (or a head). Here every head of every token has its own (step1_layers/attention/kv_codes.h), which is found when it is
// stored and never coarser, so these are verified and left where they are.
//
//   model.layers.N.self_attn.k_scale, .v_scale                               compressed-tensors
//   ...self_attn.kv_scale                                                    both in one: the first fp8 checkpoints
//   ...self_attn.k_proj.k_scale, .v_proj.v_scale                             ModelOpt
//   ...self_attn.k_proj.output_scale, .v_proj.output_scale                   what compressed-tensors wrote before
#include <string_view>

#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// Whether a tensor of a checkpoint with a quantization_config is one of the above.
bool is_kv_scale(std::string_view checkpoint_name);

// Error, naming file and tensor: one that is not [], [1], [num_kv_heads] or [num_kv_heads, 1, 1] of f32, bf16 or f16, a number that is not
// finite and above 0, a layer that the model does not have, a scale twice under two names; or, where some layers have
// theirs, one that is missing. Without a quantization_config nothing is looked at.
void check_kv_scales(const Checkpoint& checkpoint, const DecoderSpec& spec);

}  // namespace ladder
