// Task 8.7.lanes: prompts and answers in steps of their own, which are in flight at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/step5_scheduler/fake_kv_connector.h"
#include "tests/step5_scheduler/lane_harness.h"
#include "tests/step5_scheduler/random_day.h"

namespace ladder {
namespace {

constexpr StepPhase kPrefill = StepPhase::prefill, kDecode = StepPhase::decode;

std::vector<SequenceId> ids_of(const SchedulerOutput& output) {
  std::vector<SequenceId> ids;
  for (const ScheduledSequence& scheduled : output.scheduled) ids.push_back(scheduled.id);
  return ids;
}

// A sequence whose prompt is collected.
SequenceId add_answered(LaneHarness& run, const std::vector<int32_t>& prompt, int64_t max_tokens) {
  const SequenceId id = run.add(prompt, greedy(max_tokens))[0];
  EXPECT_TRUE(run.submit(kPrefill));
  run.collect(kPrefill);
  return id;
}

TEST(Task8_7_Lanes, ManyDecodeStepsPassWhileAPromptIsComputed) {
  LaneHarness run(small_config());
  const SequenceId answered = add_answered(run, iota_prompt(5), 30);
  const SequenceId prompt = run.add(iota_prompt(60, 100), greedy(4))[0];
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_EQ(ids_of(run.output), (std::vector<SequenceId>{prompt}));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(run.submit(kDecode));
    EXPECT_EQ(ids_of(run.output), (std::vector<SequenceId>{answered}));
    run.collect(kDecode);
    expect_books_balance(run.scheduler);
  }
  EXPECT_EQ(run.results.at(answered).output.size(), 21u) << "the prompt's own token, and 20";
  EXPECT_TRUE(run.results.at(prompt).output.empty());
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, AnAnswerGoesOnInTheOtherLaneWhenItsPromptIsCollected) {
  LaneHarness run(small_config());
  const SequenceId id = run.add(iota_prompt(9), greedy(3))[0];
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_FALSE(run.submit(kDecode)) << "its prompt is being computed";
  EXPECT_FALSE(run.submit(kPrefill)) << "its next token is none of a prompt";
  run.collect(kPrefill);
  EXPECT_FALSE(run.submit(kPrefill)) << "likewise";
  ASSERT_TRUE(run.submit(kDecode));
  ASSERT_EQ(run.output.new_sequences.size(), 1u) << "that runner has never heard of it";
  EXPECT_EQ(run.output.new_sequences[0].num_computed_tokens, 9);
  EXPECT_EQ(run.output.new_sequences[0].token_ids.size(), 10u) << "prompt and output";
  EXPECT_TRUE(run.output.finished.empty()) << "it is the other runner that has to forget it";

  run.add(iota_prompt(3, 50), greedy(1));
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_EQ(run.output.finished, (std::vector<SequenceId>{id}));
  EXPECT_EQ(run.executor.num_sequences(), 1);
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, ChunksOfAPromptStayInTheirLane) {
  SchedulerConfig config = small_config();
  config.batch.max_num_batched_tokens = 8;
  LaneHarness run(config);
  run.add(iota_prompt(17), greedy(2));  // chunks of 8, 8 and 1: the last one looks like a decode
  for (const int64_t expected : {8, 8, 1}) {
    EXPECT_FALSE(run.submit(kDecode));
    ASSERT_TRUE(run.submit(kPrefill));
    EXPECT_EQ(run.output.total_num_tokens, expected);
    run.collect(kPrefill);
  }
  EXPECT_TRUE(run.submit(kDecode));
  run.run();
  run.expect_reference_outputs();
}

// The prefill step in flight may still write them, however many decode steps are collected meanwhile.
TEST(Task8_7_Lanes, BlocksOfAnAbortedPromptComeBackWithItsOwnStep) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 8;  // of 4 tokens
  config.batch.max_model_len = 32;
  config.watermark = 0;
  config.enable_prefix_caching = false;
  LaneHarness run(config);
  const SequenceId answered = add_answered(run, iota_prompt(4), 28);  // 8 blocks in the end
  const SequenceId prompt = run.add(iota_prompt(20, 100), greedy(2))[0];
  ASSERT_TRUE(run.submit(kPrefill));
  run.abort(prompt);
  // A block is free beside 5 + 1 + 1: of the token after the next four there is no place for another.
  int64_t num_decodes = 0;
  for (; num_decodes < 20 && run.submit(kDecode); ++num_decodes) {
    run.collect(kDecode);
    expect_books_balance(run.scheduler);
  }
  EXPECT_EQ(num_decodes, 8) << "until three blocks are full";
  EXPECT_EQ(run.scheduler.deferred_.size(), 1u);
  EXPECT_EQ(run.scheduler.find(answered)->num_preemptions, 0) << "it waits for blocks that are on their way";
  run.collect(kPrefill);
  EXPECT_TRUE(run.scheduler.deferred_.empty());
  EXPECT_TRUE(run.submit(kDecode));
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, ADecodeThatNeedsABlockTakesItFromAPromptAndWaitsForItsStep) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 7;
  config.batch.max_model_len = 28;
  config.watermark = 0;
  config.enable_prefix_caching = false;
  LaneHarness run(config);
  const SequenceId answered = add_answered(run, iota_prompt(4), 20);
  const SequenceId prompt = run.add(iota_prompt(20, 100), greedy(2))[0];
  ASSERT_TRUE(run.submit(kPrefill));  // five blocks: one is left
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(run.submit(kDecode));
    run.collect(kDecode);
  }
  EXPECT_FALSE(run.submit(kDecode));
  EXPECT_EQ(run.scheduler.find(prompt)->status, SequenceStatus::preempted);
  EXPECT_EQ(run.scheduler.find(answered)->num_preemptions, 0);
  EXPECT_FALSE(run.submit(kDecode)) << "its blocks are not free while its step is in flight";
  run.collect(kPrefill);
  EXPECT_EQ(run.results.at(prompt).output.size(), 1u) << "the token of that step counts";
  EXPECT_TRUE(run.submit(kDecode));
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, APreemptedAnswerComesBackAsAPrompt) {
  LaneHarness run(small_config());
  const SequenceId id = add_answered(run, iota_prompt(6), 10);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(run.submit(kDecode));
    run.collect(kDecode);
  }
  run.scheduler.preempt_last();
  EXPECT_FALSE(run.submit(kDecode));
  ASSERT_TRUE(run.submit(kPrefill));
  ASSERT_EQ(run.output.new_sequences.size(), 1u);
  EXPECT_EQ(run.output.new_sequences[0].num_prompt_tokens, 6);
  EXPECT_EQ(run.output.new_sequences[0].token_ids.size(), 10u);
  EXPECT_EQ(run.output.finished, (std::vector<SequenceId>{id})) << "that it left before is told now";
  EXPECT_TRUE(run.output.preempted.empty()) << "that is for the other runner";
  run.collect(kPrefill);
  ASSERT_TRUE(run.submit(kDecode));
  EXPECT_EQ(run.output.preempted, (std::vector<SequenceId>{id}));
  EXPECT_EQ(run.output.new_sequences.size(), 1u);
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, SiblingsNameAPromptThatTheirOwnRunnerKnows) {
  LaneHarness run(small_config());
  SamplingParams sampling = greedy(5);
  sampling.n = 3;
  const std::vector<SequenceId> ids = run.add(iota_prompt(12), sampling);
  ASSERT_TRUE(run.submit(kPrefill));
  ASSERT_EQ(run.output.new_sequences.size(), 3u);
  EXPECT_EQ(run.output.new_sequences[0].prompt_of, -1);
  EXPECT_EQ(run.output.new_sequences[1].prompt_of, ids[0]);
  run.collect(kPrefill);
  ASSERT_TRUE(run.submit(kDecode));
  ASSERT_EQ(run.output.new_sequences.size(), 3u);
  EXPECT_EQ(run.output.new_sequences[0].prompt_of, -1) << "this runner does not know it";
  EXPECT_EQ(run.output.new_sequences[1].prompt_of, ids[0]);
  run.run();
  run.expect_reference_outputs();
}

