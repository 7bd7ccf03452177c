// A config.json, and after a zero byte a generation_config.json: a description whose sizes fit together, or
// an Error.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "step1_layers/core/error.h"
#include "step1_layers/rotary/rope.h"
#include "step2_model/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view config(reinterpret_cast<const char*>(data), size), generation;
  if (const size_t zero = config.find('\0'); zero != std::string_view::npos) {
    generation = config.substr(zero + 1);
    config = config.substr(0, zero);
  }
  try {
    const ladder::DecoderSpec spec =
        ladder::parse_decoder_spec(config, "config.json", generation, "generation_config.json");
    const bool sound = spec.num_heads > 0 && spec.num_kv_heads > 0 &&
                       spec.num_heads % spec.num_kv_heads == 0 && spec.head_dim > 0 &&
                       spec.head_dim % 2 == 0 && spec.num_parameters() > 0;
    if (!sound) std::abort();
    for (const int32_t id : spec.eos_token_ids)
      if (id < 0 || id >= spec.vocab_size) std::abort();
    ladder::rope_frequencies(spec.rope, 64);
  } catch (const ladder::Error&) {
  }
  return 0;
}
