#pragma once
// Lines about what a checkpoint's quantization_config asks for and the engine does in another way.
#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/device.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// On standard error, where config.json has a scheme for keys and values, or weights that the device only keeps
// (step8_advanced/quantization/config/kv_cache_note.h, weights_note.h).
void say_quantization(const DecoderSpec& spec, KvCacheDType kept_as, const Device& device);

}  // namespace ladder
