// Task 4.5: what a step needs on the device, side by side in one copy, and the room for what comes back.
#include <algorithm>

#include "step4_runner/batch_check.h"
#include "step4_runner/model_runner.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

// The CPU reads the batch's own buffers, and what the sampler plans comes from the arena: it lasts no longer than it
// must, from sample() on.
void ModelRunner::stage(Step& step) {
  if (config_.check_batches && num_ranks(config_) > 1 && ctx_.device.is_cpu())
    compare_batches(ctx_, checksums_of(step.launched->step, batch_));
  if (is_last_stage() &&
      std::any_of(batch_.sequences().begin(), batch_.sequences().end(), [](const BatchSequence* sequence) {
        return sequence->sampling.prompt_logprobs.has_value();
      }))
    step.prompt = prompt_positions();
  if (!ctx_.device.is_cpu()) return stage_ahead(step);
  upload_.begin(ctx_, 0);
  download_.begin(ctx_, 0);
  inputs_.load(batch_, upload_);
  if (!step.prompt.rows.empty()) stage_prompt_positions(step.prompt);
}

// >>> task 4.5.inputs: lay a step out while the one before runs, and send everything it needs in one copy
void ModelRunner::prepare_ahead(const SchedulerOutput& scheduled) {
  if (is_pipeline()) {
    batch_.prepare(scheduled);
    return expect_known_tokens();
  }
  fill_in_tokens(kMaxInFlight - 1);
  batch_.prepare(scheduled);
  const auto sampled = batch_.sampled_sequences();
  if (std::any_of(sampled.begin(), sampled.end(), [this](const BatchSequence* sequence) {
        return sampler_.needs_tokens(sequence->sampling);
      }))
    fill_in_tokens(0);
}

void ModelRunner::stage_ahead(Step& step) {
  if (config_.cuda_graphs) choose_graph(step);
  const int64_t rows = step.graph != nullptr ? step.graph->size.rows : batch_.input_ids().dim(0);
  if (samples()) step.plan = sampler_.plan(batch_.sampled_sequences());
  upload_.begin(ctx_, upload_bytes(step, rows));
  download_.begin(ctx_, download_bytes(step));
  step.launched->begun.record(ctx_);
  if (step.graph != nullptr)
    inputs_.load_padded(batch_, rows, max_seqs(rows), upload_);
  else
    inputs_.load(batch_, upload_);
  if (!step.prompt.rows.empty()) stage_prompt_positions(step.prompt);
  step.plan.stage(upload_);
  upload_.send(ctx_);
  inputs_.unpack(ctx_);
}
// <<< task 4.5.inputs

int64_t ModelRunner::upload_bytes(const Step& step, int64_t rows) const {
  return inputs_.upload_bytes(batch_, rows, max_seqs(rows)) + step.plan.upload_bytes() +
         2 * StepUpload::bytes_of<int32_t>(std::ssize(step.prompt.rows)) +
         StepUpload::bytes_of<int32_t>(std::ssize(step.prompt.rows) * max_selected(step.prompt.wanted));
}

int64_t ModelRunner::download_bytes(const Step& step) const {
  const auto sampled = std::ssize(batch_.sampled_sequences());
  int64_t bytes = StepUpload::bytes_of<int32_t>(sampled) + sampler_.download_bytes(step.plan, ctx_.device);
  const std::span<const WantedLogprobs> wanted = step.prompt.wanted;
  for (size_t first = 0; first < wanted.size(); first += kLogitsRows)
    bytes +=
        logprobs_download_bytes(wanted.subspan(first, std::min<size_t>(kLogitsRows, wanted.size() - first)),
                                max_selected(wanted), model_->spec().vocab_size);
  return bytes;
}

}  // namespace ladder
