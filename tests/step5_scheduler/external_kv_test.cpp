// Task 8.7.scheduler: keys from another engine, and those that are kept for one. The tests are the bugs that engines had in
// the field (vLLM's issue numbers), each with a pool whose books are counted after every event.
#include <gtest/gtest.h>

#include "tests/step5_scheduler/checked_index.h"
#include "tests/step5_scheduler/fake_kv_connector.h"
#include "tests/step5_scheduler/random_day.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

SchedulerConfig config_of(int64_t block_size, int64_t num_blocks) {
  SchedulerConfig config = small_config();
  config.batch.block_size = block_size;
  config.batch.num_kv_blocks = num_blocks;
  return config;
}

TEST(Task8_7_Scheduler, ALoadHoldsUpNobodyAndItsTokensAreOneEngines) {
  ConnectedHarness harness(config_of(4, 64));
  const SequenceId loads = harness.add(iota_prompt(21), greedy(6), from_there(20))[0];
  const SequenceId other = harness.add(iota_prompt(9, 100), greedy(3))[0];
  while (harness.results.at(other).reason == FinishReason::none) harness.turn();
  EXPECT_EQ(harness.scheduler.find(loads)->status, SequenceStatus::waiting_for_kv);
  EXPECT_EQ(harness.scheduler.stats().num_waiting_for_kv, 1);
  EXPECT_EQ(harness.scheduler.stats().num_running, 0);
  EXPECT_TRUE(harness.scheduler.has_unfinished());
  EXPECT_EQ(harness.connector.queued, std::set<SequenceId>{loads});
  const int64_t rows = harness.executor.num_rows();
  harness.connector.come(loads);
  harness.run();
  harness.expect_reference_outputs();
  EXPECT_EQ(harness.executor.num_rows() - rows, 1 + 5) << "the last prompt token, and what is generated";
  EXPECT_EQ(harness.results.at(loads).num_cached_tokens, 20);
  EXPECT_EQ(harness.scheduler.stats().num_external_tokens, 20);
  EXPECT_TRUE(harness.connector.unneeded.empty());
}

TEST(Task8_7_Scheduler, ALoadedSequenceRunsInTheStepThatHearsOfIt) {
  ConnectedHarness harness(config_of(4, 64));
  const SequenceId id = harness.add(iota_prompt(13), greedy(2), from_there(12))[0];
  EXPECT_FALSE(harness.submit());
  harness.connector.come(id);
  EXPECT_TRUE(harness.submit());
  EXPECT_EQ(harness.output.scheduled.at(0).num_tokens, 1);
  harness.run();
}

// The last token's logits are needed, even if all were over there.
TEST(Task8_7_Scheduler, TheLastTokenIsComputedHere) {
  ConnectedHarness harness(config_of(4, 64));
  const SequenceId id = harness.add(iota_prompt(16), greedy(2), from_there(16))[0];
  harness.submit();
  EXPECT_EQ(harness.connector.started.at(id).load.num_tokens, 15);
  harness.connector.come(id);
  harness.run();
  harness.expect_reference_outputs();
}

// #34616: what has come is counted in tokens, not in blocks.
TEST(Task8_7_Scheduler, TwentyOfThirtyThreeTokensAreTwenty) {
  ConnectedHarness harness(config_of(16, 16));
  const SequenceId id = harness.add(iota_prompt(33), greedy(4), from_there(20))[0];
  harness.submit();
  harness.connector.come(id);
  harness.submit();
  EXPECT_EQ(harness.output.scheduled.at(0).num_tokens, 13);
  EXPECT_EQ(harness.scheduler.blocks().num_cached_blocks(), 1) << "full blocks alone, and computed ones";
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task8_7_Scheduler, NothingIsIndexedBeforeItHasCome) {
  ConnectedHarness harness(config_of(4, 64));
  const SequenceId first = harness.add(iota_prompt(21), greedy(3), from_there(20))[0];
  harness.submit();
  EXPECT_EQ(harness.scheduler.blocks().num_cached_blocks(), 0);
  const SequenceId second = harness.add(iota_prompt(21), greedy(3))[0];
  while (harness.results.at(second).reason == FinishReason::none) harness.turn();
  EXPECT_EQ(harness.results.at(second).num_cached_tokens, 0);
  harness.connector.come(first);
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task8_7_Scheduler, WhatIsHereAlreadyIsNotLoaded) {
  ConnectedHarness harness(config_of(4, 64));
  harness.add(iota_prompt(21), greedy(1));
  harness.run();
  const SequenceId id = harness.add(iota_prompt(33), greedy(2), from_there(32))[0];
  harness.submit();
  EXPECT_EQ(harness.connector.started.at(id).load.first_token, 20);
  EXPECT_EQ(harness.connector.started.at(id).load.num_tokens, 12);
  harness.connector.come(id);
  harness.run();
  harness.expect_reference_outputs();
  EXPECT_EQ(harness.results.at(id).num_cached_tokens, 32);

  const SequenceId all = harness.add(iota_prompt(33), greedy(2), from_there(32))[0];
  harness.run();
  EXPECT_EQ(harness.connector.unneeded, std::set<SequenceId>{all});
}

