#pragma once
// The readers behind QuantizationConfig::parse, one per "quant_method".
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "step2_model/config/config_file.h"
#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {

struct ReadGroups {
  std::vector<QuantizationGroup> groups;
  std::vector<std::string> ignored;
  IgnoreRule ignore_rule = IgnoreRule::target;
  std::optional<StoredKvCache> kv_cache = std::nullopt;
  TwoOfFourTargets two_of_four = {};
  std::vector<std::string> quantized_ends = {};  // as QuantizationConfig has them
  bool first_counts = false;                     // likewise
};

ReadGroups read_compressed_tensors(const ConfigObject& config);
// in_order: the keys of "dynamic", or of "extra_config", in the order of the file.
ReadGroups read_gptq(const ConfigObject& config, std::span<const std::string> in_order);
ReadGroups read_awq(const ConfigObject& config);
ReadGroups read_auto_round(const ConfigObject& config, const std::string& what,
                           std::span<const std::string> in_order);
ReadGroups read_fp8(const ConfigObject& config);
ReadGroups read_modelopt(const ConfigObject& config, const std::string& what);

// Error: a member of the object that is none of these. One that is null is absent, as everywhere: each release of the tools adds keys
// for what it can do, and writes null where it was not done.
void refuse_unknown_keys(const ConfigObject& config, std::initializer_list<std::string_view> known,
                         std::span<const std::string_view> known_too = {});
// Error: the member is there and neither null nor empty nor false. `why` ends the message.
void refuse_unless_empty(const ConfigObject& config, const std::string& key, std::string_view why);
// A list of strings, of at most this many; absent: none.
std::vector<std::string> string_list(const ConfigObject& config, const std::string& key);
// The member in lower case; absent: default_value.
std::string lower_string(const ConfigObject& config, const std::string& key, std::string_view default_value);

}  // namespace ladder
