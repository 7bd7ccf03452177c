#pragma once
// Runs a scheduler against the simulator and keeps the books: what every test of step 5 is made of.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/step5_scheduler/kv_simulator.h"
#include "tests/step5_scheduler/open_scheduler.h"

namespace ladder {

inline SchedulerConfig small_config() {
  SchedulerConfig config;
  config.batch.max_num_seqs = 8;
  config.batch.max_num_batched_tokens = 64;
  config.batch.max_model_len = 256;
  config.vocab_size = 1000;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 256;
  config.prefix_cache_seed = 1;
  return config;
}

inline std::vector<int32_t> iota_prompt(int64_t size, int32_t first = 1) {
  std::vector<int32_t> ids(size);
  for (int64_t i = 0; i < size; ++i) ids[i] = first + static_cast<int32_t>(i);
  return ids;
}

inline SamplingParams greedy(int64_t max_tokens) {
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.max_tokens = max_tokens;
  sampling.seed = 7;
  return sampling;
}

// What a block manager must add up to, counted anew from all block tables.
inline void expect_books_balance(const Scheduler& scheduler) {
  const BlockManager& blocks = scheduler.blocks();
  std::vector<int64_t> references(blocks.num_blocks(), 0);
  for (const BlockTable* table : scheduler.block_tables())
    for (const int32_t id : *table) ++references.at(id);
  std::vector<bool> is_free(blocks.num_blocks(), false);
  for (const int32_t id : blocks.pool().free_ids()) {
    ASSERT_FALSE(is_free.at(id)) << "block " << id << " is in the free list twice";
    is_free[id] = true;
  }
  int64_t used = 0, cached = 0;
  for (int32_t id = 0; id < blocks.num_blocks(); ++id) {
    ASSERT_EQ(blocks.ref_count(id), references[id]) << "block " << id;
    ASSERT_EQ(is_free[id], references[id] == 0) << "block " << id;
    used += references[id] > 0;
    cached += blocks.is_cached(id);
  }
  ASSERT_EQ(blocks.num_free_blocks() + used, blocks.num_blocks());
  ASSERT_EQ(blocks.num_cached_blocks(), cached);
}

struct Harness {
  struct Result {
    std::vector<int32_t> prompt;
    SamplingParams sampling;
    uint64_t seed = 0;
    std::vector<int32_t> output;
    std::vector<PositionLogprobs> prompt_logprobs;
    FinishReason reason = FinishReason::none;
    bool aborted = false;
    int64_t num_cached_tokens = 0;
    int64_t num_preemptions = 0;
    std::shared_ptr<const KvTransferParams> kv_transfer;
  };

  virtual ~Harness() = default;
  explicit Harness(const SchedulerConfig& config, int delay = 0, std::unique_ptr<PrefixIndex> index = nullptr,
                   std::shared_ptr<KvConnector> connector = nullptr)
      : scheduler(config, std::move(index), std::move(connector)),
        executor(config.batch.num_kv_blocks, config.batch.block_size, config.vocab_size, delay) {}

  std::vector<SequenceId> add(const std::vector<int32_t>& prompt, const SamplingParams& sampling,
                              std::shared_ptr<const KvTransferParams> kv_transfer = nullptr) {
    const std::vector<SequenceId> ids = scheduler.add(prompt, sampling, std::move(kv_transfer));
    for (size_t i = 0; i < ids.size(); ++i) {
      Result& result = results[ids[i]];
      result.prompt = prompt;
      result.sampling = sampling;
      result.seed = *sampling.seed + i;
    }
    return ids;
  }

  void abort(SequenceId id) {
    scheduler.abort(id);
    results.at(id).aborted = results.at(id).reason == FinishReason::none;
  }

  virtual void schedule() { scheduler.schedule(output); }

  // Plans and submits one step; false if nothing can be run now.
  bool submit() {
    schedule();
    const SchedulerConfig& config = scheduler.config();
    EXPECT_LE(output.total_num_tokens + output.num_static_padding_rows, config.batch.max_num_batched_tokens);
    EXPECT_LE(std::ssize(output.scheduled), config.batch.max_num_seqs);
    if (output.empty()) return false;
    tickets.push_back(executor.submit(output));
    ++num_steps;
    return true;
  }

