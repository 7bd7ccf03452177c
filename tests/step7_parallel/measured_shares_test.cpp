// What is measured of the ranks' talk arrives with the steps.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "step1_layers/distributed/local_group.h"
#include "step1_layers/distributed/measured_communicator.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step7_parallel/failing_communicator.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

// Calls of rank 0 that have begun, of which the other one is late by a known time.
std::atomic<int> num_begun;
void begin_call() {
  ++num_begun;
  num_begun.notify_all();
}

TEST(MeasuredCommunicator, WaitingForOthersCounts) {
  LocalGroup group(2);
  num_begun = 0;
  std::thread late([&] {
    const Tensor ones = Tensor::from<float>({{1.0f, 1.0f}}, {2});
    num_begun.wait(0);
    std::this_thread::sleep_for(50ms);
    group.rank(1).all_reduce({}, ones);
    num_begun.wait(1);
    std::this_thread::sleep_for(30ms);
    group.rank(1).send({}, ones, 0);
  });
  testing::FailingCommunicator receiving(group.rank(0), 1, begin_call), both(receiving, 0, begin_call);
  MeasuredCommunicator measured(both);
  const Tensor twos = Tensor::from<float>({{2.0f, 2.0f}}, {2});
  measured.all_reduce({}, twos);
  EXPECT_EQ(twos.at<float>({0}), 3.0f);
  measured.recv({}, twos, 1);
  late.join();
  EXPECT_EQ(twos.at<float>({0}), 3.0f);
  EXPECT_GT(measured.take_other_seconds(), 0.04);
  EXPECT_GT(measured.take_recv_seconds(), 0.02);
  EXPECT_EQ(measured.take_other_seconds(), 0.0);
  EXPECT_EQ(measured.take_recv_seconds(), 0.0);
}

EngineMetrics metrics_on(int tp, int pp) {
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 64);
  options.runner.tensor_parallel_size = tp;
  options.runner.pipeline_parallel_size = pp;
  const auto engine = testing::engine_with(options);
  Request request;
  request.prompt_token_ids = {5, 6, 7};
  request.sampling.max_tokens = 20;
  request.sampling.ignore_eos = true;
  engine->generate(std::vector<Request>(4, request));
  return engine->metrics();
}

TEST(MeasuredShares, ComeFromWhatThereIs) {
  const EngineMetrics alone = metrics_on(1, 1), tensor = metrics_on(2, 1), pipeline = metrics_on(1, 2);
  EXPECT_EQ(alone.communicate_seconds, 0.0);
  EXPECT_EQ(alone.stage_wait_seconds, 0.0);
  EXPECT_GT(tensor.communicate_seconds, 0.0);
  EXPECT_LT(tensor.communicate_seconds, tensor.execute_seconds);
  EXPECT_EQ(tensor.stage_wait_seconds, 0.0);
  EXPECT_EQ(pipeline.communicate_seconds, 0.0);
  EXPECT_GT(pipeline.stage_wait_seconds, 0.0);
  EXPECT_LT(pipeline.stage_wait_seconds, pipeline.execute_seconds);
}

}  // namespace
}  // namespace ladder
