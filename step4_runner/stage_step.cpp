// Task 4.5: what a step needs on the device, side by side in one copy, and the room for what comes back.
#include <algorithm>

#include "step4_runner/model_runner.h"

namespace ladder {

// >>> task 4.5: everything that a step needs travels in one copy
void ModelRunner::stage(Step& step) {
  step.prompt = prompt_positions();
  choose_graph(step);
  const int64_t rows = step.graph != nullptr ? step.graph->size.rows : batch_.input_ids().dim(0);
  upload_.begin(ctx_, upload_bytes(step, rows));
  download_.begin(ctx_, download_bytes(step));
  step.launched->begun.record(ctx_.stream);

  if (step.graph != nullptr)
    inputs_.load_padded(batch_, rows, max_seqs(rows), upload_);
  else
    inputs_.load(batch_, upload_);
  PromptPositions& prompt = step.prompt;
  if (!prompt.rows.empty()) {
    const auto staged_rows = upload_.take<int32_t>(std::ssize(prompt.rows));
    const auto staged_chosen = upload_.take<int32_t>(std::ssize(prompt.chosen));
    std::copy(prompt.rows.begin(), prompt.rows.end(), staged_rows.host);
    std::copy(prompt.chosen.begin(), prompt.chosen.end(), staged_chosen.host);
    prompt.device_rows = staged_rows.device;
    prompt.device_chosen = staged_chosen.device;
  }
  // On the CPU its memory comes from the arena, and lasts no longer than it must: from sample() on.
  if (!ctx_.device.is_cpu()) step.plan = sampler_.plan(ctx_, batch_.sampled_sequences(), upload_);
  upload_.send(ctx_);
  inputs_.unpack(ctx_);
}
// <<< task 4.5

int64_t ModelRunner::upload_bytes(const Step& step, int64_t rows) const {
  if (ctx_.device.is_cpu()) return 0;
  return inputs_.upload_bytes(batch_, rows, max_seqs(rows)) +
         sampler_.upload_bytes(batch_.sampled_sequences()) +
         2 * StepUpload::bytes_of<int32_t>(std::ssize(step.prompt.rows));
}

int64_t ModelRunner::download_bytes(const Step& step) const {
  int64_t bytes = 2 * StepUpload::kAlignment;
  const auto pieces = [&](int64_t rows, int64_t top) {
    bytes += rows * logprob_bytes(top) + 4 * (rows / kLogitsRows + 1) * StepUpload::kAlignment;
  };
  int64_t sampled_top = -1, prompt_top = -1;
  for (const BatchSequence* sequence : batch_.sampled_sequences())
    if (const auto k = sequence->sampling.logprobs)
      sampled_top = std::max(sampled_top, num_best(*k, model_->spec().vocab_size));
  for (const int64_t top : step.prompt.top) prompt_top = std::max(prompt_top, top);
  const auto sampled = static_cast<int64_t>(batch_.sampled_sequences().size());
  bytes += sampled * 4;
  if (sampled_top >= 0) pieces(sampled, sampled_top);
  if (prompt_top >= 0) pieces(static_cast<int64_t>(step.prompt.rows.size()), prompt_top);
  return bytes;
}

}  // namespace ladder
