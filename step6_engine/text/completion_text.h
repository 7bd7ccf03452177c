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
#include "step3_sequence/sampling_params.h"
#include "step3_sequence/sequence.h"
#include "step6_engine/text/stop_strings.h"

namespace ladder {

class CompletionText {
 public:
  // Of `sampling` the fields about text count: stop, include_stop_str_in_output, skip_special_tokens and
  // min_tokens (stop strings that end before it do not count). `tokenizer` may be null: no text, and `stop`
  // must be empty. It must outlive this object.
  CompletionText(const Tokenizer* tokenizer, const SamplingParams& sampling);

  struct Appended {
    int64_t num_tokens = 0;  // of the tokens given: up to and including the one that completed a stop string
    std::string text;        // that became certain
    FinishReason finish_reason = FinishReason::none;
    std::optional<std::string> stop_string;  // which one, if one was completed
  };
  // The tokens of one step and the reason, if any, why the scheduler ended the sequence with them. What has
  // no text: a token that stops the sequence (an end token, a stop id), unless what stops is to be included;
  // special tokens, unless they are not to be skipped; tokens that the tokenizer does not know. With a reason
  // nothing more will come: what was held back is certain then. A stop string that is completed is the reason,
  // whatever the scheduler's was, and nothing after the token that completed it counts; before min_tokens were
  // exceeded it completes nothing.
  Appended append(std::span<const int32_t> token_ids, FinishReason finish_reason);

 private:
  const Tokenizer* tokenizer_;
  std::optional<IncrementalDecoder> decoder_;
  StopStrings stops_;
  bool include_stop_ = false;
  int64_t min_tokens_ = 0;
  int64_t num_tokens_ = 0;  // so far
};

}  // namespace ladder