TEST(Task8_7_Scheduler, PromptLogprobsAreComputedHere) {
  ConnectedHarness harness(config_of(4, 64));
  SamplingParams sampling = greedy(2);
  sampling.prompt_logprobs = 0;
  const SequenceId id = harness.add(iota_prompt(21), sampling, from_there(20))[0];
  harness.run();
  EXPECT_EQ(std::ssize(harness.results.at(id).prompt_logprobs), 20);
  EXPECT_TRUE(harness.connector.unneeded.contains(id));
}

// #49250: the rest of a load that failed is computed, from the first token that is missing, whatever was written after it.
TEST(Task8_7_Scheduler, TheRestOfAFailedLoadIsComputed) {
  for (const int delay : {0, 1})
    for (int64_t came = 0; came <= 20; ++came) {
      ConnectedHarness harness(config_of(4, 64), delay);
      const SequenceId id = harness.add(iota_prompt(21), greedy(4), from_there(20))[0];
      harness.submit();
      harness.connector.scribble(id);
      harness.connector.come(id, came);
      harness.run();
      harness.expect_reference_outputs();
      EXPECT_EQ(harness.results.at(id).num_cached_tokens, came);
    }
}

TEST(Task8_7_Scheduler, AFailedLoadEndsItsSequenceWhereTheConnectorSaysSo) {
  for (const int64_t came : {0, 13, 20}) {
    ConnectedHarness harness(config_of(4, 64));
    harness.connector.ends_sequences = true;
    const SequenceId id = harness.add(iota_prompt(21), greedy(4), from_there(20))[0];
    const SequenceId other = harness.add(iota_prompt(9, 100), greedy(4))[0];
    harness.turn();
    harness.connector.come(id, came);
    harness.connector.come(id, came);
    harness.turn();
    expect_books_balance(harness.scheduler);
    const std::vector<FinishedKvLoad> failed = harness.scheduler.take_failed_loads();
    EXPECT_TRUE(harness.scheduler.take_failed_loads().empty()) << "told once";
    if (came == 20) {
      EXPECT_TRUE(failed.empty());
    } else {
      ASSERT_EQ(failed.size(), 1u);
      EXPECT_EQ(failed[0].id, id);
      EXPECT_EQ(failed[0].error, "lost");
      EXPECT_EQ(harness.scheduler.find(id), nullptr);
      EXPECT_EQ(harness.scheduler.stats().num_waiting_for_kv, 0);
      EXPECT_EQ(harness.scheduler.stats().num_external_tokens, 0);
      harness.results.erase(id);
    }
    EXPECT_TRUE(harness.connector.cancelled.empty());
    EXPECT_TRUE(harness.connector.unneeded.empty());
    harness.run();
    EXPECT_EQ(harness.results.at(other).reason, FinishReason::length);
    harness.expect_reference_outputs();
  }
}