// Two steps of each lane in flight.
TEST(Task8_7_Lanes, StepsAreCollectedInTheOrderOfTheirLane) {
  LaneHarness run(small_config(), 1);
  add_answered(run, iota_prompt(5), 30);
  run.add(iota_prompt(20, 100), greedy(4));
  ASSERT_TRUE(run.submit(kPrefill));
  run.add(iota_prompt(20, 200), greedy(4));
  ASSERT_TRUE(run.submit(kPrefill));
  ASSERT_TRUE(run.submit(kDecode));
  ASSERT_TRUE(run.submit(kDecode)) << "its next token is a placeholder in the same lane";
  const int64_t later = run.tickets.back().value;
  run.collect(kDecode);  // the third that was submitted
  StepOutput wrong;
  wrong.step = later;
  EXPECT_THAT([&] { run.scheduler.update(wrong); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("not the oldest one in flight")));
  run.collect(kPrefill);
  run.collect(kDecode);
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, NobodyIsAdmittedIntoBlocksThatAnAnswerHasTakenFromAnother) {
  SchedulerConfig config = small_config();
  config.batch.num_kv_blocks = 6;
  config.batch.max_model_len = 24;
  config.watermark = 0;
  config.enable_prefix_caching = false;
  config.policy = SchedulingPolicy::priority;
  LaneHarness run(config);
  const SequenceId first = add_answered(run, iota_prompt(4), 20);
  const SequenceId second = add_answered(run, iota_prompt(12, 100), 10);
  for (int i = 0; i < 4; ++i) {  // to 2 and 4 blocks, all of them full
    ASSERT_TRUE(run.submit(kDecode));
    run.collect(kDecode);
  }
  SamplingParams urgent = greedy(1);
  urgent.priority = -1;
  const SequenceId newcomer = run.add(iota_prompt(2, 200), urgent)[0];
  ASSERT_TRUE(run.submit(kDecode));
  EXPECT_EQ(ids_of(run.output), (std::vector<SequenceId>{first}));
  EXPECT_EQ(run.scheduler.find(second)->status, SequenceStatus::preempted);
  EXPECT_FALSE(run.submit(kPrefill));
  run.collect(kDecode);
  ASSERT_TRUE(run.submit(kDecode)) << "of which nobody lacked a block";
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_EQ(ids_of(run.output), (std::vector<SequenceId>{newcomer}));
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, MixedStepsComputeAnswersBesideChunks) {
  SchedulerConfig config = small_config();
  config.num_mixed_step_tokens = 16;
  LaneHarness run(config);
  const SequenceId answered = add_answered(run, iota_prompt(5), 12);
  ASSERT_TRUE(run.submit(kDecode));
  run.collect(kDecode);
  run.scheduler.mix_phases(true);
  const SequenceId prompt = run.add(iota_prompt(40, 100), greedy(6))[0];
  for (const int64_t expected : {16, 16, 11}) {
    EXPECT_FALSE(run.submit(kDecode));
    ASSERT_TRUE(run.submit(kPrefill));
    EXPECT_EQ(ids_of(run.output), (std::vector<SequenceId>{answered, prompt}));
    EXPECT_EQ(run.output.total_num_tokens, expected);
    EXPECT_EQ(run.output.scheduled[0].num_tokens, 1);
    run.collect(kPrefill);
  }
  ASSERT_TRUE(run.submit(kPrefill)) << "answers alone";
  EXPECT_EQ(run.output.total_num_tokens, 2);
  run.collect(kPrefill);

  run.scheduler.mix_phases(false);
  EXPECT_FALSE(run.submit(kPrefill));
  ASSERT_TRUE(run.submit(kDecode));
  EXPECT_EQ(ids_of(run.output), (std::vector<SequenceId>{answered, prompt}));
  EXPECT_EQ(run.output.new_sequences.size(), 2u) << "both were in the other lane";
  EXPECT_EQ(run.output.finished, (std::vector<SequenceId>{answered})) << "it left this one before";
  run.collect(kDecode);
  run.run();
  run.expect_reference_outputs();
}

