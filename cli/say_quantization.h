#pragma once
// A line about a checkpoint's own scheme for keys and values, which is not what the engine does.
#include "step1_layers/attention/kv_cache.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// On standard error, where config.json has such a scheme (step8_advanced/quantization/config/kv_cache_note.h).
void say_kv_cache(const DecoderSpec& spec, KvCacheDType kept_as);

}  // namespace ladder