// #32255, #46283: the blocks of an aborted load are nobody's until its last write has landed, then everybody's.
TEST(Task8_7_Scheduler, AnAbortedLoadKeepsItsBlocksUntilItIsOver) {
  ConnectedHarness harness(config_of(4, 12));
  const SequenceId gone = harness.add(iota_prompt(21), greedy(3), from_there(20))[0];
  harness.submit();
  harness.abort(gone);
  EXPECT_FALSE(harness.scheduler.has_unfinished());
  EXPECT_EQ(harness.scheduler.find(gone), nullptr) << "the request ends at once";
  EXPECT_EQ(harness.connector.cancelled, std::set<SequenceId>{gone});
  EXPECT_EQ(harness.scheduler.stats().num_used_blocks, 6);
  EXPECT_EQ(harness.scheduler.stats().num_live_tokens, 0);
  EXPECT_FALSE(harness.scheduler.reset_prefix_cache());
  expect_books_balance(harness.scheduler);

  const SequenceId other = harness.add(iota_prompt(20, 100), greedy(4))[0];
  harness.turn();
  harness.connector.scribble(gone);
  while (harness.results.at(other).reason == FinishReason::none) harness.turn();
  EXPECT_EQ(harness.scheduler.stats().num_used_blocks, 6);
  harness.connector.come(gone);
  harness.run();
  harness.expect_reference_outputs();
}

// #18485: there is no load to be cancelled, and the other engine need not keep what nobody will fetch.
TEST(Task8_7_Scheduler, AnAbortBeforeAnyBlockIsTold) {
  ConnectedHarness harness(config_of(4, 16));
  const SequenceId id = harness.add(iota_prompt(21), greedy(3), from_there(20))[0];
  harness.abort(id);
  EXPECT_TRUE(harness.connector.unneeded.contains(id));
  EXPECT_TRUE(harness.connector.cancelled.empty());
  const SequenceId kept = harness.add(iota_prompt(21), greedy(3), for_there())[0];
  harness.abort(kept);
  EXPECT_EQ(harness.connector.ended.at(kept), FinishReason::abort);
  harness.run();
}

// #18631, #57104: two that have loaded, and a pool in which they cannot both go on.
TEST(Task8_7_Scheduler, TwoThatHaveLoadedTheWholePoolBothEnd) {
  ConnectedHarness harness(config_of(4, 7));
  const SequenceId a = harness.add(iota_prompt(16), greedy(4), from_there(15))[0];
  const SequenceId b = harness.add(iota_prompt(12, 100), greedy(4), from_there(11))[0];
  harness.submit();
  EXPECT_EQ(harness.scheduler.blocks().num_free_blocks(), 0);
  harness.connector.come(b);
  harness.connector.come(a);
  harness.run();
  harness.expect_reference_outputs();
  EXPECT_EQ(harness.connector.started.size(), 2u) << "after a preemption it is computed here";
}

// Its blocks must not wait behind somebody who has none.
TEST(Task8_7_Scheduler, WhoHasLoadedRunsAlthoughAnEarlierOneIsRefused) {
  SchedulerConfig config = config_of(4, 8);
  config.watermark = 0;
  config.policy = SchedulingPolicy::priority;
  ConnectedHarness harness(config);
  const SequenceId loads = harness.add(iota_prompt(21), greedy(4), from_there(20))[0];
  harness.submit();
  SamplingParams urgent = greedy(2);
  urgent.priority = -1;
  harness.add(iota_prompt(16, 100), urgent);
  EXPECT_FALSE(harness.submit()) << "it has no room";
  harness.connector.come(loads);
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task8_7_Scheduler, NoMoreRunThanMayRun) {
  SchedulerConfig config = config_of(4, 64);
  config.batch.max_num_seqs = 2;
  ConnectedHarness harness(config);
  for (int i = 0; i < 2; ++i) harness.add(iota_prompt(9, 100 * i + 1), greedy(6), from_there(8));
  harness.submit();
  for (int i = 2; i < 4; ++i) harness.add(iota_prompt(9, 100 * i + 1), greedy(6));
  harness.turn();
  EXPECT_EQ(harness.scheduler.stats().num_running, 2);
  harness.connector.come(0);
  harness.connector.come(1);
  harness.turn();
  EXPECT_EQ(harness.scheduler.stats().num_running, 2);
  EXPECT_EQ(harness.scheduler.stats().num_waiting_for_kv, 2) << "no seat is free";
  harness.abort(0);
  harness.run();
  harness.expect_reference_outputs();
}

