#pragma once
// Task 4.3: what the sampler needs to know of a step's requests: which stages run, and the numbers of every
// row, which travel to the device with the other inputs of the step.
//
// Each tensor is a piece of the upload, listed once, by add(): how many numbers it has and how they are
// written. From this list the upload is measured before its memory is there, and filled afterwards.
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "step1_layers/core/tensor.h"
#include "step4_runner/logits_edits.h"
#include "step4_runner/logprobs.h"
#include "step4_runner/step_io.h"

namespace ladder {

struct SamplingPlan {
  int64_t rows = 0;
  bool all_greedy = true;

  // One value per row; undefined where no row needs them.
  Tensor temperature, min_p, top_p;  // f32
  Tensor top_k;                      // i32
  Tensor seeds, output_index;        // i64
  // Biases and masks, see logits_edits.h; undefined where there are none.
  Tensor bias_start, bias_ids, biases;
  Tensor mask_index, bitmask;
  // Penalties (penalties.h); undefined where no row has any.
  Tensor used_start, used_ids, used_counts, repetition, presence, frequency;

  // Log probabilities: the rows that want some, in order, what each wants, and i32 [rows that want some, s].
  std::vector<int64_t> logged_rows;
  std::vector<WantedLogprobs> wanted;
  Tensor selected_ids;

  LogitsEdits edits{0};  // until they are staged

  // Lists a piece: `to` becomes a tensor of `shape`; fill(plan, T* host) writes its numbers.
  template <class T, class Fill>
  void add(Tensor SamplingPlan::*to, const Shape& shape, Fill fill) {
    pieces.push_back(
        {StepUpload::bytes_of<T>(shape.numel()), [to, shape, fill](SamplingPlan& plan, StepUpload& upload) {
           const auto staged = upload.take<T>(shape);
           fill(std::as_const(plan), staged.host);
           plan.*to = staged.device;
         }});
  }
  int64_t upload_bytes() const;
  void stage(StepUpload& upload);  // once, into at least upload_bytes()

  struct Piece {
    int64_t bytes;
    std::function<void(SamplingPlan&, StepUpload&)> stage;
  };
  std::vector<Piece> pieces;
};

}  // namespace ladder
