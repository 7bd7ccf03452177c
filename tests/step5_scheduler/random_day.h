#pragma once
// A random day in the life of a scheduler. After every event the books must balance; in the end nothing may be left; and
// every answer must be the one that the request gets alone.
#include <gtest/gtest.h>

#include <random>

#include "tests/step5_scheduler/checked_index.h"
#include "tests/step5_scheduler/harness.h"

namespace ladder {

inline int64_t uniform(std::mt19937_64& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

struct Day {
  bool preempted = false, hit = false, forked = false, stopped = false, aborted = false;
};

// The most of each.
struct DaySizes {
  int64_t block_size = 8, num_kv_blocks = 60, max_model_len = 100, max_num_seqs = 12,
          max_num_batched_tokens = 80;
  int64_t completions = 4, num_events = 150;
};

template <class Run = Harness>
Day random_day(uint64_t seed, int delay, bool static_batching = false, bool recompute = false,
               const DaySizes& sizes = {}) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", delay " + std::to_string(delay));
  std::mt19937_64 random(seed);
  SchedulerConfig config;
  config.batch.block_size = uniform(random, 1, sizes.block_size);
  config.batch.num_kv_blocks = uniform(random, 6, sizes.num_kv_blocks);
  config.batch.max_model_len = uniform(random, 2, sizes.max_model_len);
  config.batch.max_num_seqs = uniform(random, 1, sizes.max_num_seqs);
  config.batch.max_num_batched_tokens = uniform(random, 1, sizes.max_num_batched_tokens);
  config.enable_chunked_prefill = uniform(random, 0, 3) > 0;
  if (!config.enable_chunked_prefill)
    config.batch.max_num_batched_tokens =
        std::max(config.batch.max_num_batched_tokens, config.batch.max_model_len);
  config.enable_prefix_caching = uniform(random, 0, 3) > 0;
  config.policy = uniform(random, 0, 1) ? SchedulingPolicy::fcfs : SchedulingPolicy::priority;
  if (config.enable_chunked_prefill) {
    config.max_num_partial_prefills = uniform(random, 1, 3);
    config.max_long_partial_prefills = uniform(random, 1, config.max_num_partial_prefills);
    config.long_prefill_token_threshold =
        uniform(random, 0, std::min<int64_t>(config.batch.max_model_len, 30));
  }
  config.watermark = uniform(random, 0, 1) ? 0.1 : 0;
  config.vocab_size = 50;
  config.eos_token_ids = {3, 4};
  config.static_batching = static_batching;
  config.recompute_everything = recompute;
  Run harness(config, delay,
              std::make_unique<CheckedIndex>(config.batch.num_kv_blocks, config.batch.block_size));

  // Prompts are cut from few texts, so that prefixes are shared.
  std::vector<std::vector<int32_t>> texts(3);
  for (auto& text : texts)
    for (int64_t i = 0; i < sizes.max_model_len; ++i)
      text.push_back(static_cast<int32_t>(uniform(random, 0, 49)));

  Day day;
  std::vector<SequenceId> ids;
  for (int64_t event = 0; event < sizes.num_events; ++event) {
    const int64_t kind = uniform(random, 0, 9);
    if (kind < 3) {
      std::vector<int32_t> prompt = texts[uniform(random, 0, 2)];
      prompt.resize(uniform(random, 1, config.batch.max_model_len));
      if (uniform(random, 0, 1)) prompt.back() = static_cast<int32_t>(uniform(random, 0, 49));
      SamplingParams sampling = greedy(uniform(random, 1, 40));
      sampling.seed = random();
      sampling.n = uniform(random, 0, 3) == 0 ? uniform(random, 2, sizes.completions) : 1;
      sampling.ignore_eos = uniform(random, 0, 1);
      if (uniform(random, 0, 1)) sampling.stop_token_ids = {9};
      if (uniform(random, 0, 4) == 0) sampling.cache_salt = "salt";
      if (uniform(random, 0, 5) == 0) sampling.prompt_logprobs = 0;
      sampling.priority = static_cast<int32_t>(uniform(random, -1, 1));
      try {
        for (const SequenceId id : harness.add(prompt, sampling)) ids.push_back(id);
        day.forked |= sampling.n > 1;
      } catch (const Error&) {  // does not fit max_model_len or the cache: nothing may have changed
      }
    } else if (kind == 3 && !ids.empty()) {
      harness.abort(ids[uniform(random, 0, std::ssize(ids) - 1)]);
      day.aborted = true;
    } else {
      harness.turn();
    }
    expect_books_balance(harness.scheduler);
    if (::testing::Test::HasFatalFailure()) return day;
  }
  harness.run();
  if (::testing::Test::HasFatalFailure()) return day;
  harness.expect_reference_outputs();
  for (const auto& [id, result] : harness.results) {
    day.preempted |= result.num_preemptions > 0;
    day.hit |= result.num_cached_tokens > 0;
    day.stopped |= result.reason == FinishReason::stop;
    if (result.sampling.prompt_logprobs && result.seed == *result.sampling.seed && !result.aborted) {
      EXPECT_EQ(std::ssize(result.prompt_logprobs), std::ssize(result.prompt) - 1);
      for (int64_t p = 0; p < std::ssize(result.prompt_logprobs); ++p)
        EXPECT_EQ(result.prompt_logprobs[p].chosen.logprob, -static_cast<float>(p));
    }
  }
  return day;
}

}  // namespace ladder
