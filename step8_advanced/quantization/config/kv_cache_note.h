#pragma once
// What is said to a user whose checkpoint has scales for a cache that this engine does not have.
#include <string>
#include <string_view>

#include "step1_layers/attention/kv_cache.h"

namespace ladder {

// One line, or nothing: there is no quantization_config (empty text), or it says nothing of keys and values. Error: see
// QuantizationConfig::parse.
std::string kv_cache_note(std::string_view quantization_config, KvCacheDType kept_as);

}  // namespace ladder
