// Task 7.8: streams cut anywhere, and runs of drawn sizes whose ranks come in any order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "step1_layers/core/error.h"
#include "step7_parallel/communicators/tcp/peer_stream.h"
#include "tests/step7_parallel/communicators/connected.h"
#include "tests/step7_parallel/hosts/meeting.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;
using ::testing::HasSubstr;
using Tag = PeerExchange::Tag;

struct Piece {
  Tag tag = PeerExchange::collective;
  std::string text;
};

std::vector<Piece> random_pieces(Random& random, int64_t count, int64_t most_bytes) {
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < count; ++i) {
    const Tag tag = random.one_of<Tag>({PeerExchange::collective, PeerExchange::form, PeerExchange::message});
    std::string text(static_cast<size_t>(random.integer(0, most_bytes)), '\0');
    for (char& byte : text) byte = static_cast<char>(random.integer(0, 255));
    pieces.push_back({tag, std::move(text)});
  }
  return pieces;
}

// As they stand on the wire.
std::string bytes_of(const std::vector<Piece>& pieces) {
  std::string bytes;
  for (const Piece& piece : pieces) {
    const int64_t header[2] = {std::ssize(piece.text), piece.tag};
    bytes.append(reinterpret_cast<const char*>(header), sizeof header).append(piece.text);
  }
  return bytes;
}

// Whoever wants a piece gets the oldest of its tag that he has not had.
TEST(Hidden7_8_Stream, PiecesComeWholeHoweverTheyAreCutAndWanted) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 30; ++round) {
    auto [left, right] = connected();
    PeerStream to(std::move(right), "rank 1");
    const std::vector<Piece> pieces = random_pieces(random, random.integer(1, 12), 300);
    const std::string bytes = bytes_of(pieces);
    std::vector<Piece> wanted = pieces;  // any order of tags, within a tag that of the stream
    std::shuffle(wanted.begin(), wanted.end(), random.engine());
    for (const Tag tag : {PeerExchange::collective, PeerExchange::form, PeerExchange::message}) {
      auto next = pieces.begin();
      for (Piece& one : wanted) {
        if (one.tag != tag) continue;
        next = std::ranges::find(next, pieces.end(), tag, &Piece::tag);
        one.text = (next++)->text;
      }
    }
    size_t sent = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      std::string got(wanted[i].text.size(), '?');
      to.want(wanted[i].tag, got.data(), std::ssize(got));
      while (to.wants()) {
        ASSERT_LT(sent, bytes.size()) << "all was sent, and piece " << i << " of those wanted has not come";
        const auto count = std::min<size_t>(bytes.size() - sent, static_cast<size_t>(random.integer(1, 40)));
        ASSERT_TRUE(send_at_once(left.number(), bytes.data() + sent, count));
        sent += count;
        ASSERT_TRUE(to.pump());
      }
      ASSERT_TRUE(got == wanted[i].text) << "piece " << i << " of those wanted, tag " << wanted[i].tag;
    }
  }
}

TEST(Hidden7_8_Stream, BothSendAndReadAtOnce) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  auto [left, right] = connected();
  PeerStream a(std::move(left), "rank 0"), b(std::move(right), "rank 1");
  const std::vector<Piece> of_a = random_pieces(random, 6, 800'000), of_b = random_pieces(random, 6, 800'000);
  for (const Piece& piece : of_a) a.queue(piece.tag, piece.text.data(), std::ssize(piece.text));
  for (const Piece& piece : of_b) b.queue(piece.tag, piece.text.data(), std::ssize(piece.text));
  for (size_t i = 0; i < 6; ++i) {
    std::string to_a(of_b[i].text.size(), '?'), to_b(of_a[i].text.size(), '?');
    a.want(of_b[i].tag, to_a.data(), std::ssize(to_a));
    b.want(of_a[i].tag, to_b.data(), std::ssize(to_b));
    for (int turn = 0; (a.wants() || b.wants()) && turn < 100'000; ++turn) ASSERT_TRUE(a.pump() && b.pump());
    ASSERT_TRUE(to_a == of_b[i].text && to_b == of_a[i].text) << "piece " << i;
  }
  EXPECT_FALSE(a.sends() || b.sends());
}

// A piece of another size than is wanted, early or late; a header that is none; an end anywhere but between two pieces.
TEST(Hidden7_8_Stream, WhatDoesNotFitIsAnErrorAndAnEndIsAnEnd) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 30; ++round) {
    const std::vector<Piece> pieces = random_pieces(random, 1, 200);
    const std::string name = fmt::format("rank {}", random.integer(2, 99));
    const int64_t count = std::ssize(pieces[0].text);
    std::string got(500, '?');
    {
      auto [left, right] = connected();
      PeerStream to(std::move(right), name);
      const std::string bytes = bytes_of(pieces);
      ASSERT_TRUE(send_at_once(left.number(), bytes.data(), bytes.size()));
      const int64_t other = count + (count == 0 || random.integer(0, 1) ? 1 : -1) *
                                        random.integer(1, std::max<int64_t>(count, 1));
      const bool early = random.integer(0, 1) == 0;
      const std::string error = error_of([&] {
        if (early) to.want(pieces[0].tag, got.data(), other);
        to.pump();
        if (!early) to.want(pieces[0].tag, got.data(), other);
      });
      EXPECT_THAT(error, HasSubstr(name)) << count << " bytes, " << other << " wanted";
    }
    {
      auto [left, right] = connected();
      PeerStream to(std::move(right), name);
      const std::string bytes = bytes_of(pieces);
      const auto cut = static_cast<size_t>(random.integer(0, std::ssize(bytes) - 1));
      to.want(pieces[0].tag, got.data(), count);
      if (cut > 0) {
        ASSERT_TRUE(send_at_once(left.number(), bytes.data(), cut));
      }
      ASSERT_TRUE(to.pump());
      left.close();
      EXPECT_FALSE(to.pump());
      EXPECT_TRUE(to.wants() && to.has_ended());
      EXPECT_FALSE(to.has_left());
    }
  }
}

