// Where ranks stand, and where they part.
#include "step1_layers/distributed/call_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

const OpContext kContext;

Tensor zeros(const Shape& shape) {
  return Tensor::zeros(shape, DType::f32);
}

TracedCall call(const char* name, const Shape& shape, int peer = -1) {
  return {name, TensorForm::of(zeros(shape)), peer};
}

struct RankCall {
  int rank;
  TracedCall call;
};

std::string parting_of(int size, const std::vector<RankCall>& calls) {
  CallTrace trace(size, CallTrace::kAll);
  for (const RankCall& one : calls) {
    trace.begin(one.rank, one.call);
    trace.end(one.rank);
  }
  return trace.parting();
}

TEST(CallTrace, TellsTheLastCallsOfEachRankTheNewestFirst) {
  CallTrace trace(2, 3);
  EXPECT_EQ(trace.str(), "rank 0: after call 0\nrank 1: after call 0\n");
  trace.begin(1, call("all_reduce", {1}));
  trace.end(1);
  trace.begin(1, call("send", {2, 3}, 0));
  trace.end(1);
  trace.begin(1, {"barrier"});
  trace.end(1);
  trace.begin(1, call("broadcast", {4}, 0));
  EXPECT_EQ(trace.str(),
            "rank 0: after call 0\n"
            "rank 1: in call 4, broadcast f32[4] of 0; before it: barrier, send f32[2, 3] to 0\n");
  trace.end(1);
  EXPECT_THAT(trace.str(), HasSubstr("rank 1: after call 4, broadcast"));
  EXPECT_EQ(trace.calls(1).size(), 3u);
}

TEST(CallTrace, RanksThatAgreePartNowhere) {
  // Messages have no order with what other ranks do, and an all_to_all gives each rank rows of its own.
  EXPECT_EQ(parting_of(3, {{0, call("send", {2, 4}, 2)},
                           {0, call("all_reduce", {5})},
                           {1, call("all_reduce", {5})},
                           {2, call("all_reduce", {5})},
                           {2, call("recv", {2, 4}, 0)},
                           {0, call("all_to_all", {3, 4})},
                           {1, call("all_to_all", {0, 4})},
                           {2, call("all_to_all", {7, 4})}}),
            "");
}

TEST(CallTrace, NamesTheFirstCollectiveInWhichRanksPart) {
  const RankCall first{0, call("all_reduce", {5})}, second{1, call("all_reduce", {5})};
  EXPECT_EQ(parting_of(2, {first, second, {0, call("all_reduce", {6})}, {1, call("all_reduce", {7})}}),
            "collective 2: rank 0 all_reduce f32[6], rank 1 all_reduce f32[7]");
  EXPECT_EQ(parting_of(2, {first, second, {0, call("broadcast", {6}, 0)}, {1, call("broadcast", {6}, 1)}}),
            "collective 2: rank 0 broadcast f32[6] of 0, rank 1 broadcast f32[6] of 1");
  EXPECT_EQ(parting_of(2, {{1, {"barrier"}}, first, second}),
            "collective 1: rank 0 all_reduce f32[5], rank 1 barrier");
  EXPECT_EQ(parting_of(2, {first, second, {1, {"barrier"}}}), "collective 2: rank 0 no call, rank 1 barrier");
  EXPECT_EQ(parting_of(2, {{0, call("all_to_all", {5, 2})}, {1, call("all_to_all", {3, 4})}}),
            "collective 1: rank 0 all_to_all f32[5, 2], rank 1 all_to_all f32[3, 4]");
}

