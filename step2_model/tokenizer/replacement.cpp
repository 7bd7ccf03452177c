#include "step2_model/tokenizer/replacement.h"

#include "step1_layers/core/error.h"

namespace ladder {

Replacement Replacement::parse(const Json& value, std::string_view what) {
  const std::string pattern_what = fmt::format("{}.pattern", what);
  const Json& pattern = json_at(value, "pattern", what);
  LADDER_CHECK(json_find(pattern, "String", pattern_what) != nullptr,
               "{}: only a String is supported, found {}", pattern_what, json_brief(pattern));
  Replacement result;
  result.pattern = json_string(pattern["String"], pattern_what);
  result.content = json_string(json_at(value, "content", what), fmt::format("{}.content", what));
  LADDER_CHECK(!result.pattern.empty() && result.pattern.size() <= kMaxBytes,
               "{}: expected 1 to {} bytes, found {}", pattern_what, kMaxBytes, json_brief(result.pattern));
  LADDER_CHECK(result.content.size() <= kMaxBytes, "{}.content: expected at most {} bytes, found {}", what,
               kMaxBytes, result.content.size());
  return result;
}

std::string Replacement::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  while (true) {
    const size_t at = text.find(pattern);
    result.append(text.substr(0, at));
    if (at == std::string_view::npos) return result;
    result.append(content);
    text.remove_prefix(at + pattern.size());
  }
}

}  // namespace ladder