// An answer would wait for all of a step that was made for prompts alone.
TEST(Task8_7_Lanes, MixedStepsBeginWhenThePrefillStepsInFlightAreCollected) {
  LaneHarness run(small_config(), 1);
  const SequenceId answered = add_answered(run, iota_prompt(5), 30);
  run.add(iota_prompt(60, 100), greedy(4));
  ASSERT_TRUE(run.submit(kPrefill));
  run.add(iota_prompt(60, 200), greedy(4));
  run.scheduler.mix_phases(true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(run.submit(kPrefill));
    ASSERT_TRUE(run.submit(kDecode));
    if (i > 0) run.collect(kDecode);
  }
  run.collect(kPrefill);
  EXPECT_FALSE(run.submit(kDecode));
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_THAT(ids_of(run.output), ::testing::Not(::testing::Contains(answered)))
      << "decode steps in flight have it";
  run.collect(kDecode);
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_THAT(ids_of(run.output), ::testing::Contains(answered));
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, WithoutAnswersAMixedStepIsAsLargeAsAPromptsOwn) {
  SchedulerConfig config = small_config();
  config.num_mixed_step_tokens = 8;
  LaneHarness run(config);
  run.scheduler.mix_phases(true);
  run.add(iota_prompt(100), greedy(4));
  run.add(iota_prompt(100, 200), greedy(4));
  for (const int64_t expected :
       {64, 64, 8}) {  // behind 36 tokens of the first prompt there is room for the second's
    ASSERT_TRUE(run.submit(kPrefill));
    EXPECT_EQ(run.output.total_num_tokens, expected);
    run.collect(kPrefill);
  }
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, PromptsThatAreNotCutAreNotMixed) {
  SchedulerConfig config = small_config();
  config.enable_chunked_prefill = false;
  config.batch.max_num_batched_tokens = config.batch.max_model_len;
  config.num_mixed_step_tokens = 8;
  LaneHarness run(config);
  add_answered(run, iota_prompt(5), 30);
  run.scheduler.mix_phases(true);
  run.add(iota_prompt(60, 100), greedy(4));
  EXPECT_TRUE(run.submit(kDecode));
  EXPECT_TRUE(run.submit(kPrefill));
  run.run();
  run.expect_reference_outputs();
}