TEST(CallTrace, NamesTheFirstMessageThatIsNotReceivedAsItWasSent) {
  EXPECT_EQ(parting_of(2, {{0, call("send", {3}, 1)},
                           {1, call("recv", {3}, 0)},
                           {0, call("send", {4}, 1)},
                           {1, call("recv", {5}, 0)}}),
            "message 2 of rank 0 to rank 1: send f32[4] to 1, recv f32[5] from 0");
  EXPECT_EQ(parting_of(3, {{1, call("send", {3}, 2)}, {2, call("recv", {3}, 0)}}),
            "message 1 of rank 0 to rank 2: no call, recv f32[3] from 0");
  EXPECT_EQ(parting_of(3, {{1, call("send", {3}, 2)}}),
            "message 1 of rank 1 to rank 2: send f32[3] to 2, no call");
}

// What a group gathers and fuses is one call on every rank, whatever it is made of.
TEST(CallTrace, ATracedGroupDoesWhatItDidUntraced) {
  LocalGroup group(2);
  CallTrace trace(2, CallTrace::kAll);
  std::vector<std::unique_ptr<TracedCommunicator>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(std::make_unique<TracedCommunicator>(group.rank(rank), trace));
  run_ranks(2, [&](int rank, const ParallelContext&) {
    Communicator& mine = *ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(mine.rank(), rank);
    EXPECT_EQ(mine.size(), 2);
    const Tensor value = zeros({2, 3}), all = zeros({4, 3}), weight = zeros({3});
    value.data<float>()[0] = static_cast<float>(rank + 1);
    mine.gather(kContext, value, all, 1);
    EXPECT_EQ(all.data<float>()[0] + all.data<float>()[6], rank == 1 ? 3 : 0);
    mine.all_reduce_add_norm(kContext, {value, zeros({2, 3}), weight, 1e-5, zeros({2, 3})});
    mine.all_gather(kContext, value, all);
    mine.reduce_scatter(kContext, all, value);
    const std::vector<int64_t> one = {1, 1};
    mine.all_to_all(kContext, value, one, zeros({2, 3}), one);
    rank == 0 ? mine.send(kContext, value, 1) : mine.recv(kContext, value, 0);
    mine.broadcast(kContext, value, 1);
    mine.barrier(kContext);
  });
  EXPECT_EQ(trace.parting(), "");
  EXPECT_EQ(trace.calls(0).size(), 8u);
  EXPECT_EQ(trace.calls(1).size(), 8u);
}

// What two ranks that wait for ever end with.
std::string deadlock(const std::function<void(int rank, Communicator& group)>& fn) {
  try {
    run_ranks(
        2, [&](int rank, const ParallelContext& parallel) { fn(rank, *parallel.tp); }, 200ms);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Task1_4_LocalGroup, ARankThatDoesNotComeIsAnErrorThatSaysWhereEachStands) {
  const std::string error = deadlock([](int rank, Communicator& group) {
    group.barrier(kContext);
    rank == 0 ? group.all_reduce(kContext, zeros({3})) : std::this_thread::sleep_for(1s);
  });
  EXPECT_THAT(error, AllOf(HasSubstr("not done within 200 ms"),
                           HasSubstr("rank 0: in call 2, all_reduce f32[3]; before it: barrier\n"),
                           HasSubstr("rank 1: after call 1, barrier\n")));
}

TEST(Task1_4_Exchange, RanksThatBothReceiveAreAnErrorThatSaysSo) {
  const std::string error =
      deadlock([](int rank, Communicator& group) { group.recv(kContext, zeros({3 + rank}), 1 - rank); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("not done within 200 ms"), HasSubstr("rank 0: in call 1, recv f32[3] from 1\n"),
                    HasSubstr("rank 1: in call 1, recv f32[4] from 0\n")));
}

// One that waits for something else than its peers cannot be released.
TEST(RunRanks, ARankThatDoesNotEndEndsTheProgramWithWhereItStands) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    run_ranks(
        1,
        [](int, const ParallelContext& parallel) {
          parallel.tp->barrier(kContext);
          std::this_thread::sleep_for(1h);
        },
        100ms);
  };
  EXPECT_DEATH(hang(), HasSubstr("rank 0 is not done within 100 ms:\nrank 0: after call 1, barrier"));
}

}  // namespace
}  // namespace ladder
