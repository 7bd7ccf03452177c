// Task 4.5: what a step needs on the device, side by side in one copy, and the room for what comes back.
#include <algorithm>

#include "step4_runner/model_runner.h"

namespace ladder {

// >>> task 4.5: everything that a step needs travels in one copy
void ModelRunner::stage(Step& step) {
  step.prompt = prompt_positions();
  choose_graph(step);
  const int64_t rows = step.graph != nullptr ? step.graph->size.rows : batch_.input_ids().dim(0);
  // On the CPU its memory comes from the arena, and lasts no longer than it must: from sample() on.
  if (!ctx_.device.is_cpu()) step.plan = sampler_.plan(batch_.sampled_sequences());
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
  if (const int64_t columns = max_selected(prompt.wanted); columns > 0) {
    const auto staged_selected = upload_.take<int32_t>({std::ssize(prompt.wanted), columns});
    write_selected_ids(prompt.wanted, columns, staged_selected.host);
    prompt.device_selected = staged_selected.device;
  }
  if (!ctx_.device.is_cpu()) step.plan.stage(upload_);
  upload_.send(ctx_);
  inputs_.unpack(ctx_);
}
// <<< task 4.5

int64_t ModelRunner::upload_bytes(const Step& step, int64_t rows) const {
  if (ctx_.device.is_cpu()) return 0;
  return inputs_.upload_bytes(batch_, rows, max_seqs(rows)) + step.plan.upload_bytes() +
         2 * StepUpload::bytes_of<int32_t>(std::ssize(step.prompt.rows)) +
         StepUpload::bytes_of<int32_t>(std::ssize(step.prompt.rows) * max_selected(step.prompt.wanted));
}

int64_t ModelRunner::download_bytes(const Step& step) const {
  if (ctx_.device.is_cpu()) return 0;
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
