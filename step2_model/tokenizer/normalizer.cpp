#include "step2_model/tokenizer/normalizer.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/nfc.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {

Normalizer Normalizer::parse(const Json& value, std::string_view what) {
  Normalizer result;
  if (json_string(json_at(value, "type", what), fmt::format("{}.type", what)) == "Sequence") {
    const Json& stages = json_at(value, "normalizers", what);
    LADDER_CHECK(stages.is_array() && stages.size() <= 64, "{}.normalizers: expected an array of at most 64",
                 what);
    for (size_t i = 0; i < stages.size(); ++i)
      result.add_stage(stages[i], fmt::format("{}.normalizers[{}]", what, i));
  } else {
    result.add_stage(value, what);
  }
  return result;
}

void Normalizer::add_stage(const Json& value, std::string_view what) {
  const std::string& type = json_string(json_at(value, "type", what), fmt::format("{}.type", what));
  if (type == "NFC") {
    stages_.emplace_back(Nfc{});
  } else if (type == "Prepend") {
    const std::string field = fmt::format("{}.prepend", what);
    const std::string& prefix = json_string(json_at(value, "prepend", what), field);
    LADDER_CHECK(prefix.size() <= Replacement::kMaxBytes, "{}: expected at most {} bytes, found {}", field,
                 Replacement::kMaxBytes, prefix.size());
    stages_.emplace_back(Prepend{prefix});
  } else if (type == "Replace") {
    const Replacement replacement = Replacement::parse(value, what);
    growth_ *= replacement.growth();
    LADDER_CHECK(growth_ <= kMaxGrowth, "{}: the replacements can make a text more than {} times as long",
                 what, kMaxGrowth);
    stages_.emplace_back(replacement);
  } else {
    fail("{}.type: NFC, Prepend, Replace and a Sequence of them are supported, found {}", what,
         json_brief(type));
  }
}

bool Normalizer::may_move_start() const {
  return std::ranges::any_of(stages_, [](const Stage& stage) {
    const auto* replace = std::get_if<Replacement>(&stage);
    return replace != nullptr && (replace->content.empty() || utf8_decode(replace->pattern.data()).length <
                                                                  static_cast<int>(replace->pattern.size()));
  });
}

std::optional<std::string> Normalizer::normalize(std::string_view text, bool begins) const {
  std::optional<std::string> result;
  for (const Stage& stage : stages_) {
    const std::string_view now = result ? std::string_view(*result) : text;
    if (std::holds_alternative<Nfc>(stage)) {
      if (auto composed = normalize_nfc(now)) result = std::move(composed);
    } else if (const auto* prepend = std::get_if<Prepend>(&stage)) {
      if (begins && !now.empty()) result = prepend->prefix + std::string(now);
    } else if (const auto& replacement = std::get<Replacement>(stage);
               now.find(replacement.pattern) != std::string_view::npos) {
      result = replacement.apply(now);
    }
  }
  return result;
}

}  // namespace ladder