// #18232, #51595: no message that comes twice, late, or for nobody does anything.
TEST(Task8_7_Scheduler, MessagesMayComeTwiceOrForNobody) {
  ConnectedHarness harness(config_of(4, 64));
  const SequenceId id = harness.add(iota_prompt(21), greedy(6), from_there(20))[0];
  const SequenceId kept = harness.add(iota_prompt(9, 100), greedy(1), for_there())[0];
  harness.connector.events.loads.push_back({77, 3, ""});
  harness.connector.events.released.push_back(77);
  harness.connector.events.loads.push_back({id, 20, ""});  // before it began
  harness.turn();
  EXPECT_EQ(harness.scheduler.find(id)->num_computed_tokens, 0);
  for (int i = 0; i < 3; ++i) harness.connector.come(id);
  while (harness.turn()) harness.connector.come(id);
  for (int i = 0; i < 3; ++i) harness.connector.release(kept);
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task8_7_Scheduler, OneOfManyCompletionsLoadsForAll) {
  ConnectedHarness harness(config_of(4, 64));
  SamplingParams sampling = greedy(5);
  sampling.n = 4;
  const std::vector<SequenceId> ids = harness.add(iota_prompt(22), sampling, from_there(21));
  for (int step = 0; step < 2; ++step) EXPECT_FALSE(harness.submit());
  EXPECT_EQ(harness.scheduler.stats().num_waiting, 3);
  harness.connector.come(ids[0]);
  harness.run();
  harness.expect_reference_outputs();
  EXPECT_EQ(harness.connector.started.size(), 1u);
  for (const SequenceId id : ids) EXPECT_EQ(harness.results.at(id).num_cached_tokens, id == ids[0] ? 21 : 20);
}

// #43509: n completions are one prompt to be kept, and nothing is left behind.
TEST(Task8_7_Scheduler, OneOfManyCompletionsIsKept) {
  ConnectedHarness harness(config_of(4, 64));
  SamplingParams sampling = greedy(1);
  sampling.n = 4;
  const std::vector<SequenceId> ids = harness.add(iota_prompt(22), sampling, for_there());
  while (harness.turn()) expect_books_balance(harness.scheduler);
  EXPECT_EQ(harness.connector.held.size(), 1u);
  EXPECT_EQ(harness.scheduler.stats().num_held_blocks, 6);
  harness.connector.release(ids[0]);
  harness.run();
}

TEST(Task8_7_Scheduler, APromptIsKeptUntilItIsRead) {
  ConnectedHarness harness(config_of(4, 16));
  const SequenceId id = harness.add(iota_prompt(21), greedy(1), for_there())[0];
  while (harness.turn()) {
  }
  EXPECT_FALSE(harness.scheduler.has_unfinished()) << "what is kept is nobody's request";
  EXPECT_TRUE(harness.scheduler.waits_for_kv());
  ASSERT_NE(harness.results.at(id).kv_transfer, nullptr);
  EXPECT_EQ(harness.results.at(id).kv_transfer->remote_num_tokens, 21);
  EXPECT_EQ(harness.scheduler.stats().num_held_blocks, 6);
  EXPECT_EQ(harness.scheduler.stats().num_live_tokens, 21);
  EXPECT_FALSE(harness.scheduler.reset_prefix_cache());
  harness.add(iota_prompt(36, 100), greedy(2));
  harness.add(iota_prompt(36, 200), greedy(2));
  while (harness.turn()) expect_books_balance(harness.scheduler);
  harness.connector.release(id);  // looks whether they are still what they were
  harness.scheduler.take_kv_events();
  EXPECT_TRUE(harness.scheduler.reset_prefix_cache());
  harness.run();
}

// #16928: each chunk is told when it is computed, not when it is planned.
TEST(Task8_7_Scheduler, WhatIsComputedIsTold) {
  SchedulerConfig config = config_of(4, 16);
  config.batch.max_num_batched_tokens = 17;
  ConnectedHarness harness(config, 1);
  const SequenceId id = harness.add(iota_prompt(20), greedy(1), for_there())[0];
  harness.submit();
  harness.submit();
  EXPECT_EQ(harness.connector.computed.count(id), 0u);
  harness.collect();
  EXPECT_EQ(harness.connector.computed.at(id), 17);
  harness.collect();
  EXPECT_EQ(harness.connector.computed.at(id), 20);
  harness.connector.release(id);
  harness.run();
}

