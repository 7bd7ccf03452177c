#include "step2_model/tokenizer/metaspace.h"

#include "step1_layers/core/error.h"
#include "step2_model/tokenizer/replacement.h"
#include "step2_model/tokenizer/unicode.h"

namespace ladder {

Metaspace Metaspace::parse(const Json& value, std::string_view what) {
  Metaspace result;
  result.replacement = json_string(json_at(value, "replacement", what), fmt::format("{}.replacement", what));
  LADDER_CHECK(!result.replacement.empty() && utf8_decode(result.replacement.data()).length ==
                                                  static_cast<int>(result.replacement.size()),
               "{}.replacement: expected one character, found {}", what, json_brief(result.replacement));
  if (const Json* scheme = json_find(value, "prepend_scheme", what)) {
    const std::string& name = json_string(*scheme, fmt::format("{}.prepend_scheme", what));
    LADDER_CHECK(name == "always" || name == "first" || name == "never",
                 "{}.prepend_scheme: expected \"always\", \"first\" or \"never\", found {}", what,
                 json_brief(*scheme));
    result.prepend = name == "always"  ? Prepend::kAlways
                     : name == "first" ? Prepend::kFirst
                                       : Prepend::kNever;
  }
  if (const Json* space = json_find(value, "add_prefix_space", what)) {
    LADDER_CHECK(
        json_bool(*space, fmt::format("{}.add_prefix_space", what)) || result.prepend == Prepend::kNever,
        "{}.add_prefix_space: false contradicts prepend_scheme, which is \"always\" where it is not \"never\" or "
        "\"first\"",
        what);
  }
  if (const Json* split = json_find(value, "split", what))
    result.split = json_bool(*split, fmt::format("{}.split", what));
  return result;
}

std::string Metaspace::mark(std::string_view text, bool first) const {
  std::string marked = Replacement{" ", replacement}.apply(text);
  const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
  if (wanted && !marked.starts_with(replacement)) marked.insert(0, replacement);
  return marked;
}

std::string Metaspace::unmark(std::string_view token, bool first) const {
  return Replacement{replacement, first && prepend != Prepend::kNever ? "" : " "}.apply(token);
}

}  // namespace ladder