  void collect() {
    StepOutput answer = executor.collect(tickets.front());
    tickets.pop_front();
    apply(std::move(answer));
  }

  void apply(StepOutput answer) {
    for (SequenceUpdate& update : scheduler.update(std::move(answer))) {
      Result& result = results.at(update.id);
      EXPECT_FALSE(result.aborted) << "an aborted sequence was updated";
      EXPECT_EQ(result.reason, FinishReason::none) << "a finished sequence was updated";
      result.output.insert(result.output.end(), update.new_token_ids.begin(), update.new_token_ids.end());
      result.prompt_logprobs.insert(result.prompt_logprobs.end(), update.prompt_logprobs.begin(),
                                    update.prompt_logprobs.end());
      result.reason = update.finish_reason;
      result.num_cached_tokens = update.num_cached_tokens;
      result.num_preemptions = update.num_preemptions;
      result.kv_transfer = update.kv_transfer;
    }
  }

  // One turn of an engine that keeps the executor's queue full. False: idle.
  virtual bool turn() {
    bool submitted = false;
    if (std::ssize(tickets) < executor.max_in_flight()) submitted = submit();
    if (!tickets.empty() && (!submitted || std::ssize(tickets) == executor.max_in_flight())) {
      collect();
      return true;
    }
    EXPECT_TRUE(submitted || !scheduler.has_unfinished() || scheduler.waits_for_kv())
        << "nothing runs, and nothing ever will";
    return submitted;
  }

  void run() {
    while (turn()) {
      if (::testing::Test::HasFatalFailure()) return;
      expect_books_balance(scheduler);
      ASSERT_LT(num_steps, 100000) << "no end";
    }
    expect_empty();
  }

  // vLLM's assert_scheduler_empty: nothing may be left when all is done.
  void expect_empty() {
    EXPECT_FALSE(scheduler.has_unfinished());
    EXPECT_EQ(scheduler.num_steps_in_flight(), 0);
    const SchedulerStats stats = scheduler.stats();
    EXPECT_EQ(stats.num_waiting, 0);
    EXPECT_EQ(stats.num_running, 0);
    EXPECT_EQ(stats.num_used_blocks, 0);
    EXPECT_EQ(stats.num_live_tokens, 0);
    EXPECT_TRUE(scheduler.block_tables().empty());
    EXPECT_EQ(scheduler.blocks().num_free_blocks(), scheduler.config().batch.num_kv_blocks);
    for (int32_t id = 0; id < scheduler.config().batch.num_kv_blocks; ++id)
      EXPECT_EQ(scheduler.blocks().ref_count(id), 0);
    for (const auto& [id, result] : results) EXPECT_EQ(scheduler.find(id), nullptr);
  }

  // Every sequence that was not aborted has the output that it has alone.
  void expect_reference_outputs() {
    const SchedulerConfig& config = scheduler.config();
    for (const auto& [id, result] : results) {
      const std::vector<int32_t> expected =
          reference_output(result.prompt, result.sampling, result.seed, config.vocab_size,
                           config.batch.max_model_len, config.eos_token_ids);
      if (result.aborted) {
        ASSERT_LE(result.output.size(), expected.size());
        ASSERT_TRUE(std::equal(result.output.begin(), result.output.end(), expected.begin()));
      } else {
        ASSERT_EQ(result.output, expected) << "sequence " << id;
        ASSERT_NE(result.reason, FinishReason::none) << "sequence " << id;
      }
    }
  }

  OpenScheduler scheduler;
  KvSimulator executor;
  SchedulerOutput output;
  std::deque<Ticket> tickets;
  std::map<SequenceId, Result> results;
  int64_t num_steps = 0;
};

// For the tests of update() and abort(): steps are planned without tasks 5.1 and 5.2.
struct SimpleHarness : Harness {
  using Harness::Harness;
  void schedule() override { scheduler.schedule_simply(output); }
};

}  // namespace ladder
