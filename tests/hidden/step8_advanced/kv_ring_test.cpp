// Task 8.7.buffer: a ring beside a queue that is one, and two threads of different speed.
#include "step8_advanced/disaggregation/transport/kv_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(Random& random, int64_t size) {
  Bytes bytes(static_cast<size_t>(size));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.integer(0, 255));
  return bytes;
}

KvRing other_end(const KvRing& ring) {
  return KvRing::open(FileDescriptor(::fcntl(ring.descriptor(), F_DUPFD_CLOEXEC, 0)));
}

// Nobody waits: what goes in and out is told beforehand.
TEST(Hidden8_7_Buffer, IsAQueueOfItsCapacity) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 8 && !HasFailure(); ++round) {
    const int64_t capacity = random.integer(1, 300);
    KvRing ring = KvRing::create(static_cast<size_t>(capacity)), end = other_end(ring);
    std::deque<std::byte> held;
    for (int turn = 0; turn < 200 && !HasFailure(); ++turn) {
      if (random.integer(0, 1) == 0) {
        const Bytes bytes = random_bytes(random, random.integer(0, 2 * capacity));
        const size_t room = static_cast<size_t>(capacity) - held.size();
        const size_t written = ring.write(bytes, Clock::now());
        ASSERT_EQ(written, std::min(room, bytes.size())) << "capacity " << capacity;
        held.insert(held.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(written));
      } else {
        Bytes bytes(static_cast<size_t>(random.integer(0, 2 * capacity)));
        const size_t read = end.read(bytes, Clock::now());
        ASSERT_EQ(read, std::min(held.size(), bytes.size())) << "capacity " << capacity;
        ASSERT_TRUE(
            std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(read), held.begin()));
        held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(read));
      }
    }
    ring.close();
    Bytes rest(held.size());
    ASSERT_EQ(end.read(rest, Clock::now()), rest.size()) << "what was written before the end";
    ASSERT_TRUE(std::equal(rest.begin(), rest.end(), held.begin()));
    Bytes none(1);
    ASSERT_THROW(end.read(none, Clock::now()), KvChannelError);
    ASSERT_THROW(ring.write(none, Clock::now()), KvChannelError);
  }
}

// Of either side being the slower one; whoever is not woken is noticed, since he goes on at the deadline only.
TEST(Hidden8_7_Buffer, WhatGoesThroughIsWhatCameIn) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const KvDeadline far = Clock::now() + 30s;
  for (const bool writer_is_slow : {true, false}) {
    const int64_t capacity =
        random.integer(1, 3) * static_cast<int64_t>(KvRing::kPiece) + random.integer(0, 100);
    KvRing ring = KvRing::create(static_cast<size_t>(capacity)), end = other_end(ring);
    const Bytes sent = random_bytes(random, 6 * capacity + random.integer(0, 1000));
    const auto in_parts = [](bool slow, uint64_t seed, size_t size, auto work) {
      Random sizes(seed);
      for (size_t at = 0; at < size;) {
        const auto part = std::min(static_cast<size_t>(sizes.integer(1, 1 << 18)), size - at);
        if (slow) std::this_thread::sleep_for(1ms);
        if (!work(at, part)) return false;
        at += part;
      }
      return true;
    };
    auto writer = std::async(std::launch::async, [&, seed = fresh_seed()] {
      return in_parts(writer_is_slow, seed, sent.size(), [&](size_t at, size_t size) {
        return ring.write(std::span(sent).subspan(at, size), far) == size;
      });
    });
    Bytes got(sent.size());
    EXPECT_TRUE(in_parts(!writer_is_slow, fresh_seed(), got.size(), [&](size_t at, size_t size) {
      return end.read(std::span(got).subspan(at, size), far) == size;
    }));
    EXPECT_TRUE(writer.get());
    EXPECT_TRUE(got == sent);
  }
  EXPECT_LT(Clock::now(), far) << "who slept was not woken";
}

TEST(Hidden8_7_Buffer, BelievesNoWordThatCannotBe) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (const bool writes : {true, false}) {
    int num_noticed = 0;
    for (size_t offset = 64; offset < 320; offset += 8) {
      KvRing ring = KvRing::create(static_cast<size_t>(random.integer(100, 5000)));
      SharedMemory memory =
          SharedMemory::open(FileDescriptor(::fcntl(ring.descriptor(), F_DUPFD_CLOEXEC, 0)));
      const auto wrong = static_cast<uint64_t>(random.integer(int64_t{1} << 30, int64_t{1} << 60));
      std::memcpy(memory.data() + offset, &wrong, sizeof wrong);
      Bytes bytes(8);
      try {
        if (writes)
          ring.write(bytes, Clock::now());
        else
          ring.read(bytes, Clock::now());
      } catch (const KvChannelError&) {
        ++num_noticed;
      }
    }
    EXPECT_GE(num_noticed, 2);
  }
}

}  // namespace
}  // namespace ladder
