#pragma once
// The `normalizer` of tokenizer.json: what is done to a text, between the added tokens that are sought before
// it, ahead of everything else.
//
// Supported: NFC, `Prepend` (a string before every text that is not empty), `Replace` of a string, and a
// `Sequence` of those. Llama 2's is Prepend "▁" and Replace " " by "▁": with it each stretch between special
// tokens gets its "▁", not the whole text only (transformers calls that legacy behaviour).
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "step2_model/json.h"
#include "step2_model/tokenizer/replacement.h"

namespace ladder {

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // From the JSON value; `what` is how errors call it. Error for any other type.
  static Normalizer parse(const Json& value, std::string_view what);

  // The text in its normal form, or nothing where it has it already. `begins` = false: it goes on where another
  // part ended, and gets nothing before it. `text` is valid UTF-8.
  std::optional<std::string> normalize(std::string_view text, bool begins = true) const;

  // Whether a Replace can take the first character of a text away, or write one for several: then it is not certain
  // that what the normal form begins with stands at the beginning of the text.
  bool may_move_start() const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string prefix;
  };
  using Stage = std::variant<Nfc, Prepend, Replacement>;
  void add_stage(const Json& value, std::string_view what);

  std::vector<Stage> stages_;
  size_t growth_ = 1;
};

}  // namespace ladder
