// An engine with two lanes on one GPU, whose multiprocessors they share out: the tokens are those of an ordinary engine, wherever
// the border stands and however often it moves, and nothing is left when the engine ends.
#include <gtest/gtest.h>

#include <atomic>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/partition/phase_executors.h"
#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/step8_advanced/disaggregation/connector/handoff_requests.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::GoldenCheckpoint;

constexpr Device kGpu{DeviceType::cuda, 0};

// Every step runs on another share than the one before it.
class RestlessLanes final : public LaneContexts {
 public:
  RestlessLanes() : gpu_(share_gpu(kGpu, {})) {}
  std::vector<OpContext> make(StepPhase phase) override {
    const SharedGpu::Lane& lane = phase == StepPhase::decode ? gpu_.decode : gpu_.prefill;
    std::vector<OpContext> contexts{lane.whole};
    contexts.insert(contexts.end(), lane.at_place.begin(), lane.at_place.end());
    return contexts;
  }
  size_t choose(StepPhase /*phase*/, const SchedulerOutput& /*step*/) override {
    return static_cast<size_t>(next_++) % (gpu_.places.size() + 1);
  }
  bool on_waiting(int64_t /*num_tokens*/) override { return next_ % 3 != 0; }

 private:
  SharedGpu gpu_;
  std::atomic<int64_t> next_ = 0;
};

class Task8_7_GpuShares : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (cuda_device_count(&reason) == 0) GTEST_SKIP() << "no GPU: " << reason;
    try {
      share_gpu(kGpu, {});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

EngineOptions options_of(const GoldenCheckpoint& checkpoint) {
  EngineOptions options =
      testing::small_options(checkpoint.directory, DeviceType::cuda, checkpoint.max_model_len);
  options.runner.batch.max_num_batched_tokens = 16;  // prompts take several steps
  return options;
}
EngineOptions with_lanes(EngineOptions options, LaneContextsMaker maker) {
  options.makers.executor = make_phase_executors(std::move(maker));
  return options;
}
LaneContextsMaker restless() {
  return [](const RunnerConfig&) { return std::make_shared<RestlessLanes>(); };
}

void expect_same_tokens(Engine& engine, const std::vector<Request>& requests,
                        const std::vector<RequestOutput>& expected, const std::string& what) {
  const auto outputs = engine.generate(requests);
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_EQ(outputs[i].completions.at(0).token_ids, expected[i].completions.at(0).token_ids)
        << what << ", prompt " << i;
}

TEST_F(Task8_7_GpuShares, TokensAreThoseOfAnOrdinaryEngine) {
  for (const std::string& name : testing::golden_names(testing::golden_folder())) {
    const auto checkpoint = testing::load_golden(testing::golden_folder() / name);
    const EngineOptions options = options_of(checkpoint);
    const std::vector<Request> requests = testing::greedy_requests(checkpoint);
    const auto expected = engine_with(options)->generate(requests);
    const auto moving = engine_with(with_lanes(options, restless())),
               plain = engine_with(with_lanes(options, {}));
    expect_same_tokens(*moving, requests, expected,
                       name + ", the border moves at every step, and steps are mixed now and then");
    expect_same_tokens(*plain, requests, expected, name + ", two streams");
  }
}

TEST_F(Task8_7_GpuShares, TheBorderOfTheEngineItself) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  const EngineOptions options = options_of(checkpoint);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const auto expected = engine_with(options)->generate(requests);
  std::shared_ptr<SmLanes> lanes;
  const auto engine = engine_with(with_lanes(options, [&](const RunnerConfig& config) {
    return lanes = std::make_shared<SmLanes>(share_gpu(config.device, {}), SmBorderOptions{.min_dwell = 1});
  }));
  for (int round = 0; round < 3; ++round) expect_same_tokens(*engine, requests, expected, "calibrated");
  const SmLanes::Report report = lanes->report();
  EXPECT_EQ(report.measured.size(), 5 * (options.runner.batch.max_num_seqs >= 8 ? 3u : 2u));
  EXPECT_GT(report.fitted.rates.sm_flops, 0);
  int64_t steps = 0;
  for (const int64_t count : report.decode_steps) steps += count;
  EXPECT_GT(steps, 0);
}

TEST_F(Task8_7_GpuShares, ManySequencesKeepTheirKeys) {
  EngineOptions options = testing::small_options(testing::narrow_model(), DeviceType::cuda, 128);
  options.runner.load_format = LoadFormat::dummy;
  options.runner.batch.block_size = 4;
  options.runner.batch.num_kv_blocks = 300;
  options.runner.batch.max_num_batched_tokens = 24;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<Request> requests = testing::random_requests(random, 40);
  const auto expected = engine_with(options)->generate(requests);
  testing::expect_same(engine_with(with_lanes(options, restless()))->generate(requests), expected);
}

// Who gets a first token would else wait for two steps of the others before the one that has its second.
TEST_F(Task8_7_GpuShares, NoStepIsLaunchedAheadWhileFirstTokensCome) {
  EngineOptions options = testing::small_options(testing::narrow_model(), DeviceType::cuda, 128);
  options.runner.load_format = LoadFormat::dummy;
  options.runner.batch.max_num_batched_tokens = 16;
  options = with_lanes(options, {});
  const ModelFolder folder = open_model_folder(options.model);
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  const MadeExecutor made = options.makers.executor(executor_options(options, folder, config));
  Executor &prefill = made.phases->of(StepPhase::prefill), &decode = made.phases->of(StepPhase::decode);
  SchedulerConfig scheduling;
  scheduling.batch = made.batch;
  scheduling.vocab_size = folder.spec.vocab_size;
  scheduling.phase_lanes = true;
  Scheduler scheduler(scheduling);
  scheduler.add(std::vector<int32_t>(24, 300), greedy(4));  // 16 tokens, and 8
  for (const int expected : {2, 1}) {
    SchedulerOutput step;
    scheduler.schedule(step, StepPhase::prefill);
    const Ticket ticket = prefill.submit(step);
    EXPECT_EQ(made.phases->wait(), StepPhase::prefill);
    EXPECT_EQ(decode.max_in_flight(), expected);
    EXPECT_EQ(prefill.max_in_flight(), 2);
    scheduler.update(prefill.collect(ticket));
    EXPECT_EQ(decode.max_in_flight(), 2);
  }
}

// But 4 MiB of every green context, see sm_partition_test.cpp.
TEST_F(Task8_7_GpuShares, NothingIsLeftButWhatTheDriverKeeps) {
  constexpr int64_t kKeptByDriver = int64_t{4} << 20, kSlack = int64_t{8} << 20;
  const int64_t num_contexts = 2 * std::ssize(decode_shares(cuda_device_info(0).num_multiprocessors));
  const auto checkpoint = testing::load_golden(testing::golden_folder() / "llama_linear");
  const EngineOptions options = with_lanes(options_of(checkpoint), restless());
  const auto free_after_an_engine = [&] {
    engine_with(options)->generate(testing::greedy_requests(checkpoint));
    return cuda_device_info(0).free_bytes;
  };
  free_after_an_engine();  // kernels are loaded
  const int64_t before = free_after_an_engine();
  for (int i = 0; i < 3; ++i) free_after_an_engine();
  EXPECT_GE(cuda_device_info(0).free_bytes, before - 3 * num_contexts * kKeptByDriver - kSlack);
}

}  // namespace
}  // namespace ladder
