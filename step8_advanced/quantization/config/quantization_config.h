#pragma once
// config.json's "quantization_config": which linear is stored how. Nothing in it is believed: an unknown method,
// format, strategy or argument is an Error that names it, and nothing in it is taken as a path.
//
//   compressed-tensors   config_groups of targets and arguments, or preset names; ignore; sparsity_config
//   gptq, awq            one scheme for all linears but routers, modules_to_not_convert and, unless "lm_head" is true, the head;
//                        gptq's "dynamic" has patterns of linears with another one, or dense, and modules_in_block_to_quantize
//                        the ends of all names that are quantized
//   auto-round           one of these forms, packing_format says which; extra_config has linears with another scheme, or dense
//   fp8                  the same: E4M3 with one scale, or blocks
//   modelopt             FP8 alone: compressed-tensors' groups, names with *
//
// All but gptq and awq may say how keys and values are rounded too (kv_cache_scheme).
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/regex.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

// What names a linear: its name in the checkpoint ("model.layers.0.mlp.down_proj"), "re:" and a pattern that matches from the
// name's beginning on (not necessarily to its end), or "Linear", which is every one.
struct QuantizationGroup {
  std::vector<std::string> targets;
  StoredLinear linear;

  bool operator==(const QuantizationGroup&) const = default;
};

// Linears of which two of every four neighbours are kept (sparsity_config); what `ignored` names is not among them. The
// entries of both are as targets are.
struct TwoOfFourTargets {
  std::vector<std::string> targets, ignored;
};

// How an entry of the list of dense modules names one.
enum class IgnoreRule : uint8_t {
  target,     // as a target does
  module,     // whole components of the name: "mlp.gate", "lm_head"
  substring,  // any piece of the name
};

class QuantizationConfig {
 public:
  // quantized_ends: ends of names; of the layers' linears only those that end so are quantized, whatever the groups say. None: all.
  // first_counts: of two targets as specific as each other the first group's counts; else they must say the same.
  // Error, beginning with `what`: a target that is none of the three kinds, or a pattern that is none.
  QuantizationConfig(std::string what, std::vector<QuantizationGroup> groups,
                     std::vector<std::string> ignored, IgnoreRule ignore_rule = IgnoreRule::target,
                     std::optional<StoredKvCache> kv_cache = std::nullopt, TwoOfFourTargets two_of_four = {},
                     std::vector<std::string> quantized_ends = {}, bool first_counts = false);
  // `json` is the object as text; `what` begins every message ("DIR/config.json: quantization_config"). Error: see above, and
  // where it is malformed.
  static QuantizationConfig parse(std::string_view json, std::string_view what);

  // How a linear is stored whose parts (q, k, v; gate, up; or one) have these names in the checkpoint, without ".weight";
  // nullopt: dense, and all of it. The most specific target counts: the name, then a pattern, then "Linear". What is ignored is
  // dense. Error: the parts differ, or a format has no sparse form, or two targets as specific as each other do (both are named); a pattern takes too
  // many steps.
  std::optional<StoredLinear> linear(std::span<const std::string> part_names) const;

  const std::vector<QuantizationGroup>& groups() const { return groups_; }
  const std::vector<std::string>& ignored() const { return ignored_; }
  const std::optional<StoredKvCache>& kv_cache() const { return kv_cache_; }
  const TwoOfFourTargets& two_of_four() const { return two_of_four_; }
  const std::vector<std::string>& quantized_ends() const { return quantized_ends_; }

 private:
  // Of a target or an entry of the ignore list, 0: not at all.
  enum class Match : uint8_t { none, all, pattern, name };
  Match match(const std::string& target, const std::string& name) const;
  std::optional<StoredLinear> part(const std::string& name) const;
  // With sparsity, of which the groups know nothing.
  std::optional<StoredLinear> stored_part(const std::string& name) const;
  bool is_ignored(const std::string& name) const;

  std::string what_;
  std::vector<QuantizationGroup> groups_;
  std::vector<std::string> ignored_;
  IgnoreRule ignore_rule_;
  std::optional<StoredKvCache> kv_cache_;
  TwoOfFourTargets two_of_four_;
  std::vector<std::string> quantized_ends_;
  bool first_counts_;
  // A name that lacks `part` does not match: a config may have a pattern for each of 100 layers, and a model 36,000 linears.
  struct Pattern {
    std::shared_ptr<const Regex> regex;
    std::string part;
  };
  std::map<std::string, Pattern> patterns_;  // of every "re:"
};

// The object as compressed-tensors writes it, one config group per element, status "compressed"; parse() reads it
// back to the same groups and ignore list. Scales in the model's dtype are not named in the file and read as bf16. Error:
// a format that is not compressed-tensors' (gptq, awq, scales called weight_scale_inv), or one that cannot hold its scheme.
std::string to_json(std::span<const QuantizationGroup> groups, std::span<const std::string> ignore,
                    const std::optional<StoredKvCache>& kv_cache = std::nullopt);
// kv_cache_scheme's object alone; `what` begins every message. Error: an argument that is not known, zero points, another strategy than
// tensor and attn_head.
StoredKvCache parse_kv_cache_scheme(const Json& scheme, const std::string& what);

}  // namespace ladder