TEST(Task8_7_Lanes, TokensThatCouldBeComputedAreThoseOfWhomHasAPlaceAndBlocks) {
  SchedulerConfig config = small_config();
  config.batch.max_num_seqs = 3;
  config.batch.num_kv_blocks = 40;  // of 4 tokens
  config.batch.max_model_len = 120;
  config.watermark = 0.1;
  LaneHarness run(config);
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 0);
  run.add(iota_prompt(20, 100), greedy(4));
  run.add(iota_prompt(30, 200), greedy(4));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 50);
  run.add(iota_prompt(110, 300), greedy(4));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 50)
      << "of 36 blocks 5 and 8 are for the others; it needs 28";
  run.add(iota_prompt(1, 500), greedy(4));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 50) << "nobody passes who is refused";
  EXPECT_EQ(run.scheduler.num_waiting_tokens(), 161);
  run.run();
  for (int32_t i = 0; i < 5; ++i) run.add(iota_prompt(6, 100 * i), greedy(9));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 18) << "three places";
  ASSERT_TRUE(run.submit(kPrefill));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 0) << "all are taken";
  EXPECT_EQ(run.scheduler.num_waiting_tokens(), 12);
  run.run();
  run.add(iota_prompt(80, 600), greedy(4));
  ASSERT_TRUE(run.submit(kPrefill));  // 64 of them
  run.add(iota_prompt(64, 300), greedy(4));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 64) << "36 - 20 blocks";
  run.add(iota_prompt(1, 500), greedy(4));
  EXPECT_EQ(run.scheduler.num_admissible_tokens(), 64);
  run.run();
  run.expect_reference_outputs();
}

