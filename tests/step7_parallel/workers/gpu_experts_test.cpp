// 7.9 on two GPUs: replicas that share out experts, and experts that move, answer what one GPU answers: with graphs and without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/workers/process_fleet.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::Answered;
using testing::Grid;
using ::testing::HasSubstr;
using testing::output_of;
using testing::ProcessFleet;

class TwoExpertGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (const int count = cuda_device_count(&reason); count < 2)
      GTEST_SKIP() << "2 GPUs are needed and there are " << count << ": " << reason;
  }

  // One request by itself, while the other replica runs along; then all of them at once, on both.
  static void expect_the_answers_of_one(const Answered& golden, const EngineOptions& options,
                                        const std::string& experts, const std::string& what) {
    ProcessFleet fleet(options, {}, experts);
    EXPECT_TRUE(testing::equal_or_near_tie(golden.alone[0].completions[0],
                                           output_of(fleet.client->submit(golden.requests[0])).completions[0],
                                           1e-4, what + ", one by itself"));
    std::vector<RequestStream> streams;
    for (const Request& request : golden.requests) streams.push_back(fleet.client->submit(request));
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(golden.alone[i].completions[0],
                                             output_of(streams[i]).completions[0], 1e-4,
                                             fmt::format("{}, prompt {} of several", what, i)));
  }
};

using Task7_9_TwoGpusTogether = TwoExpertGpus;
class Task7_9_TwoGpus : public TwoExpertGpus, public ::testing::WithParamInterface<std::string> {};

TEST_P(Task7_9_TwoGpus, ShareOutExpertsAndAnswerWhatOneAnswers) {
  const Answered golden(GetParam(), DeviceType::cuda);
  expect_the_answers_of_one(golden, golden.one_rank, "whole", GetParam());
}

TEST_P(Task7_9_TwoGpus, MoveExpertsAndAnswerWhatOneAnswers) {
  const Answered golden(GetParam(), DeviceType::cuda);
  const DecoderSpec spec = load_decoder_spec(golden.checkpoint.directory);
  const std::string experts = fmt::format("moving {} 2", spec.experts.num_experts % 2 + 2);
  if (testing::fits(spec, {2, 1})) {
    EngineOptions options = testing::on_grid(golden.one_rank, {2, 1});
    testing::plan_experts(options.runner, experts);
    options.makers.executor =
        make_worker_executor(testing::worker_program(options.model, "none", "1 1 1", experts));
    const auto outputs = testing::engine_with(options)->generate(golden.requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(golden.alone[i].completions[0], outputs[i].completions[0], 1e-4,
                                             fmt::format("{}, tensor ranks, prompt {}", GetParam(), i)));
  }
  expect_the_answers_of_one(golden, golden.one_rank, experts, GetParam() + ", replicas");
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task7_9_TwoGpus,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder(), true)),
                         [](const auto& info) { return info.param; });

// Whatever the steps are: eager ones, by each rung of the exchange, prompts in pieces, one step at a time, parts of experts.
TEST_F(Task7_9_TwoGpusTogether, AnswerWhatOneAnswersInEachMode) {
  const Answered golden("qwen3_moe_normed", DeviceType::cuda);
  EngineOptions options = golden.one_rank;
  options.runner.cuda_graphs = false;
  expect_the_answers_of_one(golden, options, "whole", "eager");
  expect_the_answers_of_one(golden, options, "moving 2 3", "eager, moving");
  options = golden.one_rank;
  for (const char* rung : {"nccl", "peer"}) {
    options.runner.kernels["expert_exchange"] = rung;
    expect_the_answers_of_one(golden, options, "whole", rung);
    expect_the_answers_of_one(golden, options, "split", fmt::format("{}, split", rung));
  }
  options = golden.one_rank;
  options.runner.async_scheduling = false;
  options.runner.batch.max_num_seqs = 4;
  options.runner.batch.max_num_batched_tokens = 5;
  expect_the_answers_of_one(golden, options, "whole", "chunks of 5, one step at a time");
}

