#pragma once
// An executor without a model, that knows everything only from the SchedulerOutputs it is given, and answers
// late if asked to.
//
// Its KV cache is real: one slot per token, written and read through the block tables. What it writes for
// position p is a fingerprint of tokens 0..p, made from the fingerprint that it finds in the cache for
// position p - 1; so a slot that is overwritten, stale, or another prompt's changes every later token, as it
// would in a transformer. Before it computes a row it also checks, as attention would read them, that every
// earlier position holds the right fingerprint.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "step4_runner/executor.h"

namespace ladder {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15ull + b + 0x7f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline uint64_t extend_fingerprint(uint64_t previous, int32_t token) {
  return mix(previous, static_cast<uint64_t>(token));
}

// The model: the next token is a function of all tokens before it, and of the seed.
inline int32_t next_token(uint64_t fingerprint, uint64_t seed, int64_t vocab_size) {
  return static_cast<int32_t>(mix(fingerprint, seed) % static_cast<uint64_t>(vocab_size));
}

class KvSimulator final : public Executor {
 public:
  // `delay`: steps that may be in flight before the first is computed.
  KvSimulator(int64_t num_blocks, int64_t block_size, int64_t vocab_size, int delay = 0)
      : block_size_(block_size),
        vocab_size_(vocab_size),
        delay_(delay),
        slots_(static_cast<size_t>(num_blocks * block_size), 0) {}

  int max_in_flight() const override { return 1 + delay_; }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_padding_rows() const { return num_padding_rows_; }

  Ticket submit(const SchedulerOutput& step) override {
    step_ = step.step;
    check(!step.empty(), "an empty step was submitted");
    Step planned{step.step, {}, {}, {}};
    for (const SequenceId id : step.finished) forget(id);
    for (const SequenceId id : step.preempted) forget(id);
    for (const NewSequence& added : step.new_sequences) {
      check(!sequences_.contains(added.id), "a new sequence is known already", added.id);
      auto tokens = std::make_shared<std::vector<int32_t>>();
      if (added.prompt_of >= 0) {
        check(sequences_.contains(added.prompt_of), "a new sequence shares the prompt of an unknown one",
              added.id);
        const std::vector<int32_t>& other = *sequences_.at(added.prompt_of).tokens;
        check(sequences_.at(added.prompt_of).num_prompt_tokens == added.num_prompt_tokens,
              "a new sequence shares a prompt of another length", added.id);
        tokens->assign(other.begin(), other.begin() + added.num_prompt_tokens);
      }
      tokens->insert(tokens->end(), added.token_ids.begin(), added.token_ids.end());
      check(added.num_computed_tokens < static_cast<int64_t>(tokens->size()),
            "a new sequence has no token left to compute", added.id);
      State& state = sequences_[added.id];
      state.num_tokens = static_cast<int64_t>(tokens->size());
      state.tokens = std::move(tokens);
      state.num_prompt_tokens = added.num_prompt_tokens;
      state.seed = added.sampling.seed.value();
      state.prompt_logprobs = added.sampling.prompt_logprobs.has_value();
      state.table = added.block_table;
      state.num_computed = added.num_computed_tokens;
    }
    std::set<SequenceId> changed;
    for (const ContinuedSequence& continued : step.continued) {
      check(sequences_.contains(continued.id), "a continued sequence is not known", continued.id);
      State& state = sequences_.at(continued.id);
      state.table.insert(state.table.end(), continued.new_block_ids.begin(), continued.new_block_ids.end());
      check(continued.num_computed_tokens == state.num_computed || continued.num_computed_tokens == 0,
            "a continued sequence goes on from somewhere else", continued.id, continued.num_computed_tokens);
      state.num_computed = continued.num_computed_tokens;
      changed.insert(continued.id);
    }
    for (const NewSequence& added : step.new_sequences)
      check(changed.insert(added.id).second, "a sequence is both new and continued", added.id);

    int64_t total = 0;
    std::set<SequenceId> seen;
    for (const ScheduledSequence& scheduled : step.scheduled) {
      check(seen.insert(scheduled.id).second, "a sequence is scheduled twice", scheduled.id);
      check(changed.contains(scheduled.id), "a scheduled sequence is neither new nor continued",
            scheduled.id);
      State& state = sequences_.at(scheduled.id);
      check(scheduled.num_tokens >= 1, "a sequence is scheduled with no token", scheduled.id);
      const int64_t end = state.num_computed + scheduled.num_tokens;
      check(end <= state.num_tokens, "more tokens are scheduled than there are", scheduled.id, end - 1);
      check(end <= static_cast<int64_t>(state.table.size()) * block_size_, "the block table is too short",
            scheduled.id, end - 1);
      Work work{scheduled.id,
                state.tokens,
                state.table,
                state.num_computed,
                end,
                state.num_prompt_tokens,
                state.seed,
                state.prompt_logprobs,
                end == state.num_tokens};
      for (int64_t p = state.num_computed; p < end; ++p)
        check(planned.writes.emplace(slot(work.table, p), scheduled.id).second, "two rows write one slot",
              scheduled.id, p);
      for (const int32_t block : work.table) planned.blocks[block].insert(scheduled.id);
      planned.work.push_back(work);
      state.num_computed = end;
      if (work.samples) ++state.num_tokens;  // a placeholder, filled in when the step is computed
      total += scheduled.num_tokens;
    }
    check(changed.size() == seen.size(), "a sequence changed that is not scheduled");
    check(total == step.total_num_tokens, "total_num_tokens is wrong");
    num_rows_ += total;
    num_padding_rows_ += step.num_static_padding_rows;
    for (const Step& other : in_flight_)
      for (const auto& [written, id] : planned.writes) {
        const auto readers = other.blocks.find(static_cast<int32_t>(written / block_size_));
        if (readers == other.blocks.end()) continue;
        for (const SequenceId reader : readers->second)
          check(reader == id, "a block is written that a step in flight uses for another sequence", id);
      }
    in_flight_.push_back(std::move(planned));
    return {step.step};
  }

