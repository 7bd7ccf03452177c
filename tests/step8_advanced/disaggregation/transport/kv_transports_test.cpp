// What every row of the table must do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <future>
#include <thread>

#include "tests/step8_advanced/disaggregation/transport/transport_places.h"
#include "tests/support/error_of.h"
#include "tests/support/in_time.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::error_of;

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

constexpr auto kSoon = 10s;  // far less than the deadline of what is released early

KvDeadline far() {
  return Clock::now() + 120s;
}

Bytes some_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t value = random();
    std::memcpy(&bytes[i], &value, std::min(sizeof value, size - i));
  }
  return bytes;
}

struct Whole {
  Bytes head, body;
  bool operator==(const Whole&) const = default;
};
Whole message(size_t head, size_t body, uint64_t seed) {
  return {some_bytes(head, seed), some_bytes(body, seed + 1)};
}
void send(KvChannel& channel, const Whole& message) {
  channel.send(message.head, message.body, far());
}
Whole receive(KvChannel& channel) {
  KvMessageHead head = channel.receive_head(far());
  Whole whole{std::move(head.head), Bytes(head.body_size)};
  if (head.body_size > 0) channel.receive_body(whole.body, far());
  return whole;
}

// Of an address: what an error names.
std::string place_of(const std::string& address) {
  const size_t begin = address.find("://") + 3;
  return address.substr(begin, address.find('?') - begin);
}

class Transports : public ::testing::TestWithParam<std::string_view> {
 protected:
  struct Ends {
    std::unique_ptr<KvChannel> accepted, connected;
  };
  Ends meet() {
    auto connected =
        std::async(std::launch::async, [&] { return connect_for_kv(listener_->address(), far()); });
    Ends ends;
    ends.accepted = listener_->accept(far());
    ends.connected = connected.get();
    return ends;
  }

  void SetUp() override {
    if (const std::string obstacle = testing::obstacle_of(GetParam()); !obstacle.empty())
      GTEST_SKIP() << obstacle;
    listener_ = listen_for_kv(place_.address());
  }

  testing::TransportPlace place_{GetParam()};
  std::unique_ptr<KvListener> listener_;
};

TEST_P(Transports, MessagesOfAllSizesComeAsTheyWere) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  Ends ends = meet();
  std::vector<Whole> messages;
  for (const size_t head : {size_t{0}, size_t{1}, size_t{24}, size_t{1000}, kMaxKvMessageHead})
    for (const size_t body : {0, 1, 4096, (1 << 17) + 1, 5'000'001})
      messages.push_back(message(head, body, random.seed() + head + body));
  auto echo = std::async(std::launch::async, [&] {
    for (size_t i = 0; i < messages.size(); ++i) send(*ends.accepted, receive(*ends.accepted));
  });
  for (const Whole& sent : messages) {
    send(*ends.connected, sent);
    EXPECT_TRUE(receive(*ends.connected) == sent)
        << sent.head.size() << " and " << sent.body.size() << " bytes";
  }
  echo.get();
}

// Numbers whose first bytes have much in common, and noise.
TEST_P(Transports, BodiesMayBeShortOnTheWay) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  Ends ends = meet();
  struct Case {
    KvBodyForm form;
    Bytes body;
    bool shortens;
  };
  std::vector<Case> cases;
  for (const KvBodyForm form :
       {KvBodyForm::zstd_of_2_bytes, KvBodyForm::plain, KvBodyForm::zstd, KvBodyForm::zstd_of_4_bytes})
    for (const size_t size : {0, 1, 5000, 5003, 2'000'001}) {
      Bytes body = some_bytes(size, random.seed());
      cases.push_back({form, body, false});
      const auto width = std::max<size_t>(1, static_cast<size_t>(form));
      for (size_t i = width - 1; i < body.size(); i += width) body[i] &= std::byte{7};
      cases.push_back({form, body, form != KvBodyForm::plain && size >= 5000});
    }
  auto sent = std::async(std::launch::async, [&] {
    for (const auto& [form, body, shortens] : cases) {
      ends.connected->send_bodies_as(form);
      ends.connected->send(some_bytes(5, 1), body, far());
      const KvBodyCounts counts = ends.connected->take_sent_counts();
      EXPECT_EQ(counts.num_packed_bytes < counts.num_bytes, shortens)
          << body.size() << " bytes, form " << static_cast<int>(form) << ": " << counts.num_packed_bytes;
    }
  });
  for (const auto& [form, body, shortens] : cases)
    EXPECT_TRUE(receive(*ends.accepted) == (Whole{some_bytes(5, 1), body}))
        << body.size() << " bytes, form " << static_cast<int>(form);
  sent.get();
}