TEST(Hidden7_8_Rendezvous, RanksComeInAnyOrder) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 4; ++round) {
    const auto nodes = static_cast<int>(random.integer(2, 4)), ranks = static_cast<int>(random.integer(1, 3));
    const HostAddress master = free_address();
    std::vector<int> order(static_cast<size_t>(nodes * ranks));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::shuffle(order.begin(), order.end(), random.engine());
    std::vector<std::future<Met>> meetings(order.size());
    for (const int rank : order) {
      meetings[static_cast<size_t>(rank)] = std::async(std::launch::async, [=] {
        const HostPlace place = place_of(rank, nodes, ranks, master);
        return rank == 0 ? receive_ranks(place) : join_ranks(place);
      });
      std::this_thread::sleep_for(15ms);
    }
    std::vector<Met> met;
    for (std::future<Met>& meeting : meetings) met.push_back(meeting.get());
    for (size_t rank = 0; rank < met.size(); ++rank) {
      ASSERT_EQ(met[rank].places.size(), met.size());
      for (size_t other = 0; other < met.size(); ++other) {
        const TcpPlace& place = met[rank].places[other];
        EXPECT_EQ(place.address.port, met[other].mesh->address().port)
            << "rank " << rank << " about " << other;
        EXPECT_THAT(place.name,
                    HasSubstr(fmt::format("rank {} (node {},", other, other / static_cast<size_t>(ranks))));
      }
    }
    ASSERT_EQ(met[0].watched.size(), met.size() - 1);
    for (size_t rank = 1; rank < met.size(); ++rank) {
      EXPECT_EQ(met[0].watched[rank - 1].name, met[0].places[rank].name);
      EXPECT_EQ(met[0].watched[rank - 1].follows, rank % static_cast<size_t>(ranks) != 0);
    }
  }
}

// Of a run of some nodes one was started otherwise: whoever has come hears it, rank 0 too.
TEST(Hidden7_8_Rendezvous, AMisfitIsToldToAllThatHaveCome) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 4; ++round) {
    const auto nodes = static_cast<int>(random.integer(3, 5));
    const HostAddress master = free_address();
    std::vector<HostPlace> places;
    for (int rank = 0; rank < nodes - 1; ++rank) places.push_back(place_of(rank, nodes, 1, master));
    auto others = std::async(std::launch::async, [&] { return meeting_of(places); });
    std::this_thread::sleep_for(150ms);
    HostPlace misfit = place_of(nodes - 1, nodes, 1, master);
    std::string expected;
    switch (random.integer(0, 2)) {
      case 0:
        misfit.num_nodes = nodes + static_cast<int>(random.integer(1, 9));
        expected = fmt::format("--nnodes {}", misfit.num_nodes);
        break;
      case 1:
        misfit.ranks_per_node = static_cast<int>(random.integer(2, 9));
        expected = fmt::format("node {} has {} ranks", nodes - 1, misfit.ranks_per_node);
        break;
      default:
        misfit.arguments += fmt::format(" --seed {}", random.integer(0, 99));
        expected = fmt::format("the arguments of node {}", nodes - 1);
    }
    EXPECT_THAT(error_of([&] { join_ranks(misfit); }), HasSubstr(expected));
    EXPECT_THAT(others.get(), ::testing::Each(HasSubstr(expected)));
  }
}

// A second of a rank that is there, between the others: it goes, they meet.
TEST(Hidden7_8_Rendezvous, ASecondOfOneRankGoesAndTheFirstStays) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const auto nodes = static_cast<int>(random.integer(3, 5));
  const HostAddress master = free_address();
  std::vector<HostPlace> places;
  for (int rank = 0; rank < nodes - 1; ++rank) places.push_back(place_of(rank, nodes, 1, master));
  auto others = std::async(std::launch::async, [&] { return meeting_of(places); });
  std::this_thread::sleep_for(150ms);
  for (int again = 0; again < 3; ++again) {
    const auto rank = static_cast<int>(random.integer(1, nodes - 2));
    EXPECT_THAT(error_of([&] { join_ranks(place_of(rank, nodes, 1, master)); }),
                HasSubstr(fmt::format("--node-rank {}", rank)));
  }
  EXPECT_EQ(error_of([&] { join_ranks(place_of(nodes - 1, nodes, 1, master)); }), "no error");
  EXPECT_THAT(others.get(), ::testing::Each("no error"));
}

TEST(Hidden7_8_Rendezvous, WhoIsMissingIsNamed) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const auto nodes = static_cast<int>(random.integer(3, 5)),
             absent = static_cast<int>(random.integer(1, nodes - 1));
  const HostAddress master = free_address();
  std::vector<HostPlace> places;
  for (int rank = 0; rank < nodes; ++rank)
    if (rank != absent) places.push_back(place_of(rank, nodes, 1, master));
  for (HostPlace& place : places) place.arrival = 500ms;
  EXPECT_THAT(meeting_of(places),
              ::testing::Each(::testing::AllOf(HasSubstr(fmt::format("node {} of {}", absent, nodes)),
                                               HasSubstr("0.5 s"))));
}

}  // namespace
}  // namespace ladder
