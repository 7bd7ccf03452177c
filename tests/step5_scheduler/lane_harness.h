#pragma once
// Runs a scheduler whose phases are lanes against a simulator for each, over one cache, and keeps the books.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/step5_scheduler/harness.h"

namespace ladder {

inline SchedulerConfig with_lanes(SchedulerConfig config) {
  config.phase_lanes = true;
  return config;
}

// Harness::executor and Harness::tickets are the prefill lane's.
struct LaneHarness : Harness {
  explicit LaneHarness(const SchedulerConfig& config, int delay = 0,
                       std::unique_ptr<PrefixIndex> index = nullptr)
      : Harness(with_lanes(config), delay, std::move(index)),
        decodes(config.batch.num_kv_blocks, config.batch.block_size, config.vocab_size, delay) {
    decodes.share_cache_with(executor);
  }

  KvSimulator& lane(StepPhase phase) { return phase == StepPhase::decode ? decodes : executor; }
  std::deque<Ticket>& tickets_of(StepPhase phase) {
    return phase == StepPhase::decode ? decode_tickets : tickets;
  }

  // Plans and submits one step of the phase; false if nothing can be run now.
  bool submit(StepPhase phase) {
    scheduler.schedule(output, phase);
    if (output.empty()) return false;
    const BatchConfig& batch = scheduler.config().batch;
    const bool decode = phase == StepPhase::decode;
    EXPECT_LE(output.total_num_tokens, decode ? batch.max_num_seqs : batch.max_num_batched_tokens);
    EXPECT_LE(std::ssize(output.scheduled), batch.max_num_seqs);
    for (const ScheduledSequence& scheduled : output.scheduled) {
      const Sequence& sequence = *scheduler.find(scheduled.id);
      const int64_t num_before = sequence.num_computed_tokens - scheduled.num_tokens;
      const bool decodes = scheduled.num_tokens == 1 && num_before >= sequence.num_prompt_tokens;
      if (decode) {
        EXPECT_TRUE(decodes) << "sequence " << scheduled.id;
      }
      num_answers_in_prefills += decodes && !decode;
      EXPECT_FALSE(in_flight[1 - decode].contains(scheduled.id))
          << "sequence " << scheduled.id << " is in a step in flight of the other lane";
      in_flight[decode].insert(scheduled.id);
    }
    tickets_of(phase).push_back(lane(phase).submit(output));
    ++num_steps;
    return true;
  }

  void collect(StepPhase phase) {
    StepOutput answer = lane(phase).collect(tickets_of(phase).front());
    tickets_of(phase).pop_front();
    std::multiset<SequenceId>& ids = in_flight[phase == StepPhase::decode];
    for (const SequenceStepOutput& one : answer.sequences) ids.erase(ids.find(one.id));
    apply(std::move(answer));
  }

  // Both lanes are kept full, and one step is collected, of a lane that is drawn.
  bool turn() override {
    bool submitted = false;
    for (const StepPhase phase : {StepPhase::decode, StepPhase::prefill})
      while (std::ssize(tickets_of(phase)) < lane(phase).max_in_flight() && submit(phase)) submitted = true;
    if (!tickets.empty() || !decode_tickets.empty()) {
      // Prompts take longer than tokens.
      const bool prefill = decode_tickets.empty() || (!tickets.empty() && random() % 5 == 0);
      collect(prefill ? StepPhase::prefill : StepPhase::decode);
      return true;
    }
    EXPECT_TRUE(!scheduler.has_unfinished()) << "nothing runs, and nothing ever will";
    return submitted;
  }

  KvSimulator decodes;
  std::deque<Ticket> decode_tickets;
  std::multiset<SequenceId> in_flight[2];  // of prefill steps, of decode steps
  int64_t num_answers_in_prefills = 0;     // tokens
  std::minstd_rand random;
};

}  // namespace ladder
