// 7.9: replicas that share out experts and whose ranks are processes: tokens cross from one replica's processes to another's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/workers/process_fleet.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::Answered;
using testing::Grid;
using ::testing::HasSubstr;
using testing::output_of;
using testing::ProcessFleet;

class Task7_9_Processes : public ::testing::TestWithParam<const char*> {};

TEST_P(Task7_9_Processes, ShareOutExpertsAndAnswerWhatOneEngineAnswers) {
  const Answered golden("qwen3_moe_normed");
  for (const Grid grid : {Grid{1, 1}, Grid{2, 1}, Grid{1, 2}}) {
    ProcessFleet fleet(golden.one_rank, grid, GetParam());
    std::vector<RequestStream> streams;
    for (const Request& request : golden.requests) streams.push_back(fleet.client->submit(request));
    for (size_t i = 0; i < streams.size(); ++i)
      EXPECT_TRUE(testing::equal_or_near_tie(
          golden.alone[i].completions[0], output_of(streams[i]).completions[0], 1e-4,
          fmt::format("{}, tensor {} x pipeline {}, prompt {}", GetParam(), grid.tp, grid.pp, i)));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Task7_9_Processes, ::testing::Values("whole", "split", "moving 4 3"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, std::string(info.param).find(' '));
                         });

TEST(Task7_9_ProcessFaults, OneThatIsKilledEndsAllAndTheyStartAgainTogether) {
  const Answered golden("mixtral_top2");
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
    EXPECT_LT(StreamBuffer::Clock::now() - begin, 30s);
    if (answer.finish_reason == FinishReason::error) {  // else it was done before
      EXPECT_THAT(answer.error, HasSubstr("was ended by SIGKILL"));
      if (dying == 1) {
        EXPECT_THAT(answer.error, HasSubstr("replica 1, which has a share of the experts"));
      }
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
