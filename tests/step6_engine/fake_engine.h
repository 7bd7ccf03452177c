#pragma once
// An engine over an executor without a model, whose tokens can be told beforehand.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "step6_engine/engine.h"
#include "tests/step6_engine/fake_executor.h"

namespace ladder::testing {

inline constexpr int64_t kFakeVocab = 1000;

inline SchedulerConfig fake_config() {
  SchedulerConfig config;
  config.batch.max_num_seqs = 8;
  config.batch.max_num_batched_tokens = 32;
  config.batch.max_model_len = 64;
  config.vocab_size = kFakeVocab;
  config.batch.block_size = 4;
  config.batch.num_kv_blocks = 64;
  config.eos_token_ids = {999};
  return config;
}

// Depends on every token and on their number.
inline int32_t mixed(const std::vector<int32_t>& token_ids, int64_t) {
  uint64_t hash = token_ids.size();
  for (int32_t id : token_ids)
    hash = hash * 6364136223846793005u + static_cast<uint64_t>(id) + 1442695040888963407u;
  return static_cast<int32_t>((hash >> 33) % 900);
}

// What `mixed` answers to a prompt.
inline std::vector<int32_t> expected_tokens(std::vector<int32_t> token_ids, int64_t count) {
  const size_t prompt = token_ids.size();
  for (int64_t i = 0; i < count; ++i) token_ids.push_back(mixed(token_ids, 0));
  return {token_ids.begin() + static_cast<std::ptrdiff_t>(prompt), token_ids.end()};
}

inline Engine make_engine(int max_in_flight = 1, SchedulerConfig scheduler = fake_config(),
                          FakeExecutor::NextToken next = mixed, FakeExecutor::Fault fault = {}) {
  return Engine(std::make_unique<FakeExecutor>(std::move(next), max_in_flight, std::move(fault)),
                std::move(scheduler), nullptr);
}

inline Request token_request(std::vector<int32_t> prompt, int64_t max_tokens, RequestId id = {}) {
  Request request;
  request.request_id = std::move(id);
  request.prompt_token_ids = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0.0;
  return request;
}

// Nothing is held, known or in flight.
inline void expect_books_closed(const Scheduler& scheduler) {
  EXPECT_EQ(scheduler.num_steps_in_flight(), 0);
  EXPECT_FALSE(scheduler.has_unfinished());
  EXPECT_TRUE(scheduler.block_tables().empty());
  EXPECT_EQ(scheduler.blocks().num_used_blocks(), 0);
  for (int32_t id = 0; id < scheduler.blocks().num_blocks(); ++id)
    EXPECT_EQ(scheduler.blocks().ref_count(id), 0) << "block " << id;
}

}  // namespace ladder::testing
