#include "step7_parallel/data/simulation/simulated_replica.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

SimulatedReplica::SimulatedReplica(const SchedulerConfig& config, const StepTimeModel& model,
                                   std::shared_ptr<KvConnector> connector)
    : scheduler_(config, nullptr, std::move(connector)), model_(model), vocab_size_(config.vocab_size) {}

void SimulatedReplica::add(int64_t request, std::vector<int32_t> prompt, int64_t num_output,
                           std::shared_ptr<const KvTransferParams> kv_transfer) {
  SamplingParams sampling;
  sampling.max_tokens = num_output;
  sampling.ignore_eos = true;
  sampling.seed = 0;
  const int64_t num_tokens = std::ssize(prompt);
  const SequenceId id = scheduler_.add(std::move(prompt), sampling, std::move(kv_transfer)).front();
  sequences_[id] = {request, num_tokens, 0};
}

std::optional<double> SimulatedReplica::begin_step() {
  LADDER_CHECK(!in_step(), "simulated replica: a step begins in another");
  scheduler_.schedule(output_);
  if (output_.empty()) return std::nullopt;
  for (const NewSequence& added : output_.new_sequences)
    sequences_.at(added.id).num_computed = added.num_computed_tokens;
  for (const ContinuedSequence& continued : output_.continued)
    sequences_.at(continued.id).num_computed = continued.num_computed_tokens;

  StepWork work;
  answer_ = {};
  answer_.step = output_.step;
  tokens_.clear();
  for (const ScheduledSequence& scheduled : output_.scheduled) {
    Known& sequence = sequences_.at(scheduled.id);
    const int64_t num_before = sequence.num_computed;
    sequence.num_computed += scheduled.num_tokens;
    const bool samples = sequence.num_computed == sequence.num_tokens;
    add_sequence(work, scheduled.num_tokens, num_before, samples);
    SequenceStepOutput answer;
    answer.id = scheduled.id;
    if (samples) {
      // Different in each request, so that a cache finds an answer in the prompts that continue it and nowhere else.
      const auto mixed = static_cast<uint64_t>(sequence.request) * 0x9e3779b97f4a7c15ull +
                         static_cast<uint64_t>(sequence.num_tokens) * 0x94d049bb133111ebull;
      const auto token = static_cast<int32_t>((mixed >> 16) % static_cast<uint64_t>(vocab_size_));
      answer.token_ids.push_back(token);
      tokens_.push_back({sequence.request, token, false});
      sequence.num_tokens += 1;
    }
    answer_.sequences.push_back(std::move(answer));
  }
  return model_.seconds(work);
}

std::span<const SimulatedToken> SimulatedReplica::end_step() {
  LADDER_CHECK(in_step(), "simulated replica: a step ends that has not begun");
  size_t next = 0;
  for (const SequenceUpdate& update : scheduler_.update(std::move(answer_))) {
    SimulatedToken& token = tokens_.at(next++);
    LADDER_CHECK(token.request == sequences_.at(update.id).request,
                 "simulated replica: an update of another request");
    token.is_last = update.finish_reason != FinishReason::none;
    if (token.is_last) sequences_.erase(update.id);
  }
  output_ = {};
  return tokens_;
}

}  // namespace ladder
