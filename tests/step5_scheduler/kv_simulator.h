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
#include <utility>
#include <vector>

#include "step1_layers/core/error.h"
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
        slots_(std::make_shared<std::vector<Slot>>(static_cast<size_t>(num_blocks * block_size))) {}

  // From now on they have one cache, and their steps are in flight beside each other's: blocks that one writes are in no step
  // in flight of the other.
  void share_cache_with(KvSimulator& other) {
    slots_ = other.slots_;
    beside_ = &other;
    other.beside_ = this;
  }

  int max_in_flight() const override { return 1 + delay_; }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_padding_rows() const { return num_padding_rows_; }

  Ticket submit(const SchedulerOutput& step) override {
    step_ = step.step;
    check(!step.empty(), kNoSequence, -1, "an empty step was submitted");
    Step planned{step.step, {}, {}, {}};
    for (const SequenceId id : step.finished) forget(id, "finished");
    for (const SequenceId id : step.preempted) forget(id, "preempted");
    for (const NewSequence& added : step.new_sequences) add(added);
    std::set<SequenceId> changed;
    for (const ContinuedSequence& continued : step.continued) {
      check(sequences_.contains(continued.id), continued.id, -1,
            "it is continued, but the runner does not know it");
      State& state = sequences_.at(continued.id);
      state.table.insert(state.table.end(), continued.new_block_ids.begin(), continued.new_block_ids.end());
      check(continued.num_computed_tokens == state.num_computed || continued.num_computed_tokens == 0,
            continued.id, continued.num_computed_tokens,
            "it is continued from here, expected position {} (or 0)", state.num_computed);
      state.num_computed = continued.num_computed_tokens;
      changed.insert(continued.id);
    }
    for (const NewSequence& added : step.new_sequences)
      check(changed.insert(added.id).second, added.id, -1, "it is both new and continued");

    int64_t total = 0;
    std::set<SequenceId> seen;
    for (const ScheduledSequence& scheduled : step.scheduled) {
      check(seen.insert(scheduled.id).second, scheduled.id, -1, "it is scheduled twice");
      check(changed.contains(scheduled.id), scheduled.id, -1,
            "it is scheduled, but neither new nor continued");
      plan(scheduled, planned);
      total += scheduled.num_tokens;
    }
    for (const SequenceId id : changed)
      check(seen.contains(id), id, -1, "it is new or continued, but not scheduled");
    check(total == step.total_num_tokens, kNoSequence, -1, "total_num_tokens is {}, expected {}",
          step.total_num_tokens, total);
    num_rows_ += total;
    num_padding_rows_ += step.num_static_padding_rows;
    for (const Step& other : in_flight_)
      for (const auto& [written, writer] : planned.writes) {
        const auto readers = other.blocks.find(static_cast<int32_t>(written / block_size_));
        if (readers == other.blocks.end()) continue;
        for (const SequenceId reader : readers->second)
          check(reader == writer.id, writer.id, writer.position,
                "block {} is written, which step {}, still in flight, uses for sequence {}",
                written / block_size_, other.step, reader);
      }
    if (beside_ != nullptr)
      for (const Step& other : beside_->in_flight_) check_apart(planned, other);
    in_flight_.push_back(std::move(planned));
    return {step.step};
  }

  StepOutput collect(Ticket ticket) override {
    check(!in_flight_.empty() && in_flight_.front().step == ticket.value, kNoSequence, -1,
          "ticket {} is collected out of order", ticket.value);
    const Step step = std::move(in_flight_.front());
    step_ = step.step;
    in_flight_.pop_front();
    StepOutput output;
    output.step = step.step;
    for (const Work& work : step.work) output.sequences.push_back(compute(work));
    return output;
  }

  // Keys and values that come from, or go to, another engine. fill() writes what was computed there for the positions
  // [first, first + count), spoil() something else.
  void fill(const std::vector<int32_t>& table, const std::vector<int32_t>& tokens, int64_t first,
            int64_t count) {
    uint64_t fingerprint = 0;
    for (int64_t p = 0; p < first + count; ++p) {
      fingerprint = extend_fingerprint(fingerprint, tokens.at(p));
      if (p >= first) slots_->at(slot(table, p)) = {fingerprint, {}};
    }
  }
  void spoil(const std::vector<int32_t>& table, int64_t first, int64_t count) {
    for (int64_t p = first; p < first + count; ++p) slots_->at(slot(table, p)) = {~uint64_t{0}, {}};
  }
  bool holds(const std::vector<int32_t>& table, const std::vector<int32_t>& tokens, int64_t count) const {
    uint64_t fingerprint = 0;
    for (int64_t p = 0; p < count; ++p) {
      fingerprint = extend_fingerprint(fingerprint, tokens.at(p));
      if (slots_->at(slot(table, p)).fingerprint != fingerprint) return false;
    }
    return true;
  }
  // By a step in flight.
  bool is_used(int32_t block) const {
    for (const Step& step : in_flight_)
      if (step.blocks.contains(block)) return true;
    return false;
  }

 private:
  static constexpr SequenceId kNoSequence = -1;

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
  struct Writer {
    SequenceId id = kNoSequence;
    int64_t position = -1;
    int64_t step = -1;
  };
  struct Step {
    int64_t step;
    std::vector<Work> work;
    std::map<int64_t, Writer> writes;                // by slot
    std::map<int32_t, std::set<SequenceId>> blocks;  // block -> whose tables have it
  };
  struct Slot {
    uint64_t fingerprint = 0;
    Writer writer;
  };

  // What is wrong, with the step that is looked at and, where known, sequence and position.
  template <class... Args>
  void check(bool condition, SequenceId id, int64_t position, fmt::format_string<Args...> format,
             Args&&... args) const {
    if (condition) return;
    std::string text = fmt::format("step {}", step_);
    if (id != kNoSequence) text += fmt::format(", sequence {}", id);
    if (position >= 0) text += fmt::format(", position {}", position);
    throw std::logic_error(text + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  void forget(SequenceId id, const char* why) {
    check(sequences_.erase(id) == 1, id, -1, "the runner should forget it ({}), but does not know it", why);
  }

  void add(const NewSequence& added) {
    check(!sequences_.contains(added.id), added.id, -1, "it is new, but the runner knows it already");
    auto tokens = std::make_shared<std::vector<int32_t>>();
    if (added.prompt_of >= 0) {
      check(sequences_.contains(added.prompt_of), added.id, -1,
            "it has the prompt of sequence {}, which the runner does not know", added.prompt_of);
      const State& other = sequences_.at(added.prompt_of);
      check(other.num_prompt_tokens == added.num_prompt_tokens, added.id, -1,
            "it has the prompt of sequence {}, of {} tokens, and {} prompt tokens", added.prompt_of,
            other.num_prompt_tokens, added.num_prompt_tokens);
      tokens->assign(other.tokens->begin(), other.tokens->begin() + added.num_prompt_tokens);
    }
    tokens->insert(tokens->end(), added.token_ids.begin(), added.token_ids.end());
    check(added.num_computed_tokens < static_cast<int64_t>(tokens->size()), added.id,
          added.num_computed_tokens, "it is new, and of its {} tokens none is left to compute",
          tokens->size());
    State& state = sequences_[added.id];
    state.num_tokens = static_cast<int64_t>(tokens->size());
    state.tokens = std::move(tokens);
    state.num_prompt_tokens = added.num_prompt_tokens;
    state.seed = added.sampling.seed.value();
    state.prompt_logprobs = added.sampling.prompt_logprobs.has_value();
    state.table = added.block_table;
    state.num_computed = added.num_computed_tokens;
  }

  void plan(const ScheduledSequence& scheduled, Step& planned) {
    State& state = sequences_.at(scheduled.id);
    check(scheduled.num_tokens >= 1, scheduled.id, -1, "it is scheduled with {} tokens",
          scheduled.num_tokens);
    const int64_t end = state.num_computed + scheduled.num_tokens;
    check(end <= state.num_tokens, scheduled.id, end - 1,
          "{} tokens are scheduled from position {} on, but there are only {} (placeholders included)",
          scheduled.num_tokens, state.num_computed, state.num_tokens);
    const int64_t num_slots = static_cast<int64_t>(state.table.size()) * block_size_;
    check(end <= num_slots, scheduled.id, end - 1,
          "the block table is too short: {} tokens need {} blocks, it has {}", end,
          (end + block_size_ - 1) / block_size_, state.table.size());
    Work work{scheduled.id,
              state.tokens,
              state.table,
              state.num_computed,
              end,
              state.num_prompt_tokens,
              state.seed,
              state.prompt_logprobs,
              end == state.num_tokens};
    for (int64_t p = state.num_computed; p < end; ++p) {
      const auto [place, is_first] =
          planned.writes.emplace(slot(work.table, p), Writer{scheduled.id, p, step_});
      check(is_first, scheduled.id, p,
            "slot {} (block {}) is written in this step by sequence {}, position {}, too", place->first,
            place->first / block_size_, place->second.id, place->second.position);
    }
    for (const int32_t block : work.table) planned.blocks[block].insert(scheduled.id);
    planned.work.push_back(work);
    state.num_computed = end;
    if (work.samples) ++state.num_tokens;  // a placeholder, filled in when the step is computed
  }

  void check_apart(const Step& planned, const Step& other) const {
    const auto expect_unused = [&](const Step& writing, const Step& using_it) {
      for (const auto& [written, writer] : writing.writes)
        check(!using_it.blocks.contains(static_cast<int32_t>(written / block_size_)), writer.id,
              writer.position, "block {} is written by step {}, and step {} of the other lane has it",
              written / block_size_, writing.step, using_it.step);
    };
    expect_unused(planned, other);
    expect_unused(other, planned);
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
      const Slot& read = slots_->at(slot(work.table, p));
      check(read.fingerprint == expected, work.id, p,
            "slot {} (block {}) should hold this token after those before it; it was last written {}",
            slot(work.table, p), slot(work.table, p) / block_size_, description(read.writer));
    }
    for (int64_t p = work.begin; p < work.end; ++p) {
      const uint64_t previous = p == 0 ? 0 : slots_->at(slot(work.table, p - 1)).fingerprint;
      slots_->at(slot(work.table, p)) = {extend_fingerprint(previous, work.tokens->at(p)),
                                         {work.id, p, step_}};
      if (work.prompt_logprobs && p + 1 < work.num_prompt_tokens) {
        PositionLogprobs logprobs;
        logprobs.chosen = {work.tokens->at(p + 1),
                           -static_cast<float>(p)};  // so that a test sees which it got
        answer.prompt_logprobs.push_back(logprobs);
      }
    }
    if (work.samples) {
      const int32_t token =
          next_token(slots_->at(slot(work.table, work.end - 1)).fingerprint, work.seed, vocab_size_);
      work.tokens->push_back(token);
      answer.token_ids.push_back(token);
    }
    return answer;
  }

  static std::string description(const Writer& writer) {
    if (writer.id == kNoSequence) return "never";
    return fmt::format("in step {} by sequence {}, position {}", writer.step, writer.id, writer.position);
  }

  int64_t block_size_, vocab_size_;
  int delay_;
  int64_t step_ = 0;  // the one that is looked at
  std::shared_ptr<std::vector<Slot>> slots_;
  const KvSimulator* beside_ = nullptr;
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