// What throws of a scheduler with lanes that is made so.
template <class Change>
std::string refusal(Change change, std::shared_ptr<KvConnector> connector = nullptr) {
  SchedulerConfig config = with_lanes(small_config());
  change(config);
  try {
    Scheduler scheduler(config, nullptr, std::move(connector));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Task8_7_Lanes, WhatDoesNotGoWithThemIsRefused) {
  EXPECT_EQ(refusal([](SchedulerConfig&) {}), "");
  EXPECT_NE(refusal([](SchedulerConfig& config) { config.static_batching = true; }).find("static batching"),
            std::string::npos);
  EXPECT_NE(refusal([](SchedulerConfig& config) { config.pipeline_depth = 2; }).find("pipeline"),
            std::string::npos);
  EXPECT_NE(refusal([](SchedulerConfig&) {}, std::make_shared<KvConnector>()).find("KV connector"),
            std::string::npos);
  SchedulerOutput output;
  Scheduler lanes(with_lanes(small_config())), one(small_config());
  EXPECT_THROW(lanes.schedule(output), Error);
  EXPECT_THROW(one.schedule(output, kDecode), Error);
}

TEST(Task8_7_Lanes, RandomDaysOfBothLanesEndWithTheAnswersOfEachAlone) {
  Day seen;
  for (uint64_t seed = 0; seed < 250; ++seed) {
    const Day day = random_day<LaneHarness>(seed, static_cast<int>(seed % 2));
    if (::testing::Test::HasFailure()) return;
    seen.preempted |= day.preempted;
    seen.hit |= day.hit;
    seen.forked |= day.forked;
    seen.stopped |= day.stopped;
    seen.aborted |= day.aborted;
  }
  EXPECT_TRUE(seen.preempted && seen.hit && seen.forked && seen.stopped && seen.aborted);
}

// The phases are mixed and parted at any time.
struct MixingHarness : LaneHarness {
  explicit MixingHarness(SchedulerConfig config, int delay = 0, std::unique_ptr<PrefixIndex> index = nullptr)
      : LaneHarness(
            [&] {
              config.num_mixed_step_tokens = std::min<int64_t>(config.batch.max_num_batched_tokens, 9);
              return config;
            }(),
            delay, std::move(index)) {}
  ~MixingHarness() override { num_mixed += num_answers_in_prefills; }
  bool turn() override {
    if (random() % 8 == 0) scheduler.mix_phases(random() % 2 == 0);
    return LaneHarness::turn();
  }
  static inline int64_t num_mixed = 0;
};

TEST(Task8_7_Lanes, RandomDaysOfPhasesThatAreMixedNowAndThenEndWithTheSameAnswers) {
  Day seen;
  MixingHarness::num_mixed = 0;
  for (uint64_t seed = 0; seed < 250; ++seed) {
    const Day day = random_day<MixingHarness>(seed, static_cast<int>(seed % 2));
    if (::testing::Test::HasFailure()) return;
    seen.preempted |= day.preempted;
    seen.hit |= day.hit;
    seen.forked |= day.forked;
    seen.stopped |= day.stopped;
    seen.aborted |= day.aborted;
  }
  EXPECT_TRUE(seen.preempted && seen.hit && seen.forked && seen.stopped && seen.aborted);
  EXPECT_GT(MixingHarness::num_mixed, 1000);
}

}  // namespace
}  // namespace ladder
