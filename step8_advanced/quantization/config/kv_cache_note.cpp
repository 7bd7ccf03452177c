#include "step8_advanced/quantization/config/kv_cache_note.h"

#include <fmt/format.h>

#include "step1_layers/attention/kv_codes.h"
#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {

std::string kv_cache_note(std::string_view quantization_config, KvCacheDType kept_as) {
  if (quantization_config.empty()) return {};
  const auto config = QuantizationConfig::parse(quantization_config, "config.json: quantization_config");
  if (!config.kv_cache()) return {};
  const auto& [args, per_head] = *config.kv_cache();
  const std::string wanted =
      fmt::format("config.json: kv_cache_scheme: keys and values in {} of {} bits with {}",
                  args.is_float ? "floats" : "integers", args.num_bits,
                  args.dynamic ? "scales made at run time"
                  : per_head   ? "the checkpoint's scale of each head"
                               : "the checkpoint's scale of each layer");
  if (kept_as == KvCacheDType::automatic)
    return wanted +
           ": not done; they are kept as they are computed, and with --kv-cache-dtype fp8 in 8 bits with "
           "a scale per token and head";
  return fmt::format("{}: not used; --kv-cache-dtype {} has a scale per token and head", wanted,
                     kv_cache_dtype_name(kept_as));
}

}  // namespace ladder
