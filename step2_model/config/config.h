#pragma once
// Task 2.1: from config.json to a DecoderSpec. load_decoder_spec (model.h) reads a folder; these are its
// parts, which take text, so that tests and the fuzzer reach them without files.
#include <string_view>

#include "step1_layers/rotary/rope_config.h"
#include "step2_model/config/config_file.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// `generation_config` may be empty: then config.json's end tokens count. `what` and `generation_what` begin
// the messages (the names of the files).
DecoderSpec parse_decoder_spec(std::string_view config, std::string_view what,
                               std::string_view generation_config, std::string_view generation_what);

// The rotary embedding, from either form of the keys: rope_theta and rope_scaling {type or rope_type, ...} at
// the top level, or rope_parameters {rope_theta, rope_type, ...}. Where both say something, transformers'
// order holds: rope_scaling before rope_parameters, and the theta inside of it before the one beside it.
RopeConfig parse_rope_config(const ConfigObject& config, int64_t head_dim, int64_t max_position_embeddings);

// Error: the file has a key that changes the mathematics and is not implemented (sliding windows, soft-capped
// logits, experts, ...). Keys that are unknown and not on that list are taken to be harmless: configs are full
// of them.
void refuse_unsupported_keys(const ConfigObject& config, int64_t num_layers);

}  // namespace ladder
