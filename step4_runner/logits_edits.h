#pragma once
// Task 4.3: what the rows of a step forbid and favour before penalties and filters: biases on single tokens,
// and masks of allowed tokens.
//
//   row 0   token 2 forbidden, 1.5 on token 7      row_start   0          2  2    3
//   row 1   nothing                                token_ids   2     7       7
//   row 2   0.5 on token 7, mask A                 biases      -inf  1.5     0.5
//                                                  mask_index  -1    -1      0        bitmask   A
//
// The logits may be on a device and the step in a captured graph, so nothing is called back per token: edits
// are collected on the host while the step is planned, travel with its other inputs, and two operators apply
// them (logit_bias.h, token_bitmask.h). A step without edits uploads and launches nothing for them.
#include <cstdint>
#include <span>
#include <vector>

#include "step4_runner/batch.h"

namespace ladder {

// Tokens of a row that requests may forbid or favour one by one, at most: all limits of SamplingParams, and
// what a model may have of end tokens.
inline constexpr int64_t kMaxEditedTokens = kMaxLogitBias + 2 * kMaxBadWords + kMaxStopTokenIds + 64;

class LogitsEdits {
 public:
  explicit LogitsEdits(int64_t vocab_size) : vocab_size_(vocab_size) {}

  // Edits of the current row, in any order. Ids are in [0, vocab_size); several biases of a token add up.
  void add_bias(int32_t token_id, float bias) { row_.push_back({token_id, bias}); }
  void forbid(int32_t token_id);  // whatever its bias is
  // Only tokens that `bitmask` allows: ceil(vocab_size / 32) words, see token_bitmask.h. With a second mask:
  // those that both allow.
  void allow_only(std::span<const uint32_t> bitmask);
  void allow_only_ids(std::span<const int32_t> token_ids);
  void next_row();

  // Of the rows so far. A row without a mask has mask_index -1.
  std::span<const int32_t> row_start() const { return row_start_; }  // [rows + 1]
  std::span<const int32_t> token_ids() const { return token_ids_; }
  std::span<const float> biases() const { return biases_; }
  std::span<const int32_t> mask_index() const { return mask_index_; }  // [rows]
  std::span<const uint32_t> bitmask() const { return bitmask_; }       // [masks, words]

 private:
  struct Entry {
    int32_t token_id;
    float bias;
  };

  int64_t vocab_size_;
  std::vector<Entry> row_;          // the current row's, as they came
  std::vector<uint32_t> row_mask_;  // the current row's; empty: none
  std::vector<int32_t> row_start_{0};
  std::vector<int32_t> token_ids_;
  std::vector<float> biases_;
  std::vector<int32_t> mask_index_;
  std::vector<uint32_t> bitmask_;
};

// The seam for what later steps want of the logits, a grammar for one.
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;
  // Whether edit() looks at the tokens of such a request, and not only at their number: then the step before
  // has to be waited for.
  virtual bool needs_tokens(const SamplingParams& sampling) const = 0;
  // Adds what it wants of the next token of the sequence to the current row. Called once per step and row.
  virtual void edit(const BatchSequence& sequence, LogitsEdits& edits) = 0;
};

// What requests ask for themselves, with vLLM's meaning: allowed_token_ids, bad_words, min_tokens, logit_bias.
bool requests_edits(const SamplingParams& sampling);
bool requested_edits_need_tokens(const SamplingParams& sampling);
void edit_as_requested(const BatchSequence& sequence, LogitsEdits& edits);

}  // namespace ladder
