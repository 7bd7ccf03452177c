#pragma once
// Task 4.3: log probabilities of some rows of logits, computed and copied to the host: of the chosen token,
// the best ones, those of logprob_token_ids, or of the whole vocabulary.
#include <cstdint>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step4_runner/executor.h"
#include "step4_runner/step_io.h"

namespace ladder {

// What one position wants beside the log probability of its chosen token.
struct WantedLogprobs {
  int64_t top = 0;                    // so many of the best; -1: the whole vocabulary
  std::span<const int32_t> selected;  // these
};

// The most tokens that a position selects.
int64_t max_selected(std::span<const WantedLogprobs> wanted);
// Their ids [positions, columns], kInvalidToken where a position selects fewer.
void write_selected_ids(std::span<const WantedLogprobs> wanted, int64_t columns, int32_t* to);

// Bytes that position_logprobs() takes from a download.
int64_t logprobs_download_bytes(std::span<const WantedLogprobs> wanted, int64_t num_selected,
                                int64_t vocab_size);

// Log probabilities of some positions, on the host once the step is done.
struct LoggedRows {
  std::vector<int64_t> rows;               // of the step
  std::vector<int64_t> top, num_selected;  // for each: as in WantedLogprobs
  Tensor chosen;                           // i32 [rows]
  Tensor chosen_logprobs;                  // f32 [rows]
  Tensor top_ids;                          // i32 [rows, k], undefined where no row wants any
  Tensor top_logprobs;                     // f32 [rows, k]
  Tensor selected_ids;                     // i32 [rows, s], undefined where no row wants any
  Tensor selected_logprobs;                // f32 [rows, s]
  std::vector<Tensor> whole;               // f32 [1, vocab] of each row that wants it, in order
};

// For chosen [rows] i32 in logits [rows, vocab] f32. `selected_ids` [rows, s] i32 holds each row's `selected`,
// then kInvalidToken; undefined: no row wants any. The logits of rows that want the whole vocabulary are
// overwritten.
LoggedRows position_logprobs(const OpContext& ctx, const Tensor& logits, const Tensor& chosen,
                             std::span<const WantedLogprobs> wanted, const Tensor& selected_ids,
                             StepDownload& download);

// In the order of logged.rows. The step is done.
std::vector<PositionLogprobs> read_logprobs(const LoggedRows& logged);

}  // namespace ladder
