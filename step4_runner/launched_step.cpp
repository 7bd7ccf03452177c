#include "step4_runner/launched_step.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

std::span<const int32_t> LaunchedStep::tokens() const {
  done->wait();
  return {token_ids.data<int32_t>(), static_cast<size_t>(token_ids.numel())};
}

// >>> task 4.4.runner: turn the results of a step that is done into its output
StepOutput LaunchedStep::collect() const {
  const auto sampled = tokens();
  StepOutput output;
  output.step = step;
  output.prepare_seconds = prepare_seconds;
  output.forward_seconds = forward_seconds + done->seconds_since(begun);
  output.sample_seconds = sample_seconds;
  output.communicate_seconds = communicate_seconds;
  output.stage_wait_seconds = stage_wait_seconds + received.seconds_since(waits);
  output.execute_seconds = output.prepare_seconds + output.forward_seconds + output.sample_seconds;

  std::vector<PositionLogprobs> of_sampled(logprobs.empty() ? 0 : sampled.size());
  for (const LoggedRows& logged : logprobs) {
    std::vector<PositionLogprobs> positions = read_logprobs(logged);
    for (size_t i = 0; i < positions.size(); ++i)
      of_sampled[static_cast<size_t>(logged.rows[i])] = std::move(positions[i]);
  }
  size_t next = 0;
  for (const Row& row : rows) {
    SequenceStepOutput& result = output.sequences.emplace_back();
    result.id = row.id;
    if (!row.yields_token) continue;
    result.token_ids.push_back(sampled[next]);
    if (row.wants_logprobs && !of_sampled.empty()) result.logprobs.push_back(std::move(of_sampled[next]));
    ++next;
  }
  for (const PromptLogprobs& chunk : prompt_logprobs) {
    std::vector<PositionLogprobs> positions = read_logprobs(chunk.logged);
    for (size_t i = 0; i < positions.size(); ++i)
      output.sequences[chunk.owner[i]].prompt_logprobs.push_back(std::move(positions[i]));
  }
  return output;
}
// <<< task 4.4.runner

}  // namespace ladder
