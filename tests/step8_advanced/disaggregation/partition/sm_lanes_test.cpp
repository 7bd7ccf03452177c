// Lanes with a border: what a step needs, which context it gets, and what is learnt from it. Contexts are told apart by nothing here;
// gpu_shares_test.cpp runs them on a GPU.
#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/partition/sm_lanes.h"
#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"

namespace ladder {
namespace {

// Of Llama-3.1-8B, and nothing but it.
class Shape8B final : public Model {
 public:
  Shape8B() {
    spec_.num_layers = 32;
    spec_.num_heads = 32;
    spec_.num_kv_heads = 8;
    spec_.head_dim = 128;
  }
  const DecoderSpec& spec() const override { return spec_; }
  DType dtype() const override { return DType::bf16; }
  int64_t max_model_len() const override { return 8192; }
  std::vector<KvCacheSpec> kv_cache_specs() const override {
    return std::vector<KvCacheSpec>(32,
                                    {.dtype = DType::bf16, .num_kv_heads = 8, .k_dim = 128, .v_dim = 128});
  }
  int64_t weight_bytes() const override { return 16'000'000'000; }
  Tensor forward(const OpContext&, const ModelInput&) override { return {}; }
  Tensor compute_logits(const OpContext&, const Tensor&) override { return {}; }

 private:
  DecoderSpec spec_;
};

constexpr SmRates kRates{.sm_flops = 6e12, .sm_bytes = 60e9, .bytes = 4.2e12};

SharedGpu gpu() {
  SharedGpu gpu;
  gpu.num_multiprocessors = 132;
  for (const int sms : decode_shares(132)) gpu.places.push_back({sms, 132 - sms});
  gpu.prefill.at_place.resize(gpu.places.size());
  gpu.decode.at_place.resize(gpu.places.size());
  return gpu;
}

// Measured steps take what the rates say.
void calibrate(SmLanes& lanes) {
  const Shape8B model;
  const ModelNeeds needs = needs_of_model(model);
  RunnerConfig config;
  config.batch.max_num_seqs = 64;
  config.batch.max_num_batched_tokens = 4096;
  config.batch.max_model_len = 8192;
  const auto places = gpu().places;
  lanes.calibrate(model, config,
                  [&](StepPhase phase, size_t context, int64_t num_seqs, int64_t num_tokens, int64_t before) {
                    StepNeeds step;
                    for (int64_t i = 0; i < num_seqs; ++i)
                      add_rows(step, needs, num_tokens / num_seqs, before);
                    const SmPlace place = context == 0 ? SmPlace{132, 132} : places[context - 1];
                    return phase == StepPhase::decode
                               ? predict_steps(kRates, step, place.decode_sms, {}, 0).decode
                               : predict_steps(kRates, {}, 0, step, place.prefill_sms).prefill;
                  });
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

TEST(Task8_7_Border_Lanes, PromptsThatWaitMoveTheBorder) {
  // On 84 multiprocessors 100,000 tokens take 3.2 s. Steps of 8 answers are late by 1.2 on 32, prompts on 100 by 1.4 of 2 s.
  const auto context_with = [](int64_t prompt, int64_t waiting) {
    SmLanes lanes(gpu(), {.max_itl = 11e-3, .max_wait = 2.0});
    calibrate(lanes);
    lanes.choose(StepPhase::prefill, prompt_step(100, prompt, 0, 4096));
    lanes.on_waiting(waiting);
    return lanes.choose(StepPhase::decode, decode_step(8, 8191));
  };
  EXPECT_EQ(context_with(4096, 0), 3u);
  EXPECT_EQ(context_with(4096, 40'000), 3u);
  EXPECT_EQ(context_with(4096, 100'000), 2u) << "they wait";
  EXPECT_EQ(context_with(104'096, 0), 2u) << "it has begun";
  EXPECT_EQ(context_with(4096, 300'000), 1u);
}

TEST(Task8_7_Border_Lanes, StepsBehindTheOldestWaitToo) {
  SmLanes lanes(gpu(), {.max_itl = 11e-3, .max_wait = 2.0});
  calibrate(lanes);
  lanes.choose(StepPhase::prefill, prompt_step(100, 4096, 0, 4096));
  lanes.choose(StepPhase::prefill, prompt_step(101, 100'000, 0, 100'000));
  EXPECT_EQ(lanes.choose(StepPhase::decode, decode_step(8, 8191)), 1u) << "with what its tokens look back at";
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
