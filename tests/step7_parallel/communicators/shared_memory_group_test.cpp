#include "step7_parallel/communicators/shared_memory_group.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <future>
#include <thread>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/forked_ranks.h"
#include "tests/step7_parallel/communicators/collective_cases.h"
#include "tests/support/error_of.h"
#include "tests/support/in_time.h"
#include "tests/support/memory_files.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::error_of;

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Clock = std::chrono::steady_clock;

const OpContext kContext;
constexpr auto kDeadline = 120s;
const SharedMemoryGroup::Patience kPatience{.timeout = 10s};

Tensor ones(int64_t count) {
  const Tensor tensor = Tensor::empty({count}, DType::f32);
  std::fill_n(tensor.data<float>(), count, 1.0f);
  return tensor;
}

// Staging and slots so small that every call takes many rounds, with sums of one meeting and of two; and ranks that
// always sleep.
TEST(Task7_2_SharedMemory, EveryCaseInSmallPiecesAndWithoutLooking) {
  for (const auto& one : testing::collective_cases())
    for (const int size : {2, 3}) {
      const uint64_t seed = testing::fresh_seed();
      const int64_t bytes = one.name == "ten_thousand_random_calls" ? 192 : 48 << 10;
      const auto errors = run_forked_ranks({.shape = {size, bytes, 64 * (bytes / 192), 4},
                                            .patience = {.timeout = kDeadline, .spin = 0us},
                                            .deadline = kDeadline},
                                           [&](int, Communicator& group) { one.run(group, seed); });
      EXPECT_THAT(errors, Each("")) << one.name << ", " << size << " ranks, LADDER_TEST_SEED=" << seed;
      if (HasFailure()) return;
    }
}

// In one process, where ThreadSanitizer sees all sides.
TEST(Task7_2_SharedMemory, RanksMayBeThreads) {
  for (const auto& one : testing::collective_cases()) {
    const uint64_t seed = testing::fresh_seed();
    const SharedMemoryGroup group = SharedMemoryGroup::create({3, 64 << 10, 4096, 4});
    std::vector<std::future<std::string>> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.push_back(std::async(std::launch::async, [&, rank] {
        const auto mine = group.join(rank, {.timeout = kDeadline});
        return error_of([&] { one.run(*mine, seed); });
      }));
    for (const auto deadline = Clock::now() + kDeadline; auto& rank : ranks)
      if (rank.wait_until(deadline) != std::future_status::ready) group.close("not done in time");
    for (auto& rank : ranks) EXPECT_EQ(rank.get(), "no error") << one.name << ", LADDER_TEST_SEED=" << seed;
    if (HasFailure()) return;
  }
}

// Two slots hold two short messages, or two slots of one.
TEST(Task7_2_SharedMemory, ASenderIsAheadByWhatTheSlotsHold) {
  const auto errors = run_forked_ranks(
      {.shape = {2, 4096, 4096, 2}, .patience = {.timeout = 1s}}, [](int rank, Communicator& group) {
        if (rank == 1) return std::this_thread::sleep_for(5s);
        group.send(kContext, ones(3), 1);
        group.send(kContext, ones(1000), 1);
        const std::string text = error_of([&] { group.send(kContext, ones(1), 1); });
        if (text != "no error") fail("the third: {}", text);
      });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("the third: rank 1 (process "), HasSubstr("within 1000 ms"),
                               HasSubstr("rank 0's send")));
}

// Point to point is between two: the third may be in a collective, or nowhere.
TEST(Task7_2_SharedMemory, TwoTalkWhileTheThirdIsElsewhere) {
  const auto errors = run_forked_ranks(
      {.shape = {3, 4096, 4096, 2}, .patience = {.timeout = kDeadline}, .deadline = kDeadline},
      [](int rank, Communicator& group) {
        if (rank < 2)
          for (int i = 0; i < 100; ++i) {
            const Tensor value = ones(5000);
            rank == 0 ? group.send(kContext, value, 1) : group.recv(kContext, value, 0);
          }
        group.barrier(kContext);
      });
  EXPECT_THAT(errors, Each(""));
}

enum class Fault { throws, killed, stopped, returns };

std::string name_of(const ::testing::TestParamInfo<Fault>& info) {
  static constexpr const char* kNames[] = {"Throws", "IsKilled", "Stops", "Returns"};
  return kNames[static_cast<int>(info.param)];
}

class ARankThat : public ::testing::TestWithParam<Fault> {};