TEST(Task8_7_Scheduler, APreemptionTakesBackWhatWasTold) {
  ConnectedHarness harness(config_of(4, 16));
  const SequenceId id = harness.add(iota_prompt(20), greedy(3), for_there())[0];
  harness.turn();
  EXPECT_EQ(harness.connector.computed.at(id), 20);
  harness.scheduler.preempt_last();
  EXPECT_EQ(harness.connector.computed.at(id), 0);
  while (harness.turn()) {
  }
  EXPECT_EQ(harness.connector.held.at(id).num_tokens, 22);
  harness.connector.release(id);
  harness.run();
}

// #45357: a step that ran ahead still writes behind the end when the reader is done already.
TEST(Task8_7_Scheduler, WhatAStepInFlightWritesComesBackWithIt) {
  SchedulerConfig config = config_of(4, 16);
  ConnectedHarness harness(config, 1);
  SamplingParams sampling = greedy(8);
  const std::vector<int32_t> expected = reference_output(iota_prompt(20), sampling, 7, 1000, 256, {});
  sampling.stop_token_ids = {expected[0]};
  const SequenceId id = harness.add(iota_prompt(20), sampling, for_there())[0];
  harness.submit();
  harness.submit();  // one token beyond the stop
  harness.collect();
  ASSERT_EQ(harness.results.at(id).reason, FinishReason::stop);
  harness.connector.release(id);
  harness.scheduler.take_kv_events();
  EXPECT_EQ(harness.scheduler.stats().num_held_blocks, 0);
  EXPECT_EQ(harness.scheduler.stats().num_used_blocks, 6) << "a step in flight writes the last of them";
  harness.run();
}

TEST(Task8_7_Scheduler, WhoIsAbortedIsNotKept) {
  ConnectedHarness harness(config_of(4, 16));
  const SequenceId id = harness.add(iota_prompt(20), greedy(8), for_there())[0];
  harness.turn();
  harness.abort(id);
  EXPECT_EQ(harness.connector.ended.at(id), FinishReason::abort);
  harness.run();
}

TEST(Task8_7_Scheduler, AFullBufferPassesOverPromptsThatAreToBeKept) {
  ConnectedHarness harness(config_of(4, 64));
  harness.connector.has_room = false;
  const SequenceId kept = harness.add(iota_prompt(20), greedy(1), for_there())[0];
  const SequenceId other = harness.add(iota_prompt(20, 100), greedy(2))[0];
  while (harness.turn()) {
  }
  EXPECT_EQ(harness.results.at(other).reason, FinishReason::length);
  EXPECT_EQ(harness.scheduler.find(kept)->status, SequenceStatus::waiting);
  EXPECT_TRUE(harness.scheduler.waits_for_kv());
  harness.connector.has_room = true;
  while (harness.turn()) {
  }
  harness.connector.release(kept);
  harness.run();
}

TEST(Task8_7_Scheduler, AnEngineThatFailsLetsGoOfEverything) {
  ConnectedHarness harness(config_of(4, 64));
  harness.add(iota_prompt(20), greedy(1), for_there());
  while (harness.turn()) {
  }
  harness.add(iota_prompt(21), greedy(3), from_there(20));
  const SequenceId gone = harness.add(iota_prompt(21, 100), greedy(3), from_there(20))[0];
  harness.turn();
  harness.abort(gone);
  harness.scheduler.abandon();
  EXPECT_EQ(harness.connector.num_abandoned, 1);
  harness.expect_empty();
  EXPECT_FALSE(harness.scheduler.waits_for_kv());
}

TEST(Task8_7_Scheduler, StaticBatchingHasNoConnector) {
  SchedulerConfig config = small_config();
  config.static_batching = true;
  EXPECT_THROW(Scheduler(config, nullptr, std::make_shared<FakeKvConnector>()), Error);
  Scheduler alone(small_config());
  EXPECT_THROW(alone.add(iota_prompt(5), greedy(1), for_there()), Error);
}

