// cuda:// and nccl:// with bodies on GPUs: from thread to thread and from process to process, on one GPU and between two. (What every
// transport must do is in kv_transports_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "step6_engine/process/child_process.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/disaggregation/transport/gpu_slots.h"
#endif
#include "tests/step8_advanced/disaggregation/transport/bodies.h"
#include "tests/step8_advanced/disaggregation/transport/transport_places.h"
#include "tests/support/in_time.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr auto kSoon = 20s;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSlots = 3;  // bodies that are under way before the sender waits

KvDeadline far() {
  return Clock::now() + 120s;
}
Device gpu(int index) {
  return {DeviceType::cuda, index};
}
int64_t free_bytes(int index) {
  return cuda_device_info(index).free_bytes;
}

// From GPU 0 to the GPU of this number.
struct Way {
  std::string_view transport;
  int to = 0;
};

class GpuBodies : public ::testing::TestWithParam<Way> {
 protected:
  struct Ends {
    std::unique_ptr<KvChannel> accepted, connected;
  };

  void SetUp() override {
    if (const std::string obstacle = testing::obstacle_of(GetParam().transport); !obstacle.empty())
      GTEST_SKIP() << obstacle;
    if (cuda_device_count() <= GetParam().to)
      GTEST_SKIP() << GetParam().to + 1 << " GPUs are needed, there are " << cuda_device_count();
    listener_ = listen_for_kv(place_.address());
  }
  Ends meet() {
    auto connected =
        std::async(std::launch::async, [&] { return connect_for_kv(listener_->address(), far()); });
    Ends ends;
    ends.accepted = listener_->accept(far());
    ends.connected = connected.get();
    return ends;
  }
  std::unique_ptr<ChildProcess> peer(const std::string& what, int device, size_t bytes = 0) {
    return std::make_unique<ChildProcess>(
        ChildOptions{.name = "the peer",
                     .arguments = {what, listener_->address(), std::to_string(device), std::to_string(bytes)},
                     .program = KV_PEER});
  }

  const Device from_ = gpu(0), to_ = gpu(GetParam().to);
  testing::TransportPlace place_{GetParam().transport};
  std::unique_ptr<KvListener> listener_;
};

INSTANTIATE_TEST_SUITE_P(Task8_7_Channel, GpuBodies,
                         ::testing::Values(Way{"cuda", 0}, Way{"cuda", 1}, Way{"nccl", 1}),
                         [](const auto& info) {
                           return fmt::format("{}_from_0_to_{}", info.param.transport, info.param.to);
                         });

TEST_P(GpuBodies, GoFromThreadToThreadBetweenThoseOfTheHost) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  Ends ends = meet();
  std::vector<size_t> sizes = {1, 15, 4096, ends.accepted->body_bytes()};
  while (sizes.size() < 30) sizes.push_back(static_cast<size_t>(random.integer(1, 4'000'000)));
  std::vector<bool> on_gpu;
  for (size_t i = 0; i < sizes.size(); ++i) on_gpu.push_back(i < 4 || random.integer(0, 3) > 0);
  auto sending = std::async(std::launch::async, [&] {
    for (size_t i = 0; i < sizes.size(); ++i) {
      testing::send_random_body(*ends.accepted, sizes[i], on_gpu[i] ? from_ : Device{}, i, far());
      if (i % 5 == 4) ends.accepted->send(std::vector<std::byte>(7), {}, far());
    }
  });
  KvCopier copier;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(testing::take_random_body(*ends.connected, to_, copier, far())) << i << ": " << sizes[i];
    if (i % 5 == 4) {
      ASSERT_EQ(ends.connected->receive_head(far()).head.size(), 7u);
    }
  }
  sending.get();
}

TEST_P(GpuBodies, GoBothWaysAtOnce) {
  Ends ends = meet();
  const auto run = [](KvChannel& channel, Device mine) {
    return std::async(std::launch::async, [&channel, mine] {
      auto sending = std::async(std::launch::async, [&channel, mine] {
        for (uint64_t i = 0; i < 12; ++i) testing::send_random_body(channel, 3'000'016, mine, i, far());
      });
      KvCopier copier;
      for (int i = 0; i < 12; ++i)
        if (!testing::take_random_body(channel, mine, copier, far())) return i;
      sending.get();
      return 12;
    });
  };
  auto there = run(*ends.accepted, from_), back = run(*ends.connected, to_);
  EXPECT_EQ(there.get(), 12);
  EXPECT_EQ(back.get(), 12);
}

