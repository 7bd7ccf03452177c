#include "step2_model/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

PreTokenizer PreTokenizer::parse(const Json& value, std::string_view what, bool fast_scanner) {
  PreTokenizer result;
  if (value.is_null()) return result;
  if (json_string(json_at(value, "type", what), fmt::format("{}.type", what)) == "Sequence") {
    const Json& stages = json_at(value, "pretokenizers", what);
    LADDER_CHECK(stages.is_array() && stages.size() <= 64,
                 "{}.pretokenizers: expected an array of at most 64", what);
    for (size_t i = 0; i < stages.size(); ++i)
      result.add_stage(stages[i], fmt::format("{}.pretokenizers[{}]", what, i), fast_scanner);
  } else {
    result.add_stage(value, what, fast_scanner);
  }
  return result;
}

void PreTokenizer::add_stage(const Json& value, std::string_view what, bool fast_scanner) {
  const std::string& type = json_string(json_at(value, "type", what), fmt::format("{}.type", what));
  LADDER_CHECK(!byte_level_, "{}: {} after ByteLevel is not supported", what, type);
  if (type == "Split") {
    add_split(value, what, fast_scanner);
  } else if (type == "Metaspace") {
    LADDER_CHECK(!metaspace_ && stages_.empty(),
                 "{}: Metaspace is only supported where nothing stands before it", what);
    metaspace_ = Metaspace::parse(value, what);
    if (metaspace_->split)
      stages_.emplace_back(Literal{metaspace_->replacement, Literal::Behavior::kMergedWithNext});
  } else if (type == "Digits") {
    const Json* individual = json_find(value, "individual_digits", what);
    const bool alone =
        individual != nullptr && json_bool(*individual, fmt::format("{}.individual_digits", what));
    add_pattern(alone ? "\\p{N}" : "\\p{N}+", what, fast_scanner);
  } else if (type == "ByteLevel") {
    LADDER_CHECK(!metaspace_, "{}: ByteLevel together with Metaspace is not supported", what);
    byte_level_ = true;
    add_prefix_space_ =
        json_bool(json_at(value, "add_prefix_space", what), fmt::format("{}.add_prefix_space", what));
    LADDER_CHECK(!add_prefix_space_ || stages_.empty(),
                 "{}.add_prefix_space: true is only supported where nothing splits the text before", what);
    const Json* use_regex = json_find(value, "use_regex", what);
    if (use_regex == nullptr || json_bool(*use_regex, fmt::format("{}.use_regex", what)))
      add_pattern(known_pattern_text(KnownPattern::kGpt2), what, fast_scanner);
  } else {
    fail("{}.type: Split, Digits, ByteLevel and Metaspace are supported, found {}", what, json_brief(type));
  }
}

void PreTokenizer::add_split(const Json& value, std::string_view what, bool fast_scanner) {
  const std::string& behavior =
      json_string(json_at(value, "behavior", what), fmt::format("{}.behavior", what));
  const Json* invert = json_find(value, "invert", what);
  LADDER_CHECK(invert == nullptr || !json_bool(*invert, fmt::format("{}.invert", what)),
               "{}.invert: only false is supported", what);
  const std::string pattern_what = fmt::format("{}.pattern", what);
  const Json& pattern = json_at(value, "pattern", what);
  if (const Json* literal = json_find(pattern, "String", pattern_what)) {
    LADDER_CHECK(
        behavior == "Isolated" || behavior == "MergedWithPrevious" || behavior == "MergedWithNext",
        "{}.behavior: \"Isolated\", \"MergedWithPrevious\" and \"MergedWithNext\" are supported, found {}",
        what, json_brief(behavior));
    const std::string& text = json_string(*literal, pattern_what);
    LADDER_CHECK(!text.empty(), "{}: it is empty", pattern_what);
    stages_.emplace_back(Literal{text, behavior == "Isolated" ? Literal::Behavior::kIsolated
                                       : behavior == "MergedWithNext"
                                           ? Literal::Behavior::kMergedWithNext
                                           : Literal::Behavior::kMergedWithPrevious});
    return;
  }
  LADDER_CHECK(behavior == "Isolated", "{}.behavior: only \"Isolated\" is supported, found {}", what,
               json_brief(behavior));
  add_pattern(json_string(json_at(pattern, "Regex", pattern_what), pattern_what), pattern_what, fast_scanner);
}

void PreTokenizer::Literal::split(std::string_view piece, int64_t offset, std::vector<int64_t>& ends) const {
  const auto end_at = [&](size_t at) { ends.push_back(offset + static_cast<int64_t>(at)); };
  size_t begin = 0;  // of what follows the last occurrence
  while (true) {
    const size_t found = piece.find(text, begin);
    const size_t occurrence = std::min(found, piece.size());
    if (begin < occurrence && (behavior != Behavior::kMergedWithPrevious || found == std::string_view::npos))
      end_at(occurrence);
    if (found == std::string_view::npos) return;
    begin = found + text.size();
    const bool text_follows = begin < piece.size() && !piece.substr(begin).starts_with(text);
    if (behavior != Behavior::kMergedWithNext || !text_follows) end_at(begin);
  }
}

void PreTokenizer::add_pattern(std::string_view pattern, std::string_view what, bool fast_scanner) {
  const auto known = find_known_pattern(pattern);
  if (known && fast_scanner)
    stages_.emplace_back(*known);
  else
    stages_.emplace_back(Regex(pattern, what));
}

void PreTokenizer::split(std::string_view text, std::vector<int64_t>& ends) const {
  ends.clear();
  if (text.empty()) return;
  const auto run = [](const Stage& stage, std::string_view piece, int64_t offset, std::vector<int64_t>& out) {
    if (const auto* known = std::get_if<KnownPattern>(&stage))
      scan_pieces(*known, piece, offset, out);
    else if (const auto* literal = std::get_if<Literal>(&stage))
      literal->split(piece, offset, out);
    else
      std::get<Regex>(stage).split(piece, offset, out);
  };
  if (stages_.empty()) {
    ends.push_back(static_cast<int64_t>(text.size()));
    return;
  }
  run(stages_[0], text, 0, ends);
  for (size_t i = 1; i < stages_.size(); ++i) {
    std::vector<int64_t> finer;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      run(stages_[i], text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), begin,
          finer);
      begin = end;
    }
    ends = std::move(finer);
  }
}

}  // namespace ladder
