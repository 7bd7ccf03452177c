#include "cli/say_quantization.h"

#include <cstdio>

#include "step8_advanced/quantization/config/kv_cache_note.h"
#include "step8_advanced/quantization/config/weights_note.h"

namespace ladder {

void say_quantization(const DecoderSpec& spec, KvCacheDType kept_as, const Device& device) {
  for (const std::string& note :
       {kv_cache_note(spec.quantization_config, kept_as), weights_note(spec.quantization_config, device)})
    if (!note.empty()) std::fprintf(stderr, "ladder: %s\n", note.c_str());
}

}  // namespace ladder
