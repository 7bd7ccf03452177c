#include "cli/say_kv_cache.h"

#include <cstdio>

#include "step8_advanced/quantization/config/kv_cache_note.h"

namespace ladder {

void say_kv_cache(const DecoderSpec& spec, KvCacheDType kept_as) {
  const std::string note = kv_cache_note(spec.quantization_config, kept_as);
  if (!note.empty()) std::fprintf(stderr, "ladder: %s\n", note.c_str());
}

}  // namespace ladder
