// The TCP communicator where it is more than its collectives (communicators_test.cpp): peers that fail, and one stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <thread>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/exchange_communicator.h"
#include "step7_parallel/communicators/kinds.h"
#include "step7_parallel/communicators/tcp/tcp_exchange.h"
#include "step7_parallel/communicators/tcp/tcp_mesh.h"
#include "tests/step7_parallel/communicators/connected.h"
#include "tests/support/error_of.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::connected;
using testing::error_of;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

const OpContext kContext;

struct Two {
  explicit Two(std::chrono::milliseconds timeout = 2s) {
    auto [left, right] = connected();
    raw_right = FileDescriptor(::dup(right.number()));
    std::vector<PeerStream> of_0, of_1;
    of_0.emplace_back(FileDescriptor(), "rank 0");
    of_0.emplace_back(std::move(left), "rank 1");
    of_1.emplace_back(std::move(right), "rank 0");
    of_1.emplace_back(FileDescriptor(), "rank 1");
    rank_0 = std::make_unique<ExchangeCommunicator>(std::make_unique<TcpExchange>(
        0, std::move(of_0), timeout, [this](const std::string& text) { failures.push_back(text); }));
    rank_1 =
        std::make_unique<ExchangeCommunicator>(std::make_unique<TcpExchange>(1, std::move(of_1), timeout));
  }
  std::vector<std::string> failures;
  FileDescriptor raw_right;  // of rank 1, past its communicator
  std::unique_ptr<Communicator> rank_0, rank_1;
};

Tensor ones(int64_t count) {
  return Tensor::from<float>(std::vector<float>(static_cast<size_t>(count), 1), {count});
}

