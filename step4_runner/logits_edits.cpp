#include "step4_runner/logits_edits.h"

#include <algorithm>
#include <limits>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/token_bitmask.h"

namespace ladder {

void LogitsEdits::forbid(int32_t token_id) {
  add_bias(token_id, -std::numeric_limits<float>::infinity());
}

void LogitsEdits::allow_only(std::span<const uint32_t> bitmask) {
  LADDER_CHECK(std::ssize(bitmask) == bitmask_words(vocab_size_),
               "a bitmask has {} words; a vocabulary of {} takes {}", bitmask.size(), vocab_size_,
               bitmask_words(vocab_size_));
  if (row_mask_.empty())
    row_mask_.assign(bitmask.begin(), bitmask.end());
  else
    for (size_t i = 0; i < row_mask_.size(); ++i) row_mask_[i] &= bitmask[i];
}

void LogitsEdits::allow_only_ids(std::span<const int32_t> token_ids) {
  std::vector<uint32_t> bitmask(static_cast<size_t>(bitmask_words(vocab_size_)));
  for (const int32_t id : token_ids) bitmask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  allow_only(bitmask);
}

// >>> task 4.3.edits: one list of biases and masks for all rows, and what a request adds to it
void LogitsEdits::next_row() {
  // An operator's thread has a token to itself, so a row names each once. -inf and a bias add up to -inf.
  std::sort(row_.begin(), row_.end(), [](const Entry& a, const Entry& b) { return a.token_id < b.token_id; });
  for (size_t i = 0; i < row_.size(); ++i) {
    if (i > 0 && row_[i].token_id == row_[i - 1].token_id) {
      biases_.back() += row_[i].bias;
      continue;
    }
    token_ids_.push_back(row_[i].token_id);
    biases_.push_back(row_[i].bias);
  }
  row_start_.push_back(static_cast<int32_t>(token_ids_.size()));

  // The completions of a request, which stand side by side, share a mask.
  const auto words = static_cast<int64_t>(row_mask_.size());
  const int32_t previous = mask_index_.empty() ? -1 : mask_index_.back();
  if (words == 0) {
    mask_index_.push_back(-1);
  } else if (previous >= 0 &&
             std::equal(row_mask_.begin(), row_mask_.end(), bitmask_.begin() + previous * words)) {
    mask_index_.push_back(previous);
  } else {
    mask_index_.push_back(static_cast<int32_t>(std::ssize(bitmask_) / words));
    bitmask_.insert(bitmask_.end(), row_mask_.begin(), row_mask_.end());
  }
  row_.clear();
  row_mask_.clear();
}

bool requests_edits(const SamplingParams& sampling) {
  return sampling.min_tokens > 0 || !sampling.logit_bias.empty() || !sampling.allowed_token_ids.empty() ||
         !sampling.bad_words_token_ids.empty();
}

bool requested_edits_need_tokens(const SamplingParams& sampling) {
  return std::any_of(sampling.bad_words_token_ids.begin(), sampling.bad_words_token_ids.end(),
                     [](const std::vector<int32_t>& word) { return word.size() > 1; });
}

void edit_as_requested(const BatchSequence& sequence, LogitsEdits& edits) {
  const SamplingParams& sampling = sequence.sampling;
  if (!sampling.allowed_token_ids.empty()) edits.allow_only_ids(sampling.allowed_token_ids);
  // A bad word must not be completed: its last token is forbidden where the output ends in the others.
  const auto output = std::span(sequence.token_ids).subspan(static_cast<size_t>(sequence.num_prompt_tokens));
  for (const std::vector<int32_t>& word : sampling.bad_words_token_ids) {
    const auto beginning = std::span(word).first(word.size() - 1);
    if (beginning.size() > output.size()) continue;
    if (std::ranges::equal(beginning, output.last(beginning.size()))) edits.forbid(word.back());
  }
  if (sequence.num_output_tokens() < sampling.min_tokens)
    for (const int32_t id : sampling.all_stop_token_ids) edits.forbid(id);
  for (const auto& [id, bias] : sampling.logit_bias) edits.add_bias(id, static_cast<float>(bias));
}
// <<< task 4.3.edits

}  // namespace ladder
