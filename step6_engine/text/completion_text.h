#pragma once
// Task 6.2: from the tokens of one completion to its text: incremental decoding that never lets out half a
// character, then stop strings, then the reason why it ended.
//
//   tokens -> IncrementalDecoder -> whole characters -> StopStrings -> text
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "step2_model/tokenizer/tokenizer.h"
#include "step3_sequence/sequence.h"
#include "step6_engine/text/stop_strings.h"

namespace ladder {

class CompletionText {
 public:
  // `tokenizer` may be null: no text, and `stops` must be empty. It must outlive this object.
  CompletionText(const Tokenizer* tokenizer, std::vector<std::string> stops);

  struct Appended {
    int64_t num_tokens = 0;  // of the tokens given: up to and including the one that completed a stop string
    std::string text;        // that became certain
    FinishReason finish_reason = FinishReason::none;
  };
  // Takes the tokens of one step and the reason, if any, why the scheduler ended the sequence with them. A
  // token that stops the sequence (an end token, a stop id) has no text; special tokens have none anywhere.
  Appended append(std::span<const int32_t> token_ids, FinishReason finish_reason);

 private:
  const Tokenizer* tokenizer_;
  std::optional<IncrementalDecoder> decoder_;
  StopStrings stops_;
};

}  // namespace ladder