TEST_P(Transports, ManyMessagesMayBeUnderWayAndBothWays) {
  Ends ends = meet();
  constexpr int kCount = 60;
  const auto nth = [](int i, uint64_t way) {
    return message(static_cast<size_t>(i), static_cast<size_t>(i) * 7919 % 300'000,
                   10 * static_cast<uint64_t>(i) + way);
  };
  const auto sending = [&](KvChannel& channel, uint64_t way) {
    return std::async(std::launch::async, [&, way] {
      for (int i = 0; i < kCount; ++i) send(channel, nth(i, way));
    });
  };
  const auto receiving = [&](KvChannel& channel, uint64_t way) {
    return std::async(std::launch::async, [&, way] {
      for (int i = 0; i < kCount; ++i)
        if (receive(channel) != nth(i, way)) return i;
      return kCount;
    });
  };
  auto there = sending(*ends.connected, 1), back = sending(*ends.accepted, 5);
  auto at_accepted = receiving(*ends.accepted, 1), at_connected = receiving(*ends.connected, 5);
  EXPECT_EQ(at_accepted.get(), kCount) << "messages that came in order";
  EXPECT_EQ(at_connected.get(), kCount) << "messages that came in order";
  there.get();
  back.get();
}

TEST_P(Transports, WhatIsNoMessageIsNotSent) {
  Ends ends = meet();
  EXPECT_THROW(ends.connected->send(Bytes(kMaxKvMessageHead + 1), {}, far()), Error);
  auto sent = std::async(std::launch::async, [&] { send(*ends.connected, message(3, 5, 1)); });
  EXPECT_EQ(ends.accepted->receive_head(far()).body_size, 5u);
  Bytes wrong(4), right(5);
  EXPECT_THROW(ends.accepted->receive_body(wrong, far()), Error) << "a body of another size";
  EXPECT_THROW(ends.accepted->receive_head(far()), Error) << "the body was not received";
  ends.accepted->receive_body(right, far());
  sent.get();
}

TEST_P(Transports, ADeadlineEndsAWaitForAMessage) {
  testing::expect_within(5s, [&] {
    Ends ends = meet();
    const auto begin = Clock::now();
    EXPECT_THROW(ends.connected->receive_head(begin + 60ms), KvChannelError);
    const auto took = Clock::now() - begin;
    EXPECT_GE(took, 55ms);
    EXPECT_THROW(ends.connected->receive_head(far()), KvChannelError) << "it stays failed";
    EXPECT_THROW(ends.connected->send({}, {}, far()), KvChannelError) << "it stays failed";
    return took;
  });
}

TEST_P(Transports, AWriterWaitsForItsReaderUntilTheDeadline) {
  Ends ends = meet();
  const Bytes body = some_bytes(4 << 20, 1);
  int num_taken = 0;
  const std::string error = error_of([&] {
    for (; num_taken < 64; ++num_taken) ends.connected->send({}, body, Clock::now() + 300ms);
  });
  EXPECT_LT(num_taken, 64) << "256 MiB were taken in, and nobody reads";
  EXPECT_THAT(error, HasSubstr("time is over"));
  ends.connected.reset();
  // The reader gets what came whole, and then an error, never a part.
  EXPECT_THROW(
      {
        for (int i = 0; i <= num_taken; ++i) ASSERT_TRUE(receive(*ends.accepted).body == body);
      },
      KvChannelError);
}

