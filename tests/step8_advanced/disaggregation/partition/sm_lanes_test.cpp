// Lanes with a border: what a step needs, which context it gets, and what is learnt from it. Contexts are told apart by nothing here;
// gpu_shares_test.cpp runs them on a GPU.
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/partition/sm_lanes.h"
#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"
#include "tests/step8_advanced/disaggregation/partition/predicted_gpu.h"

namespace ladder {
namespace {

using testing::gpu_without_contexts;
using testing::Shape8B;

constexpr SmRates kRates{.sm_flops = 6e12, .sm_bytes = 60e9, .bytes = 4.2e12};

SharedGpu gpu() {
  return gpu_without_contexts();
}
void calibrate(SmLanes& lanes) {
  testing::calibrate(lanes, kRates);
}

SchedulerOutput prompt_step(SequenceId id, int64_t prompt, int64_t computed, int64_t count) {
  SchedulerOutput step;
  if (computed == 0) {
    NewSequence sequence;
    sequence.id = id;
    sequence.num_prompt_tokens = prompt;
    step.new_sequences.push_back(sequence);
  } else {
    step.continued.push_back({id, {}, computed});
  }
  step.scheduled.push_back({id, count, {}});
  return step;
}
SchedulerOutput decode_step(int64_t count, int64_t context) {
  SchedulerOutput step;
  for (SequenceId id = 0; id < count; ++id) {
    step.continued.push_back({id, {}, context});
    step.scheduled.push_back({id, 1, {}});
  }
  return step;
}

TEST(Task8_7_Border_Lanes, AStepNeedsItsWeightsOnceAndItsKeys) {
  const ModelNeeds model = needs_of_model(Shape8B());
  EXPECT_EQ(model.flops_per_row, 16e9);
  EXPECT_EQ(model.flops_per_pair, 4.0 * 32 * 32 * 128);
  EXPECT_EQ(model.bytes_per_key, 131'072);
  StepNeeds step;
  EXPECT_TRUE(step.none());
  add_rows(step, model, 1, 99);
  add_rows(step, model, 3, 10);
  EXPECT_EQ(step.flops, 4 * 16e9 + (100 + 11 + 12 + 13) * model.flops_per_pair);
  EXPECT_EQ(step.bytes, 16e9 + 113 * 131'072.0);
}

TEST(Task8_7_Border_Lanes, TheBorderStandsWhereTheMeasuredStepsSay) {
  SmLanes lanes(gpu(), {.max_itl = 11e-3});
  EXPECT_EQ(lanes.make(StepPhase::decode).size(), 5u);
  calibrate(lanes);
  EXPECT_NEAR(lanes.report().fitted.rates.sm_bytes / kRates.sm_bytes, 1, 1e-6);
  EXPECT_NEAR(lanes.report().fitted.worst_error, 0, 1e-6);
  EXPECT_EQ(lanes.choose(StepPhase::prefill, prompt_step(100, 8192, 0, 4096)), 0u) << "there is nothing else";
  // 16 GB and 8 x 8,192 keys in 11 ms: 37 multiprocessors, so 48, the third place.
  EXPECT_EQ(lanes.choose(StepPhase::decode, decode_step(8, 8191)), 3u);
  EXPECT_EQ(lanes.choose(StepPhase::prefill, prompt_step(100, 8192, 4096, 4096)), 3u);
}

TEST(Task8_7_Border_Lanes, WhoIsAloneHasAllOfTheGpu) {
  SmLanes lanes(gpu(), {.max_itl = 11e-3});
  calibrate(lanes);
  EXPECT_EQ(lanes.choose(StepPhase::decode, decode_step(8, 8191)), 0u);
  lanes.on_done(StepPhase::decode, 5e-3);
  EXPECT_EQ(lanes.choose(StepPhase::prefill, prompt_step(100, 8192, 0, 4096)), 0u);
  EXPECT_EQ(lanes.choose(StepPhase::prefill, prompt_step(100, 8192, 4096, 4096)), 0u);
  lanes.on_done(StepPhase::prefill, 0.1);
  // The prompt in flight is at its end: its answer will begin beside the next prompt.
  EXPECT_NE(lanes.choose(StepPhase::prefill, prompt_step(101, 8192, 0, 4096)), 0u);
  lanes.on_done(StepPhase::prefill, 0.1);
  EXPECT_NE(lanes.choose(StepPhase::decode, decode_step(8, 8191)), 0u);
  lanes.on_done(StepPhase::prefill, 0.1);
  lanes.on_done(StepPhase::decode, 5e-3);
  EXPECT_EQ(lanes.choose(StepPhase::prefill, prompt_step(101, 8192, 4096, 1024)), 0u);
}

TEST(Task8_7_Border_Lanes, SlowStepsMoveTheBorder) {
  SmLanes lanes(gpu(), {.max_itl = 11e-3, .min_dwell = 1});
  calibrate(lanes);
  lanes.choose(StepPhase::prefill, prompt_step(100, 8192, 0, 4096));
  for (int i = 0; i < 40; ++i) {
    const size_t place = lanes.choose(StepPhase::decode, decode_step(8, 8191));
    lanes.on_done(StepPhase::decode,
                  place < 4 ? 14e-3 : 10e-3);  // on 48 or fewer they are slower than predicted
  }
  EXPECT_EQ(lanes.choose(StepPhase::decode, decode_step(8, 8191)), 4u);
  EXPECT_EQ(lanes.report().num_moves, 2) << "to 48, as predicted, and to 64";
}

TEST(Task8_7_Border_Lanes, PromptsThatWaitAreMixedWithAnswers) {
  // On 68 multiprocessors, at 64 for answers, 100,000 tokens take 3.9 s.
  const auto mixes = [](int64_t prompt, int64_t waiting) {
    SmLanes lanes(gpu(), {.max_itl = 11e-3, .max_wait = 2.0});
    calibrate(lanes);
    lanes.choose(StepPhase::prefill, prompt_step(100, prompt, 0, 4096));
    return lanes.on_waiting(waiting);
  };
  EXPECT_FALSE(mixes(4096, 0));
  EXPECT_FALSE(mixes(4096, 40'000));
  EXPECT_TRUE(mixes(4096, 60'000)) << "they wait";
  EXPECT_TRUE(mixes(44'096, 20'000)) << "the rest of the one that has begun counts";
  EXPECT_FALSE(mixes(104'096, 0)) << "nobody waits behind it";
  SmLanes patient(gpu(), {.max_itl = 11e-3});
  calibrate(patient);
  EXPECT_FALSE(patient.on_waiting(10'000'000));
}

TEST(Task8_7_Border_Lanes, StepsBehindTheOldestWaitToo) {
  SmLanes lanes(gpu(), {.max_itl = 11e-3, .max_wait = 2.0});
  calibrate(lanes);
  lanes.choose(StepPhase::prefill, prompt_step(100, 4096, 0, 4096));
  EXPECT_FALSE(lanes.on_waiting(1));
  lanes.choose(StepPhase::prefill, prompt_step(101, 50'000, 0, 50'000));
  EXPECT_TRUE(lanes.on_waiting(1)) << "with what its tokens look back at";
}

TEST(Task8_7_Border_Lanes, AMixedStepHasAllOfTheGpu) {
  SmLanes lanes(gpu(), {.max_itl = 11e-3, .max_wait = 2.0});
  calibrate(lanes);
  lanes.choose(StepPhase::prefill, prompt_step(100, 8192, 0, 8192));
  ASSERT_TRUE(lanes.on_waiting(100'000));
  lanes.on_done(StepPhase::prefill, 0.1);
  EXPECT_EQ(lanes.choose(StepPhase::decode, decode_step(8, 8191)), 0u);
  EXPECT_NE(lanes.choose(StepPhase::prefill, prompt_step(101, 8192, 0, 512)), 0u)
      << "beside answers in flight";
  lanes.on_done(StepPhase::decode, 5e-3);
  lanes.on_done(StepPhase::prefill, 0.02);
  const auto mixed = [](int64_t computed) {  // 100 is answered, 101 computed
    SchedulerOutput step = prompt_step(101, 8192, computed, 511);
    step.continued.push_back({100, {}, 8191 + computed});
    step.scheduled.push_back({100, 1, {}});
    return step;
  };
  EXPECT_EQ(lanes.choose(StepPhase::prefill, mixed(512)), 0u);
  EXPECT_EQ(lanes.choose(StepPhase::prefill, mixed(1023)), 0u) << "though the one before draws a token";
  EXPECT_EQ(lanes.report().num_mixed, 3);
  EXPECT_FALSE(lanes.on_waiting(0));
  EXPECT_NE(lanes.choose(StepPhase::prefill, prompt_step(101, 8192, 1534, 4096)), 0u)
      << "answers will be beside it";
  EXPECT_EQ(lanes.report().num_mixed, 3);
}

TEST(Task8_7_Border_Lanes, SharesOfGpusOfAnySize) {
  EXPECT_EQ(decode_shares(132), (std::vector<int>{16, 32, 48, 64}));
  EXPECT_EQ(decode_shares(64), (std::vector<int>{8, 16, 24, 32}));
  SharedGpu wrong = gpu();
  wrong.places.pop_back();
  EXPECT_THROW(SmLanes(wrong, {}), Error);
}

TEST(Task8_7_Border_Lanes, ABuildOrAMachineWithoutGpusSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_THROW(share_gpu({DeviceType::cuda, 0}, {16}), Error);
  EXPECT_THROW(make_plain_lane_contexts({DeviceType::cuda, 0}), Error);
  EXPECT_EQ(make_plain_lane_contexts(Device{})->make(StepPhase::decode).size(), 1u);
}

}  // namespace
}  // namespace ladder