// In the midst of large collectives, and while it is waited for by a recv.
// Field bugs NCCL 279 and 863 (FIELD_BUGS.md).
TEST_P(ARankThat, ReleasesTheOthersWithItsNameAndTheCause) {
  const auto before = testing::files_of_memory();
  for (const int culprit : {0, 2})
    for (const bool messages : {false, true}) {
      const auto live = [&](int rank, Communicator& group) {
        const Tensor value = ones(400'000);
        if (rank == culprit && (GetParam() == Fault::killed || GetParam() == Fault::stopped))
          std::thread([] {  // wherever the rank then is
            std::this_thread::sleep_for(30ms);
            ::raise(GetParam() == Fault::killed ? SIGKILL : SIGSTOP);
          })
              .detach();
        const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
        for (int call = 0;; ++call) {
          if (rank == culprit && call == 5 && GetParam() == Fault::throws)
            throw std::runtime_error("the disk is on fire");
          if (rank == culprit && call == 5 && GetParam() == Fault::returns) return;
          if (messages) {
            group.send(kContext, value, next);
            group.recv(kContext, value, previous);
          } else {
            group.all_reduce(kContext, value);
          }
        }
      };
      const Clock::time_point begin = Clock::now();
      const auto errors = run_forked_ranks(
          {.shape = {3, 64 << 10, 512 << 10, 4}, .patience = {.timeout = 2s}, .deadline = 60s}, live);
      // The bound of a wait, and two seconds until a stopped one is killed.
      EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 20);
      const auto name = fmt::format("rank {}", culprit);
      for (int rank = 0; rank < 3; ++rank) {
        const std::string& error = errors[static_cast<size_t>(rank)];
        SCOPED_TRACE(fmt::format("rank {} of culprit {}: {}", rank, culprit, error));
        EXPECT_EQ(error.find('\n'), std::string::npos);
        if (rank != culprit && !messages) {
          EXPECT_THAT(error, HasSubstr(name));
        }
        switch (GetParam()) {
          case Fault::throws:
            EXPECT_THAT(error, HasSubstr("the disk is on fire"));
            break;
          case Fault::killed:
            EXPECT_THAT(error, HasSubstr("ended by signal 9"));
            break;
          case Fault::stopped:  // a stopped one is killed in the end
            if (rank == culprit)
              EXPECT_THAT(error, HasSubstr("ended by signal 9"));
            else if (messages)
              EXPECT_THAT(error, HasSubstr("within 2000 ms"));
            else  // it alone is named
              EXPECT_THAT(
                  error, MatchesRegex(name + R"( \(process [0-9]+\) did not come to rank [0-2]'s all_reduce )"
                                             "within 2000 ms"));
            break;
          case Fault::returns:
            if (rank == culprit)
              EXPECT_EQ(error, "");
            else  // whoever needs it learns that at once, and others of them
              EXPECT_THAT(error, HasSubstr(fmt::format("rank {} has left the group", culprit)));
        }
      }
      if (HasFailure()) return;
    }
  EXPECT_EQ(testing::files_of_memory(), before);
}

INSTANTIATE_TEST_SUITE_P(Task7_2_SharedMemory, ARankThat,
                         ::testing::Values(Fault::throws, Fault::killed, Fault::stopped, Fault::returns),
                         name_of);

TEST(Task7_2_SharedMemory, ClosingReleasesWhoeverWaitsAtOnce) {
  const SharedMemoryGroup group = SharedMemoryGroup::create({.size = 2});
  const auto rank = group.join(0, {.timeout = kDeadline});
  for (const bool in_recv : {false, true}) {
    testing::expect_within(5s, [&] {
      const Clock::time_point begin = Clock::now();
      std::thread closer([&] {
        std::this_thread::sleep_for(20ms);
        group.close("rank 1 failed: no memory");
        group.close("another reason, which is too late");
      });
      EXPECT_EQ(
          error_of([&] { in_recv ? rank->recv(kContext, ones(3), 1) : rank->all_reduce(kContext, ones(3)); }),
          "rank 1 failed: no memory");
      closer.join();
      return Clock::now() - begin;
    });
    EXPECT_EQ(error_of([&] { rank->send(kContext, ones(3), 1); }), "rank 1 failed: no memory");
  }
  EXPECT_EQ(group.closed_because(), "rank 1 failed: no memory");
}

TEST(Task7_2_SharedMemory, LeavingReleasesWhoeverNeedsTheRankAtOnce) {
  for (const bool in_recv : {false, true})
    testing::expect_within(5s, [&] {
      const SharedMemoryGroup group = SharedMemoryGroup::create({.size = 2});
      const auto rank = group.join(0, kPatience);
      auto other = group.join(1, kPatience);
      const Clock::time_point begin = Clock::now();
      std::thread leaver([&] {
        std::this_thread::sleep_for(20ms);
        other.reset();
      });
      EXPECT_EQ(
          error_of([&] { in_recv ? rank->recv(kContext, ones(3), 1) : rank->all_reduce(kContext, ones(3)); }),
          "rank 1 has left the group");
      leaver.join();
      return Clock::now() - begin;
    });
}