TEST_P(Transports, CloseReleasesWhoReceives) {
  Ends ends = meet();
  const auto begin = Clock::now();
  auto waiting = std::async(std::launch::async, [&] { ends.connected->receive_head(far()); });
  std::this_thread::sleep_for(20ms);  // it sleeps by now, or finds it closed
  ends.connected->close();
  EXPECT_THROW(waiting.get(), KvChannelError);
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST_P(Transports, CloseReleasesWhoSends) {
  Ends ends = meet();
  const auto begin = Clock::now();
  auto waiting = std::async(std::launch::async, [&] {
    const Bytes body = some_bytes(4 << 20, 1);
    for (int i = 0; i < 64; ++i) ends.connected->send({}, body, far());
  });
  std::this_thread::sleep_for(100ms);
  ends.connected->close();
  EXPECT_THROW(waiting.get(), KvChannelError);
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST_P(Transports, TheOtherEndsCloseIsNoticed) {
  Ends ends = meet();
  send(*ends.connected, message(10, 1000, 4));
  const auto begin = Clock::now();
  auto waiting = std::async(std::launch::async, [&] {
    EXPECT_TRUE(receive(*ends.accepted) == message(10, 1000, 4)) << "what was sent before the end";
    ends.accepted->receive_head(far());
  });
  ends.connected.reset();
  EXPECT_THROW(waiting.get(), KvChannelError);
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST_P(Transports, AListenerWaitsUntilTheDeadlineOrItsClose) {
  EXPECT_EQ(listener_->accept(Clock::now() + 20ms), nullptr);
  const auto begin = Clock::now();
  auto waiting = std::async(std::launch::async, [&] { return listener_->accept(far()); });
  std::this_thread::sleep_for(20ms);
  listener_->close();
  EXPECT_EQ(waiting.get(), nullptr);
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST_P(Transports, APlaceHasOneListener) {
  EXPECT_THAT(error_of([&] { listen_for_kv(listener_->address()); }),
              HasSubstr(place_of(listener_->address())));
  const std::string address = listener_->address();
  listener_.reset();
  EXPECT_EQ(error_of([&] { listener_ = listen_for_kv(address); }), "no error") << "its successor";
}

TEST_P(Transports, WhereNobodyListensIsAnErrorThatNamesThePlace) {
  const std::string address = listener_->address();
  listener_.reset();
  EXPECT_THAT(error_of([&] { connect_for_kv(address, Clock::now() + 50ms); }), HasSubstr(place_of(address)));
}

TEST_P(Transports, WhoIsGoneIsNotWaitedFor) {
  const std::string address = listener_->address();
  listener_.reset();
  const auto begin = Clock::now();
  EXPECT_THAT(error_of([&] { connect_for_kv(address, begin + 60s, HostSecret{}, KvListening::has_begun); }),
              HasSubstr(place_of(address)));
  EXPECT_LT(Clock::now() - begin, 30s);
}

TEST_P(Transports, WhoComesEarlyWaitsForTheListener) {
  const std::string address = listener_->address();
  listener_.reset();
  auto connected = std::async(std::launch::async, [&] { return connect_for_kv(address, far()); });
  std::this_thread::sleep_for(20ms);
  listener_ = listen_for_kv(address);
  auto accepted = listener_->accept(far());
  ASSERT_NE(accepted, nullptr);
  send(*connected.get(), message(3, 4, 5));
  EXPECT_TRUE(receive(*accepted) == message(3, 4, 5));
}

TEST_P(Transports, SeveralChannelsOfOneListenerAreApart) {
  std::vector<Ends> all;
  for (int i = 0; i < 3; ++i) all.push_back(meet());
  for (size_t i = 0; i < all.size(); ++i) send(*all[i].connected, message(8, 5000, i));
  all[0].connected.reset();
  for (size_t i = all.size(); i-- > 0;) EXPECT_TRUE(receive(*all[i].accepted) == message(8, 5000, i)) << i;
  EXPECT_THROW(all[0].accepted->receive_head(far()), KvChannelError);
  send(*all[2].accepted, message(1, 1, 9));
  EXPECT_TRUE(receive(*all[2].connected) == message(1, 1, 9));
}

TEST_P(Transports, NothingStaysOpenOrBehind) {
  meet();  // what the first one opens for good
  const int64_t before = testing::num_descriptors();
  for (int i = 0; i < 5; ++i) {
    Ends ends = meet();
    send(*ends.connected, message(10, 100'000, 1));
    if (i % 2 == 0) receive(*ends.accepted);
    if (i % 3 == 0) ends.accepted.reset();
  }
  error_of([&] { connect_for_kv(listener_->address(), Clock::now() + 30ms); });  // who is not accepted
  while (listener_->accept(Clock::now() + 30ms) != nullptr) {
  }
  // On a busy machine 30 ms may not be enough to see that who came has gone.
  const auto until = Clock::now() + kSoon;
  while ((testing::num_descriptors() > before || !place_.left_behind().empty()) && Clock::now() < until)
    listener_->accept(Clock::now() + 30ms);
  EXPECT_EQ(testing::num_descriptors(), before);
  EXPECT_THAT(place_.left_behind(), IsEmpty());
}

// The other process is killed at some point of a message, of ours or of its own.
TEST_P(Transports, AKilledProcessIsNoticedAndLeavesNothing) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  meet();
  const int64_t before = testing::num_descriptors();
  for (int round = 0; round < 12; ++round) {
    const bool child_sends = round % 2 == 0;
    const std::string address = listener_->address();
    const pid_t child = ::fork();
    if (child == 0) {
      error_of([&] {
        const auto channel = connect_for_kv(address, far());
        const Bytes body = some_bytes(1'000'000, 1);
        for (;;)
          if (child_sends)
            channel->send(Bytes(100), body, far());
          else
            receive(*channel);
      });
      ::_exit(1);
    }
    const auto channel = listener_->accept(far());
    std::thread killer([child, after = std::chrono::microseconds(random.integer(0, 30'000))] {
      std::this_thread::sleep_for(after);
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    });
    const auto begin = Clock::now();
    const Bytes body = some_bytes(1'000'000, 1);
    EXPECT_THROW(
        {
          for (;;)
            if (child_sends)
              ASSERT_TRUE(receive(*channel).body == body) << "a part of a message";
            else
              channel->send(Bytes(100), body, far());
        },
        KvChannelError);
    EXPECT_LT(Clock::now() - begin, kSoon);
    killer.join();
  }
  EXPECT_EQ(testing::num_descriptors(), before);
  EXPECT_THAT(place_.left_behind(), IsEmpty());
}

// ... or while it connects.
TEST_P(Transports, WhoIsKilledAtTheDoorHoldsUpNobody) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 6; ++round) {
    const std::string address = listener_->address();
    const pid_t child = ::fork();
    if (child == 0) {
      error_of([&] { connect_for_kv(address, far()); });
      ::_exit(1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 3000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  // Those that are dead may have been accepted: the next one after them is ours.
  auto connected = std::async(std::launch::async, [&] {
    const auto channel = connect_for_kv(listener_->address(), far());
    send(*channel, message(2, 2, 2));
    error_of([&] { channel->receive_head(far()); });
  });
  for (bool ours = false; !ours;) {
    const auto channel = listener_->accept(far());
    ASSERT_NE(channel, nullptr);
    ours = error_of([&] { receive(*channel); }) == "no error";
  }
  connected.get();
  EXPECT_EQ(listener_->accept(Clock::now() + 30ms), nullptr);
  EXPECT_THAT(place_.left_behind(), IsEmpty());
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> names;
  for (const KvTransport& transport : kv_transports()) names.push_back(transport.name);
  names.push_back("tcp_4_streams");
  // Seconds for each test of it: tools/long_check.sh.
  if (std::ranges::count(names, "ucx") > 0 && std::getenv("LADDER_TEST_UCX_OVER_TCP") != nullptr)
    names.push_back("ucx_over_tcp");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Task8_7_Channel, Transports, ::testing::ValuesIn(names()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Task8_7_Channel, AnAddressNamesATransport) {
  for (const char* const wrong : {"", "tcp", "tcp:127.0.0.1:1", "rdma://x", "://x", "shm"})
    EXPECT_THAT(error_of([&] { listen_for_kv(wrong); }),
                AllOf(HasSubstr(wrong), HasSubstr("file://"), HasSubstr("tcp://"), HasSubstr("shm://")));
  for (const char* const wrong :
       {"tcp://", "tcp://:5", "tcp://a:b", "tcp://127.0.0.1:70000", "tcp://-1", "tcp://0?", "tcp://0?streams",
        "tcp://0?streams=", "tcp://0?streams=0", "tcp://0?streams=-1", "tcp://0?streams=17",
        "tcp://0?streams=2x", "tcp://0?streams=99999999999", "tcp://0?stream=2"})
    EXPECT_THAT(error_of([&] { listen_for_kv(wrong); }), HasSubstr("tcp://")) << wrong;
  EXPECT_THAT(error_of([&] { connect_for_kv("tcp://127.0.0.1:0", far()); }), HasSubstr("127.0.0.1:0"));
  EXPECT_THAT(error_of([&] { listen_for_kv("shm://"); }), HasSubstr("shm://"));
  EXPECT_THAT(error_of([&] { listen_for_kv("shm://" + std::string(200, 'x')); }), HasSubstr("xxx"));
#ifdef LADDER_HAS_CUDA
  EXPECT_THAT(error_of([&] { listen_for_kv("cuda://"); }), HasSubstr("cuda://"));
  for (const char* const wrong : {"nccl://", "nccl://:5", "nccl://127.0.0.1:70000", "nccl://0?streams=2"})
    EXPECT_THAT(error_of([&] { listen_for_kv(wrong); }), HasSubstr("nccl://")) << wrong;
#else
  EXPECT_THAT(error_of([&] { listen_for_kv("cuda://x"); }), HasSubstr("no CUDA"));
  EXPECT_THAT(error_of([&] { listen_for_kv("nccl://0"); }), HasSubstr("no CUDA"));
#endif
  EXPECT_THAT(error_of([&] { listen_for_kv("file://"); }), HasSubstr("folder"));
  EXPECT_THAT(error_of([&] { listen_for_kv("file:///proc/no/such"); }), HasSubstr("/proc/no/such"));
}

}  // namespace
}  // namespace ladder
