#include "step8_advanced/quantization/config/scheme_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <vector>

#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {

namespace {

constexpr size_t kTargets = 2;  // of a group that are named; a mixed recipe may have one for every linear

std::string words_of_scales(const QuantizationArgs& args) {
  switch (args.strategy) {
    case ScaleStrategy::tensor:
      return ", one scale";
    case ScaleStrategy::channel:
      return ", a scale per row";
    case ScaleStrategy::token:
      return ", a scale per token";
    case ScaleStrategy::block:
      return fmt::format(" in blocks of {} x {}", args.block_rows, args.block_columns);
    case ScaleStrategy::group:
      break;
  }
  return fmt::format(" in groups of {}", args.group_size);
}

std::string words_of_targets(const std::vector<std::string>& targets) {
  const size_t shown = std::min(kTargets, targets.size());
  std::string text = fmt::format("{}", fmt::join(std::span(targets).first(shown), ", "));
  if (shown < targets.size()) text += fmt::format(" and {} more", targets.size() - shown);
  return text;
}

}  // namespace

std::string words_of(const QuantizationArgs& args) {
  return fmt::format("{}{}{}{}", args.is_float ? "fp" : "int", args.num_bits, words_of_scales(args),
                     args.symmetric || args.is_float ? "" : " with zero points");
}

std::string words_of_linears(std::string_view quantization_config) {
  if (quantization_config.empty()) return "dense";
  const auto config = QuantizationConfig::parse(quantization_config, "config.json: quantization_config");
  const auto is_dense = [](const QuantizationGroup& group) {
    return group.linear.format == StoredFormat::dense;
  };
  const int64_t num_dense = std::ranges::count_if(config.groups(), is_dense);
  const bool several = std::ssize(config.groups()) - num_dense > 1;
  std::string text;
  std::vector<std::string> dense;  // a group for each exception
  for (const QuantizationGroup& group : config.groups()) {
    if (is_dense(group)) {
      dense.insert(dense.end(), group.targets.begin(), group.targets.end());
      continue;
    }
    if (!text.empty()) text += "; ";
    const QuantizationScheme& scheme = group.linear.scheme;
    text += words_of(scheme.weights);
    if (scheme.input_activations) text += ", inputs in " + words_of(*scheme.input_activations);
    if (several) text += fmt::format(" ({})", words_of_targets(group.targets));
  }
  if (const std::vector<std::string>& sparse = config.two_of_four().targets; !sparse.empty())
    text += fmt::format("{}two of four weights ({})", text.empty() ? "" : "; ", words_of_targets(sparse));
  if (text.empty()) return "dense";
  if (const std::vector<std::string>& ends = config.quantized_ends(); !ends.empty())
    text += fmt::format("; only names that end in {}", words_of_targets(ends));
  return dense.empty() ? text : fmt::format("{}; dense ({})", text, words_of_targets(dense));
}

}  // namespace ladder
