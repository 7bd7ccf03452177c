// Task 4.3: the log probabilities of prompt tokens.
#include <algorithm>

#include "step4_runner/model_runner.h"

namespace ladder {

// >>> task 4.3.prompt: log probabilities of the prompt tokens that this step predicts, the LM head in chunks
ModelRunner::PromptPositions ModelRunner::prompt_positions() const {
  PromptPositions prompt;
  for (size_t i = 0; i < batch_.sequences().size(); ++i) {
    const BatchSequence& sequence = *batch_.sequences()[i];
    if (!sequence.sampling.prompt_logprobs) continue;
    const int64_t begin = sequence.num_computed_tokens;
    const int64_t end = std::min(begin + sequence.num_scheduled_tokens, sequence.num_prompt_tokens - 1);
    for (int64_t position = begin; position < end; ++position) {
      prompt.rows.push_back(batch_.query_start(static_cast<int64_t>(i)) + position - begin);
      prompt.chosen.push_back(sequence.token_ids[static_cast<size_t>(position) + 1]);
      prompt.wanted.push_back({*sequence.sampling.prompt_logprobs, sequence.sampling.logprob_token_ids});
      prompt.owner.push_back(i);
    }
  }
  return prompt;
}

void ModelRunner::stage_prompt_positions(PromptPositions& prompt) {
  const auto staged_rows = upload_.take<int32_t>(std::ssize(prompt.rows));
  std::copy(prompt.rows.begin(), prompt.rows.end(), staged_rows.host);
  prompt.device_rows = staged_rows.device;
  if (!samples()) return;  // takes part in the LM head alone
  const auto staged_chosen = upload_.take<int32_t>(std::ssize(prompt.chosen));
  std::copy(prompt.chosen.begin(), prompt.chosen.end(), staged_chosen.host);
  prompt.device_chosen = staged_chosen.device;
  if (const int64_t columns = max_selected(prompt.wanted); columns > 0) {
    const auto staged_selected = upload_.take<int32_t>({std::ssize(prompt.wanted), columns});
    write_selected_ids(prompt.wanted, columns, staged_selected.host);
    prompt.device_selected = staged_selected.device;
  }
}

void ModelRunner::launch_prompt_logprobs(Step& step) {
  const PromptPositions& prompt = step.prompt;
  const auto count = static_cast<int64_t>(prompt.rows.size());
  for (int64_t first = 0; first < count; first += kLogitsRows) {
    ArenaScope scope(*arena_);
    const int64_t rows = std::min(kLogitsRows, count - first);
    const auto part = [&]<class T>(const std::vector<T>& all) {
      return std::span(all).subspan(static_cast<size_t>(first), static_cast<size_t>(rows));
    };
    const Tensor logits = model_->compute_logits(
        ctx_, gather_rows(step.hidden, part(prompt.rows), prompt.device_rows.narrow(0, first, rows)));
    if (!samples()) continue;
    const auto owner = part(prompt.owner);
    step.launched->prompt_logprobs.push_back(
        {position_logprobs(
             ctx_, logits, prompt.device_chosen.narrow(0, first, rows), part(prompt.wanted),
             prompt.device_selected.defined() ? prompt.device_selected.narrow(0, first, rows) : Tensor(),
             download_),
         {owner.begin(), owner.end()}});
  }
}
// <<< task 4.3.prompt

}  // namespace ladder