TEST(Task7_2_SharedMemory, WhatWasSentBeforeARankLeftIsReceived) {
  const SharedMemoryGroup group = SharedMemoryGroup::create({.size = 3});
  const auto first = group.join(0, kPatience), second = group.join(1, kPatience);
  auto third = group.join(2, kPatience);
  third->send(kContext, ones(3), 0);
  third.reset();
  const Tensor value = testing::poisoned({3}, DType::f32);
  first->recv(kContext, value, 2);
  EXPECT_EQ(testing::to_double(value), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(error_of([&] { first->recv(kContext, value, 2); }), "rank 2 has left the group");
  EXPECT_EQ(error_of([&] { first->send(kContext, value, 2); }), "rank 2 has left the group");
  // The others can still talk to each other, but not meet: however often they try.
  first->send(kContext, value, 1);
  second->recv(kContext, value, 0);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(error_of([&] { first->barrier(kContext); }), "rank 2 has left the group");
  EXPECT_EQ(error_of([&] { second->barrier(kContext); }), "rank 2 has left the group");
}

TEST(Task7_2_SharedMemory, AMismatchedMessageIsAnErrorOnBothSides) {
  const SharedMemoryGroup group = SharedMemoryGroup::create({.size = 2});
  const auto sender = group.join(0, kPatience), receiver = group.join(1, kPatience);
  sender->send(kContext, ones(3), 1);
  const std::string problem = error_of([&] { receiver->recv(kContext, ones(4), 0); });
  EXPECT_EQ(problem, "recv of f32[4] from rank 0, which sent f32[3]");
  // The sender went on long ago: it learns by its next call.
  EXPECT_EQ(error_of([&] { sender->recv(kContext, ones(3), 1); }), "rank 1 failed: " + problem);
}

TEST(Task7_2_SharedMemory, AWatchdogSaysWhereEachRankStands) {
  const auto errors =
      run_forked_ranks({.shape = {.size = 2}, .deadline = 2s}, [](int rank, Communicator& group) {
        group.barrier(kContext);
        rank == 0 ? group.all_reduce(kContext, ones(3)) : group.recv(kContext, ones(3), 0);
      });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("not done within 2000 ms"), HasSubstr("in call 2, all_reduce"),
                                 HasSubstr("in call 2, recv"))));
}

TEST(Task7_2_SharedMemory, IsOpenedByItsDescriptorAndJoinedOnceByEachRank) {
  const SharedMemoryGroup made = SharedMemoryGroup::create({2, 4096, 128, 4});
  const SharedMemoryGroup opened =
      SharedMemoryGroup::open(FileDescriptor(::fcntl(made.descriptor(), F_DUPFD_CLOEXEC, 0)));
  EXPECT_EQ(opened.size(), 2);
  const auto one = made.join(0, kPatience);
  EXPECT_EQ(one->rank(), 0);
  EXPECT_EQ(one->size(), 2);
  EXPECT_THAT(error_of([&] { opened.join(0, kPatience); }), HasSubstr("rank 0 (process"));
  EXPECT_THAT(error_of([&] { opened.join(2, kPatience); }), HasSubstr("no rank 2"));
  const auto two = opened.join(1, kPatience);
  one->send(kContext, ones(100), 1);
  two->recv(kContext, ones(100), 0);
  EXPECT_THROW(one->send(kContext, ones(1), 0), Error);
  EXPECT_THROW(one->recv(kContext, ones(1), 2), Error);
}

TEST(Task7_2_SharedMemory, RefusesShapesAndMemoryThatAreNone) {
  for (const GroupMemoryShape& shape : std::vector<GroupMemoryShape>{
           {0, 4096, 4096, 2}, {1000, 4096, 4096, 2}, {2, 100, 64, 2}, {8, 64, 64, 1}, {2, 4096, 64, 0}})
    EXPECT_THROW(SharedMemoryGroup::create(shape), Error) << shape.size;
  SharedMemory other = SharedMemory::create("other", 4096);
  EXPECT_THAT(error_of([&] {
                SharedMemoryGroup::open(FileDescriptor(::fcntl(other.descriptor(), F_DUPFD_CLOEXEC, 0)));
              }),
              HasSubstr("something else"));
}

}  // namespace
}  // namespace ladder