// Too few blocks, requests that come and are aborted in the middle of everything.
TEST_F(Task7_9_TwoGpusTogether, ServeACrowdWithAborts) {
  const Answered golden("mixtral_top2", DeviceType::cuda);
  EngineOptions options = golden.one_rank;
  options.runner.batch.block_size = 16;
  options.runner.kv_memory = 0;
  options.runner.batch.num_kv_blocks = 12;
  options.runner.batch.max_num_seqs = 5;
  options.runner.batch.max_num_batched_tokens = 24;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const DecoderSpec spec = load_decoder_spec(golden.checkpoint.directory);
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    Request& request = requests.emplace_back();
    request.request_id = std::to_string(i);
    for (int64_t more = random.integer(1, 30); more > 0; --more)
      request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(1, spec.vocab_size - 1)));
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 4;
    request.sampling.max_tokens = random.integer(1, 24);
  }
  const auto alone = testing::engine_with(options)->generate(requests);
  ProcessFleet fleet(options, {}, "moving 2 7");
  std::vector<RequestStream> streams;
  std::vector<bool> aborted(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    streams.push_back(fleet.client->submit(requests[i]));
    if (random.integer(0, 4) > 0) continue;
    const auto victim = static_cast<size_t>(random.integer(0, static_cast<int64_t>(i)));
    aborted[victim] = true;
    fleet.client->abort(requests[victim].request_id);
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    const CompletionOutput answer = output_of(streams[i]).completions[0];
    if (!aborted[i]) {
      EXPECT_TRUE(
          testing::equal_or_near_tie(alone[i].completions[0], answer, 1e-4, fmt::format("request {}", i)));
    }
  }
  ASSERT_TRUE(testing::becomes_idle(*fleet.client));
  for (const EngineStats& stats : fleet.client->replica_stats()) {
    EXPECT_EQ(stats.scheduler.num_used_blocks, 0);
    EXPECT_EQ(stats.error, "");
  }
}

// Counted on the GPUs: each token once, whoever has it, and neither those of the warm-up nor rows that fill up.
TEST_F(Task7_9_TwoGpusTogether, CountTheTokensThatWereServed) {
  const Answered golden("mixtral_top2", DeviceType::cuda);
  Request request = golden.requests[0];
  request.prompt_token_ids = {5, 6, 7, 8, 9};
  request.sampling.max_tokens = 6;
  for (const bool graphs : {true, false})
    for (const bool replicas : {false, true}) {
      const testing::TemporaryFolder folder;
      const std::string experts = fmt::format("moving 0 2 {}", (folder / "turns").string());
      EngineOptions options = golden.one_rank;
      options.runner.cuda_graphs = graphs;
      if (replicas) {
        ProcessFleet fleet(options, {}, experts);
        output_of(fleet.client->submit(request));
        ASSERT_TRUE(testing::becomes_idle(*fleet.client));
      } else {
        options = testing::on_grid(options, {2, 1});
        testing::plan_experts(options.runner, experts);
        options.makers.executor =
            make_worker_executor(testing::worker_program(options.model, "none", "1 1 1", experts));
        testing::engine_with(options)->generate({request});
      }
      // Six steps, of five tokens, one, one ...: turns before the third and the fifth.
      std::ifstream turns(folder / "turns");
      int64_t copies = 0, first = 0, second = 0;
      turns >> copies >> first >> copies >> second;
      EXPECT_EQ(first, 5 + 1) << (graphs ? "graphs" : "eager") << (replicas ? ", replicas" : "");
      EXPECT_EQ(second, 2) << (graphs ? "graphs" : "eager") << (replicas ? ", replicas" : "");
    }
}

// The kernels of the one that lives wait for what does not come: it is ended, and both start again.
TEST_F(Task7_9_TwoGpusTogether, OneThatIsKilledEndsBothWithinFiveSeconds) {
  const Answered golden("mixtral_top2", DeviceType::cuda);
  for (const int dying : {0, 1}) {  // who has the request, or who runs along
    ProcessFleet fleet(golden.one_rank, {}, "whole");
    const std::vector<int> before = fleet.pids(dying);
    ASSERT_EQ(before.size(), 1u);
    Request request = golden.requests[0];
    request.sampling.max_tokens = 40;
    RequestStream stream = fleet.client->submit(request);
    ASSERT_TRUE(stream.next(30s).has_value());
    const auto begin = StreamBuffer::Clock::now();
    ::kill(before[0], SIGKILL);
    const CompletionOutput answer = output_of(stream).completions[0];
    if (answer.finish_reason == FinishReason::error) {  // else it was done before
      EXPECT_LT(StreamBuffer::Clock::now() - begin, 5s);
      EXPECT_THAT(answer.error, HasSubstr("was ended by SIGKILL"));
    }
    EXPECT_TRUE(testing::becomes([&] {
      return !fleet.pids(dying).empty() && fleet.pids(dying) != before &&
             fleet.client->stats().num_live_replicas == 2;
    }));
    EXPECT_TRUE(testing::equal_or_near_tie(golden.alone[1].completions[0],
                                           output_of(fleet.client->submit(golden.requests[1])).completions[0],
                                           1e-4, "after the new start"));
  }
}

}  // namespace
}  // namespace ladder