// Random requests, loads that come whole, in part, late, twice or not at all, aborts, preemptions: no block is lost or given
// twice, and every answer is the one that the request gets alone.
void random_connected_day(uint64_t seed, int delay) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", delay " + std::to_string(delay));
  std::mt19937_64 random(seed);
  SchedulerConfig config = small_config();
  config.batch.block_size = uniform(random, 1, 6);
  config.batch.num_kv_blocks = uniform(random, 8, 50);
  config.batch.max_model_len = uniform(random, 8, 80);
  config.batch.max_num_seqs = uniform(random, 1, 8);
  config.batch.max_num_batched_tokens = uniform(random, 1, 50);
  config.enable_prefix_caching = uniform(random, 0, 3) > 0;
  config.policy = uniform(random, 0, 1) ? SchedulingPolicy::fcfs : SchedulingPolicy::priority;
  ConnectedHarness harness(
      config, delay, std::make_unique<CheckedIndex>(config.batch.num_kv_blocks, config.batch.block_size));
  FakeKvConnector& fake = harness.connector;
  const auto any_of = [&](const auto& some) {
    return *std::next(some.begin(), uniform(random, 0, std::ssize(some) - 1));
  };

  std::vector<SequenceId> ids;
  const auto news = [&] {
    fake.has_room = fake.held.size() < 2;
    if (!fake.loading.empty() && uniform(random, 0, 1)) {
      const SequenceId id = any_of(fake.loading);
      if (uniform(random, 0, 2) == 0) fake.scribble(id);
      const int64_t wanted = fake.started.at(id).load.num_tokens;
      fake.ends_sequences = uniform(random, 0, 3) == 0;
      if (uniform(random, 0, 1)) fake.come(id, uniform(random, 0, 2) ? wanted : uniform(random, 0, wanted));
      if (uniform(random, 0, 3) == 0 && !fake.loading.contains(id)) fake.come(id, wanted);
    }
    if (!fake.held.empty() && uniform(random, 0, 1)) fake.release(any_of(fake.held).first);
    if (!ids.empty())  // a message of long ago, once more
      if (const SequenceId id = any_of(ids); harness.scheduler.find(id) == nullptr && !fake.held.contains(id))
        fake.events.released.push_back(id);
  };
  const auto check = [&] {
    for (const FinishedKvLoad& failed : harness.scheduler.take_failed_loads()) harness.abort(failed.id);
    expect_books_balance(harness.scheduler);
  };
  for (int event = 0; event < 150 && !::testing::Test::HasFailure(); ++event) {
    const int64_t kind = uniform(random, 0, 9);
    if (kind < 3) {
      std::vector<int32_t> prompt = iota_prompt(uniform(random, 1, config.batch.max_model_len),
                                                static_cast<int32_t>(uniform(random, 0, 2)) * 100);
      SamplingParams sampling = greedy(uniform(random, 1, 20));
      sampling.seed = random();
      sampling.n = uniform(random, 0, 3) == 0 ? uniform(random, 2, 3) : 1;
      sampling.priority = static_cast<int32_t>(uniform(random, -1, 1));
      std::shared_ptr<const KvTransferParams> transfer;
      if (const int64_t way = uniform(random, 0, 4); way < 2)
        transfer = from_there(uniform(random, 0, std::ssize(prompt)));
      else if (way == 2)
        transfer = for_there();
      try {
        for (const SequenceId id : harness.add(prompt, sampling, transfer)) ids.push_back(id);
      } catch (const Error&) {  // does not fit
      }
    } else if (kind == 3 && !ids.empty()) {
      harness.abort(ids[static_cast<size_t>(uniform(random, 0, std::ssize(ids) - 1))]);
    } else if (kind < 6) {
      news();
    } else {
      harness.turn();
    }
    check();
  }
  for (int turn = 0; !::testing::Test::HasFailure() &&
                     (harness.scheduler.has_unfinished() || harness.scheduler.num_steps_in_flight() > 0 ||
                      harness.scheduler.waits_for_kv());
       ++turn) {
    ASSERT_LT(turn, 20000) << "no end";
    news();
    harness.turn();
    check();
  }
  if (::testing::Test::HasFailure()) return;
  harness.run();
  harness.expect_reference_outputs();
}

TEST(Task8_7_Scheduler, RandomDays) {
  const uint64_t first = testing::fresh_seed();
  for (uint64_t seed = first; seed < first + 400 && !HasFailure(); ++seed)
    random_connected_day(seed, static_cast<int>(seed % 3));
}

}  // namespace
}  // namespace ladder