TEST_P(GpuBodies, OfASenderThatIsAheadWait) {
  Ends ends = meet();
  size_t num_taken = 0;
  std::string error;
  try {
    for (; num_taken < 64; ++num_taken)
      testing::send_random_body(*ends.accepted, kMiB, from_, num_taken, Clock::now() + 300ms);
  } catch (const KvChannelError& problem) {
    error = problem.what();
  }
  EXPECT_EQ(num_taken, kSlots);
  EXPECT_THAT(error, HasSubstr("time is over"));
  // What was sent before is there, though its sender is not any more.
  ends.accepted.reset();
  KvCopier copier;
  for (size_t i = 0; i < kSlots; ++i)
    EXPECT_TRUE(testing::take_random_body(*ends.connected, to_, copier, far())) << i;
  EXPECT_THROW(ends.connected->receive_head(far()), KvChannelError);
}

TEST_P(GpuBodies, AreWaitedForByNobodyAfterAClose) {
  Ends ends = meet();
  const auto begin = Clock::now();
  auto waiting = std::async(std::launch::async, [&] {
    for (uint64_t i = 0; i < 64; ++i) testing::send_random_body(*ends.accepted, kMiB, from_, i, far());
  });
  std::this_thread::sleep_for(300ms);
  ends.accepted->close();
  EXPECT_THROW(waiting.get(), KvChannelError);
  EXPECT_LT(Clock::now() - begin, kSoon);
}

TEST_P(GpuBodies, AreNoneOfTheHost) {
  Ends ends = meet();
  testing::send_random_body(*ends.accepted, 100, from_, 1, far());
  const size_t size = ends.connected->receive_head(far()).body_size;
  std::vector<std::byte> bytes(size);
  EXPECT_THROW(ends.connected->receive_body(bytes, far()), Error);
  EXPECT_THROW(ends.connected->take_body(size, {}, far()), Error);
  EXPECT_THROW(ends.accepted->room_for(ends.accepted->body_bytes() + 1, from_, far()), Error);
}

TEST_P(GpuBodies, LeaveNoMemoryBehind) {
  const auto use = [&] {
    for (const bool reader_first : {true, false}) {
      Ends ends = meet();
      KvCopier copier;
      testing::send_random_body(*ends.accepted, kMiB, from_, 1, far());
      EXPECT_TRUE(testing::take_random_body(*ends.connected, to_, copier, far()));
      testing::send_random_body(*ends.accepted, kMiB, from_, 1, far());  // which nobody takes
      (reader_first ? ends.connected : ends.accepted).reset();
    }
    listener_->accept(Clock::now());  // looks who has let go
  };
  use();  // what the first one takes for good
  const int64_t before[] = {free_bytes(0), free_bytes(to_.index)};
  for (int i = 0; i < 4; ++i) use();
  EXPECT_GE(free_bytes(0), before[0]);
  EXPECT_GE(free_bytes(to_.index), before[1]);
}

