#include "step2_model/tokenizer/tokenizer.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

void check_length(int64_t bytes) {
  LADDER_CHECK(bytes <= kMaxTextBytes, "tokenizer: a text of {} bytes, at most {} are encoded", bytes,
               kMaxTextBytes);
}

std::string_view slice(std::string_view text, int64_t begin, int64_t end) {
  return text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// A part of a text after the normalizer, which is applied stretch by stretch: so it is known where each of them
// ends.
struct NormalizedPart {
  std::string text;
  std::vector<TextStretch> stretches;
};

NormalizedPart normalize_part(std::string_view text, const TextPart& part,
                              std::span<const TextStretch> stretches, const Normalizer& normalizer) {
  NormalizedPart result;
  auto stretch =
      std::upper_bound(stretches.begin(), stretches.end(), part.begin,
                       [](int64_t at, const TextStretch& candidate) { return at < candidate.end; });
  for (int64_t begin = part.begin; begin < part.end; ++stretch) {
    const int64_t end = std::min(part.end, stretch->end);
    const std::string_view raw = slice(text, begin, end);
    const std::optional<std::string> changed = normalizer.normalize(raw, begin == part.begin);
    result.text.append(changed ? std::string_view(*changed) : raw);
    result.stretches.push_back({static_cast<int64_t>(result.text.size()), stretch->trusted});
    begin = end;
  }
  return result;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       bool parse_special) const {
  check_length(static_cast<int64_t>(text.size()));
  std::string replaced;
  if (utf8_valid_prefix(text) < static_cast<int64_t>(text.size())) {
    utf8_append_replaced(replaced, text);
    text = replaced;
  }
  const TextStretch whole{static_cast<int64_t>(text.size()), parse_special};
  return encode_valid(text, std::span(&whole, 1), {}, add_special_tokens);
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextSegment> segments, bool add_special_tokens,
                                       std::span<const std::string_view> control_tokens) const {
  std::string text;
  std::vector<TextStretch> stretches;
  for (const TextSegment& segment : segments) {
    check_length(static_cast<int64_t>(text.size() + segment.text.size()));
    utf8_append_replaced(text, segment.text);
    const auto end = static_cast<int64_t>(text.size());
    if (!stretches.empty() && stretches.back().trusted == segment.trusted)
      stretches.back().end = end;
    else
      stretches.push_back({end, segment.trusted});
  }
  std::vector<int32_t> control_ids;
  for (const std::string_view token : control_tokens)
    if (const auto added = added_ids_.find(token); added != added_ids_.end())
      control_ids.push_back(added->second);
  return encode_valid(text, stretches, control_ids, add_special_tokens);
}

// >>> task 2.5.text: the way of a text: added tokens, normalizer, added tokens that are sought after it, pieces, merges
std::vector<int32_t> Tokenizer::encode_valid(std::string_view text, std::span<const TextStretch> stretches,
                                             std::span<const int32_t> control_ids,
                                             bool add_special_tokens) const {
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = prefix_;
  for (const TextPart& part : raw_added_.split(text, stretches, control_ids)) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else if (normalized_added_.empty()) {
      const std::string_view raw = slice(text, part.begin, part.end);
      const std::optional<std::string> changed = normalizer_.normalize(raw);
      encode_between(changed ? std::string_view(*changed) : raw, part.begin == 0, ids);
    } else {
      const NormalizedPart normalized = normalize_part(text, part, stretches, normalizer_);
      for (const TextPart& inner :
           normalized_added_.split(normalized.text, normalized.stretches, control_ids)) {
        if (inner.token != nullptr)
          ids.push_back(inner.token->id);
        else
          encode_between(slice(normalized.text, inner.begin, inner.end), part.begin == 0 && inner.begin == 0,
                         ids);
      }
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

void Tokenizer::encode_between(std::string_view text, bool first, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string changed;
  if (pre_tokenizer_.add_prefix_space() && !text.starts_with(' ')) {
    changed.append(" ").append(text);
    text = changed;
  } else if (pre_tokenizer_.metaspace()) {
    changed = pre_tokenizer_.metaspace()->mark(text, first);
    text = changed;
  }
  std::vector<int64_t> ends;
  pre_tokenizer_.split(text, ends);
  bpe_.encode(text, ends, ids);
}
// <<< task 2.5.text

std::string_view Tokenizer::token_bytes(int32_t id) const {
  LADDER_CHECK(tokens_.has(id), "tokenizer: there is no token of id {}; ids are in [0, {})", id,
               vocab_size());
  return tokens_.bytes(id);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto added = added_ids_.find(token); added != added_ids_.end()) return added->second;
  return utf8_valid_prefix(token) == static_cast<int64_t>(token.size()) ? bpe_.find_written(token)
                                                                        : std::nullopt;
}

}  // namespace ladder