TEST(Task7_8_Stream, PiecesOfEveryTagArriveWholeAndInTheirOrder) {
  auto [left, right] = connected();
  PeerStream from(std::move(left), "rank 0"), to(std::move(right), "rank 1");
  // Larger than what a socket holds, and none: in pieces that come as they come.
  std::vector<std::string> texts;
  for (const size_t size : {0, 1, 3'000'001, 17}) texts.push_back(std::string(size, 'a' + texts.size()));
  for (const std::string& text : texts) {
    from.queue(PeerExchange::message, text.data(), std::ssize(text));
    from.queue(PeerExchange::form, text.data(), std::min<int64_t>(std::ssize(text), 5));
  }
  // Those of the other tag first, so that the messages are kept until somebody wants them.
  for (const PeerExchange::Tag tag : {PeerExchange::form, PeerExchange::message})
    for (const std::string& text : texts) {
      const std::string expected = tag == PeerExchange::form ? text.substr(0, 5) : text;
      std::string got(expected.size(), '?');
      to.want(tag, got.data(), std::ssize(got));
      for (int turn = 0; to.wants() && turn < 100'000; ++turn) ASSERT_TRUE(from.pump() && to.pump());
      ASSERT_FALSE(to.wants()) << "a piece of " << got.size() << " bytes does not come";
      EXPECT_TRUE(got == expected) << "tag " << tag << ", " << got.size() << " bytes";
    }
  EXPECT_FALSE(from.sends());
}

TEST(Task7_8_Stream, WantedBytesGoStraightToTheirPlace) {
  auto [left, right] = connected();
  PeerStream from(std::move(left), "rank 0"), to(std::move(right), "rank 1");
  const std::string text(50'000, 'x');
  std::string got(text.size(), '?');
  to.want(PeerExchange::collective, got.data(), std::ssize(got));
  from.queue(PeerExchange::collective, text.data(), 50'000);
  while (from.sends()) ASSERT_TRUE(from.pump());
  while (to.wants()) ASSERT_TRUE(to.pump());
  EXPECT_TRUE(got == text);
}

TEST(Task7_8_Stream, BytesMayComeOneAtATime) {
  auto [left, right] = connected();
  PeerStream to(std::move(right), "rank 1");
  std::string got(300, '?');  // whose count is no count while half of it is there
  to.want(PeerExchange::collective, got.data(), 300);
  const int64_t header[2] = {300, PeerExchange::collective};
  const std::string bytes =
      std::string(reinterpret_cast<const char*>(header), sizeof header) + std::string(300, 'x');
  for (const char& byte : bytes) {
    EXPECT_TRUE(to.wants()) << "after " << &byte - bytes.data() << " bytes";
    ASSERT_TRUE(send_at_once(left.number(), &byte, 1));
    ASSERT_TRUE(to.pump());
  }
  EXPECT_FALSE(to.wants());
  EXPECT_EQ(got, std::string(300, 'x'));
}

TEST(Task7_8_Stream, AnEndInTheMiddleOfAPieceIsAnEnd) {
  auto [left, right] = connected();
  PeerStream to(std::move(right), "rank 1");
  std::string got(10, '?');
  to.want(PeerExchange::message, got.data(), 10);
  const int64_t header[2] = {10, PeerExchange::message};
  ASSERT_TRUE(send_at_once(left.number(), header, sizeof header));
  ASSERT_TRUE(send_at_once(left.number(), "1234", 4));
  EXPECT_TRUE(to.pump());
  EXPECT_TRUE(to.wants());
  left.close();
  EXPECT_FALSE(to.pump());
  EXPECT_TRUE(to.has_ended());
  EXPECT_FALSE(to.has_left()) << "it said no last words";
}

TEST(Task7_8_Stream, WhatIsNoPieceIsAnErrorThatNamesThePeer) {
  for (const auto& header : {std::pair<int64_t, int64_t>{-1, 0}, {int64_t{1} << 60, 0}, {1, -1}, {1, 99}}) {
    auto [left, right] = connected();
    PeerStream to(std::move(right), "rank 7");
    const int64_t words[2] = {header.first, header.second};
    ASSERT_TRUE(send_at_once(left.number(), words, sizeof words));
    EXPECT_THAT(error_of([&] { to.pump(); }), HasSubstr("rank 7")) << header.first << ", " << header.second;
  }
  // Another size than was wanted, seen as it comes and seen when it is wanted later.
  for (const bool wanted_first : {true, false}) {
    auto [left, right] = connected();
    PeerStream from(std::move(left), "rank 0"), to(std::move(right), "rank 7");
    from.queue(PeerExchange::form, "123", 3);
    char got[4];
    EXPECT_THAT(error_of([&] {
                  if (wanted_first) to.want(PeerExchange::form, got, 4);
                  from.pump();
                  to.pump();
                  to.want(PeerExchange::form, got, 4);
                }),
                ::testing::AllOf(HasSubstr("rank 7"), HasSubstr("3 bytes"), HasSubstr("4 are")));
  }
}

TEST(TcpGroup, APeerThatEndsIsNamedAtOnceAndEverAfter) {
  Two two(60s);
  ::shutdown(two.raw_right.number(), SHUT_RDWR);
  const auto begin = Clock::now();
  for (int call = 0; call < 2; ++call)
    EXPECT_EQ(error_of([&] { two.rank_0->all_reduce(kContext, ones(4)); }),
              "rank 1 has ended its connection to rank 0");
  EXPECT_LT(Clock::now() - begin, 30s);
  EXPECT_EQ(two.failures, std::vector<std::string>{"rank 1 has ended its connection to rank 0"});
}

TEST(TcpGroup, ASilentPeerIsNamedAtTheTimeout) {
  Two two(300ms);
  const auto begin = Clock::now();
  EXPECT_EQ(error_of([&] { two.rank_0->barrier(kContext); }), "rank 1 did not answer rank 0 within 300 ms");
  EXPECT_GE(Clock::now() - begin, 300ms);
  EXPECT_LT(Clock::now() - begin, 30s);
  EXPECT_EQ(error_of([&] { two.rank_1->recv(kContext, ones(1), 0); }),
            "rank 1 did not answer rank 0 within 300 ms")
      << "a rank that has given up says why";
}

TEST(TcpGroup, APeerThatLeavesInOrderFailsOnlyWhoWantsSomethingOfIt) {
  Two two(60s);
  two.rank_1->send(kContext, ones(3), 0);
  two.rank_1.reset();  // its connection stays open, by raw_right
  const Tensor got = Tensor::empty({3}, DType::f32);
  two.rank_0->recv(kContext, got, 1);  // was sent before
  EXPECT_EQ(got.data<float>()[2], 1);
  EXPECT_THAT(error_of([&] { two.rank_0->recv(kContext, got, 1); }), HasSubstr("rank 1 has ended"));
}

// The sender computes, or waits in another group, while the receiver takes what does not fit into a socket.
TEST(TcpGroup, WhatWasPostedGoesOnWithoutItsOwner) {
  Two two(60s);
  constexpr int64_t kLarge = 4 << 20;
  for (int message = 0; message < 3; ++message) two.rank_0->send(kContext, ones(kLarge), 1);
  for (int message = 0; message < 3; ++message) {
    const Tensor got = Tensor::zeros({kLarge}, DType::f32);
    two.rank_1->recv(kContext, got, 0);
    EXPECT_EQ(got.data<float>()[kLarge - 1], 1) << message;
  }
}

TEST(TcpGroup, TheEndWaitsForWhatWasPosted) {
  Two two(60s);
  two.rank_0->send(kContext, ones(4 << 20), 1);
  std::thread ending([&] { two.rank_0.reset(); });
  const Tensor got = Tensor::zeros({4 << 20}, DType::f32);
  two.rank_1->recv(kContext, got, 0);
  ending.join();
  EXPECT_EQ(got.data<float>()[(4 << 20) - 1], 1);
}

TEST(TcpGroup, ARankThatIsKilledOrStoppedReleasesTheOthers) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const auto begin = Clock::now();
    const auto errors = run_tcp_ranks(3, 4s, [&](int rank, Communicator& group) {
      for (int call = 0; call < 100'000; ++call) {
        if (rank == 1 && call == 20) std::raise(signal);
        group.all_reduce(kContext, ones(100));
      }
    });
    EXPECT_LT(Clock::now() - begin, 20s);
    for (const size_t rank : {size_t{0}, size_t{2}})
      EXPECT_THAT(errors[rank], HasSubstr(signal == SIGKILL ? "rank 1 has ended" : "rank 1 did not answer"));
    EXPECT_THAT(errors[1], HasSubstr("signal 9"));
  }
}

TEST(TcpMesh, GroupsAreConnectedWhoeverComesFirst) {
  // Four ranks; two groups of two each time, by turns, and one rank that is late.
  std::vector<std::unique_ptr<TcpMesh>> owners;
  std::vector<TcpPlace> places;
  for (int rank = 0; rank < 4; ++rank) {
    owners.push_back(std::make_unique<TcpMesh>("127.0.0.1", HostSecret{"s"}));
    places.push_back({owners.back()->address(), fmt::format("rank {}", rank)});
  }
  std::vector<std::string> errors(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      errors[static_cast<size_t>(rank)] = error_of([&] {
        TcpMesh& mesh = *owners[static_cast<size_t>(rank)];
        mesh.meet(rank, places);
        if (rank == 0) std::this_thread::sleep_for(100ms);
        std::vector<std::unique_ptr<Communicator>> groups;
        for (int turn = 0; turn < 6; ++turn) {
          const int other = turn % 2 == 0 ? rank ^ 1 : rank ^ 2;
          groups.push_back(mesh.group({std::min(rank, other), std::max(rank, other)}, 10s, 10s));
        }
        for (size_t turn = 0; turn < groups.size(); ++turn) {
          const int other = turn % 2 == 0 ? rank ^ 1 : rank ^ 2;
          const Tensor sum = Tensor::from<float>(std::vector<float>{static_cast<float>(1 << rank)}, {1});
          groups[turn]->all_reduce(kContext, sum);
          LADDER_CHECK(sum.data<float>()[0] == static_cast<float>((1 << rank) + (1 << other)),
                       "the wrong rank in group {}", turn);
        }
      });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors, ::testing::Each("no error"));
}

TEST(TcpMesh, ARankThatDoesNotComeIsNamed) {
  TcpMesh mesh("127.0.0.1", {});
  mesh.meet(0, {{mesh.address(), "rank 0"}, {{"127.0.0.1", 1}, "rank 1 (node 1)"}});
  EXPECT_THAT(error_of([&] {
                mesh.group({0, 1}, 200ms, 1s);
              }),
              HasSubstr("rank 1 (node 1) has not connected"));
}

}  // namespace
}  // namespace ladder