// Ranks of both ends on both GPUs, whose bodies share a channel.
TEST(GpuLanes, GoFromEachGpuToEach) {
  const int gpus = cuda_device_count();
  if (gpus < 2) GTEST_SKIP() << "2 GPUs are needed, there are " << gpus;
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const testing::TransportPlace place("cuda");
  const auto listener = listen_for_kv(place.address());
  auto connecting =
      std::async(std::launch::async, [&] { return connect_for_kv(listener->address(), far()); });
  const auto sender = listener->accept(far());
  const auto reader = connecting.get();
  std::vector<int> lanes;  // 2 * from + to
  for (int i = 0; i < 200; ++i) lanes.push_back(static_cast<int>(random.integer(0, 3)));
  auto sending = std::async(std::launch::async, [&] {
    for (size_t i = 0; i < lanes.size(); ++i)
      testing::send_random_body(*sender, 1000 + 100'003 * (i % 7), gpu(lanes[i] / 2), i, far(), lanes[i]);
  });
  KvCopier copier;
  for (size_t i = 0; i < lanes.size(); ++i)
    ASSERT_TRUE(testing::take_random_body(*reader, gpu(lanes[i] % 2), copier, far())) << i;
  sending.get();
  // Whoever takes a lane's body to another GPU than those before is told so.
  testing::send_random_body(*sender, 1000, gpu(0), 1, far(), 0);
  const size_t size = reader->receive_head(far()).body_size;
  EXPECT_THROW(reader->take_body(size, gpu(1), far()), Error);
  EXPECT_THROW(sender->room_for(1000, gpu(0), far(), kMostKvLanes), Error);
}

TEST_P(GpuBodies, GoToAnotherProcess) {
  const auto child = peer("take", to_.index);
  const auto channel = listener_->accept(far());
  ASSERT_NE(channel, nullptr);
  for (uint64_t i = 0; i < 20; ++i) {
    testing::send_random_body(*channel, i % 2 == 0 ? 3 * kMiB : 100'003, from_, i, far());
    if (i >= 2) channel->receive_head(far());
  }
  for (int i = 0; i < 2; ++i) channel->receive_head(far());  // all were right: else it would have ended
}

TEST_P(GpuBodies, ComeFromAnotherProcess) {
  const auto child = peer("give", 0, 3 * kMiB + 16);
  const auto channel = listener_->accept(far());
  ASSERT_NE(channel, nullptr);
  KvCopier copier;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(testing::take_random_body(*channel, to_, copier, far())) << i;
}

// ... which is killed at some point of a body.
TEST_P(GpuBodies, OfAKilledProcessAreWholeOrNone) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto round = [&](bool child_gives, std::chrono::milliseconds after) {
    const auto child = child_gives ? peer("give", 0, 8 * kMiB) : peer("take", to_.index);
    const auto channel = listener_->accept(far());
    ASSERT_NE(channel, nullptr);
    KvCopier copier;
    // It has begun: what follows is not about its start.
    if (child_gives) {
      ASSERT_TRUE(testing::take_random_body(*channel, to_, copier, far()));
    } else {
      testing::send_random_body(*channel, kMiB, from_, 1, far());
      channel->receive_head(far());
    }
    const auto begin = Clock::now();
    std::thread killer([&child, after] {
      std::this_thread::sleep_for(after);
      child->kill();
    });
    EXPECT_THROW(
        {
          for (uint64_t i = 0;; ++i) {
            if (child_gives)
              ASSERT_TRUE(testing::take_random_body(*channel, to_, copier, far())) << "a part of a body";
            else
              testing::send_random_body(*channel, 8 * kMiB, from_, i, far());
            if (!child_gives) channel->receive_head(far());
          }
        },
        KvChannelError);
    EXPECT_LT(Clock::now() - begin, kSoon);
    killer.join();
  };
  round(true, 50ms);
  round(false, 50ms);
  listener_->accept(Clock::now());
  const int64_t before[] = {free_bytes(0), free_bytes(to_.index)};
  const int rounds = GetParam().transport == "nccl" ? 2 : 6;  // whose processes take seconds to meet
  for (int i = 0; i < rounds; ++i) round(i % 2 == 0, std::chrono::milliseconds(random.integer(0, 100)));
  const auto until = Clock::now() + kSoon;  // the driver takes back what a dead process had
  while ((free_bytes(0) < before[0] || free_bytes(to_.index) < before[1]) && Clock::now() < until)
    listener_->accept(Clock::now() + 50ms);
  EXPECT_GE(free_bytes(0), before[0]);
  EXPECT_GE(free_bytes(to_.index), before[1]);
}

#ifdef LADDER_HAS_CUDA
TEST(Task8_7_Channel_OneGpu, IsNoPairOfNcclRanks) {
  if (const std::string obstacle = testing::obstacle_of("nccl"); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const auto listener = listen_for_kv("nccl://0");
  auto connecting =
      std::async(std::launch::async, [&] { return connect_for_kv(listener->address(), far()); });
  const auto accepted = listener->accept(far()), connected = connecting.get();
  testing::send_random_body(*accepted, 100, gpu(0), 1, far());
  const size_t size = connected->receive_head(far()).body_size;
  try {
    connected->take_body(size, gpu(0), far());
    FAIL() << "it came";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("both ends are on one GPU"));
  }
}

TEST(Task8_7_Channel_GpuSlots, OfAnotherBuildAreRefused) {
  GpuSlotsHandle theirs;
  EXPECT_NO_THROW(expect_slots_as_here(theirs));
  for (const auto& [num_slots, slot_bytes] : {std::pair{4, 32 * kMiB}, {3, 16 * kMiB}}) {
    theirs.num_slots = static_cast<uint64_t>(num_slots);
    theirs.slot_bytes = slot_bytes;
    try {
      expect_slots_as_here(theirs);
      FAIL() << "they are taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("{} slots of {} bytes", num_slots, slot_bytes)));
    }
  }
}
#endif

}  // namespace
}  // namespace ladder