  StepOutput collect(Ticket ticket) override {
    check(!in_flight_.empty() && in_flight_.front().step == ticket.value, "a ticket out of order");
    const Step step = std::move(in_flight_.front());
    step_ = step.step;
    in_flight_.pop_front();
    StepOutput output;
    output.step = step.step;
    for (const Work& work : step.work) output.sequences.push_back(compute(work));
    return output;
  }

 private:
  struct State {
    std::shared_ptr<std::vector<int32_t>> tokens;  // known ones: shared with the steps in flight
    int64_t num_tokens = 0;                        // and placeholders
    int64_t num_prompt_tokens = 0;
    uint64_t seed = 0;
    bool prompt_logprobs = false;
    std::vector<int32_t> table;
    int64_t num_computed = 0;
  };
  struct Work {
    SequenceId id;
    std::shared_ptr<std::vector<int32_t>> tokens;
    std::vector<int32_t> table;
    int64_t begin, end, num_prompt_tokens;
    uint64_t seed;
    bool prompt_logprobs, samples;
  };
  struct Step {
    int64_t step;
    std::vector<Work> work;
    std::map<int64_t, SequenceId> writes;            // slot -> who writes it
    std::map<int32_t, std::set<SequenceId>> blocks;  // block -> whose tables have it
  };

  // What is wrong, with the step that is looked at and, where known, sequence and position.
  void check(bool condition, const char* message, SequenceId id = -1, int64_t position = -1) const {
    if (condition) return;
    std::string text = "step " + std::to_string(step_);
    if (id >= 0) text += ", sequence " + std::to_string(id);
    if (position >= 0) text += ", position " + std::to_string(position);
    throw std::logic_error(text + ": " + message);
  }

  void forget(SequenceId id) {
    check(sequences_.erase(id) == 1, "the runner should forget a sequence that it does not know", id);
  }

  int64_t slot(const std::vector<int32_t>& table, int64_t position) const {
    return table.at(position / block_size_) * block_size_ + position % block_size_;
  }

  SequenceStepOutput compute(const Work& work) {
    SequenceStepOutput answer;
    answer.id = work.id;
    uint64_t expected = 0;
    for (int64_t p = 0; p < work.begin; ++p) {
      expected = extend_fingerprint(expected, work.tokens->at(p));
      check(slots_.at(slot(work.table, p)) == expected, "the cache holds something else for a computed token",
            work.id, p);
    }
    for (int64_t p = work.begin; p < work.end; ++p) {
      const uint64_t previous = p == 0 ? 0 : slots_.at(slot(work.table, p - 1));
      slots_.at(slot(work.table, p)) = extend_fingerprint(previous, work.tokens->at(p));
      if (work.prompt_logprobs && p + 1 < work.num_prompt_tokens) {
        PositionLogprobs logprobs;
        logprobs.chosen = {work.tokens->at(p + 1),
                           -static_cast<float>(p)};  // so that a test sees which it got
        answer.prompt_logprobs.push_back(logprobs);
      }
    }
    if (work.samples) {
      const int32_t token = next_token(slots_.at(slot(work.table, work.end - 1)), work.seed, vocab_size_);
      work.tokens->push_back(token);
      answer.token_ids.push_back(token);
    }
    return answer;
  }

  int64_t block_size_, vocab_size_;
  int delay_;
  int64_t step_ = 0;  // the one that is looked at
  std::vector<uint64_t> slots_;
  std::map<SequenceId, State> sequences_;
  std::deque<Step> in_flight_;
  int64_t num_rows_ = 0, num_padding_rows_ = 0;
};

// What one sequence's output must be, whatever runs beside it.
inline std::vector<int32_t> reference_output(const std::vector<int32_t>& prompt,
                                             const SamplingParams& sampling, uint64_t seed,
                                             int64_t vocab_size, int64_t max_model_len,
                                             const std::vector<int32_t>& eos_token_ids) {
  uint64_t fingerprint = 0;
  for (const int32_t token : prompt) fingerprint = extend_fingerprint(fingerprint, token);
  const auto holds = [](const std::vector<int32_t>& ids, int32_t id) {
    for (const int32_t other : ids)
      if (other == id) return true;
    return false;
  };
  std::vector<int32_t> output;
  while (static_cast<int64_t>(output.size()) < sampling.max_tokens.value_or(max_model_len) &&
         static_cast<int64_t>(prompt.size() + output.size()) < max_model_len) {
    output.push_back(next_token(fingerprint, seed, vocab_size));
    if (!sampling.ignore_eos && holds(eos_token_ids, output.back())) break;
    if (holds(sampling.stop_token_ids, output.back())) break;
    fingerprint = extend_fingerprint(fingerprint, output.back());
  }
  return output;
}

}  // namespace ladder
