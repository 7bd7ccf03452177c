// The bounded buffer: writer and reader are threads here, and see the same memory as processes do.
#include "step8_advanced/disaggregation/transport/kv_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "step7_parallel/workers/shared_memory.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

class Task8_7_Buffer : public ::testing::Test {
 protected:
  // Nothing that works waits until then. Whoever was not woken is late once, and not at every wait.
  const KvDeadline far_ = Clock::now() + 20s;
};

// What is there and what there is room for is found without waiting.
KvDeadline now() {
  return Clock::now();
}

Bytes some_bytes(size_t size, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

KvRing other_end(const KvRing& ring) {
  return KvRing::open(FileDescriptor(::fcntl(ring.descriptor(), F_DUPFD_CLOEXEC, 0)));
}

TEST_F(Task8_7_Buffer, WhatIsWrittenIsReadInOrder) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const size_t capacity : {size_t{1}, size_t{7}, size_t{64}, size_t{1000}, 3 * KvRing::kPiece + 5}) {
    KvRing ring = KvRing::create(capacity), end = other_end(ring);
    const Bytes sent = some_bytes(5 * capacity + 3, random.seed());
    auto writer = std::async(std::launch::async, [&, seed = random.seed() + 1] {
      testing::Random sizes(seed);
      for (size_t at = 0; at < sent.size();) {
        const auto size = static_cast<size_t>(sizes.integer(0, static_cast<int64_t>(2 * capacity)));
        const auto part = std::span(sent).subspan(at, std::min(size, sent.size() - at));
        if (ring.write(part, far_) != part.size()) return false;
        at += part.size();
      }
      return true;
    });
    Bytes got(sent.size());
    for (size_t at = 0; at < got.size();) {
      const auto size = static_cast<size_t>(random.integer(0, static_cast<int64_t>(2 * capacity)));
      const auto part = std::span(got).subspan(at, std::min(size, got.size() - at));
      ASSERT_EQ(end.read(part, far_), part.size()) << "read at byte " << at << ", capacity " << capacity;
      at += part.size();
    }
    EXPECT_TRUE(writer.get());
    EXPECT_TRUE(got == sent) << "capacity " << capacity;
  }
}

TEST_F(Task8_7_Buffer, TakesNoMoreThanItsCapacity) {
  KvRing ring = KvRing::create(10), end = other_end(ring);
  const Bytes sent = some_bytes(30);
  EXPECT_EQ(ring.write(sent, now()), 10u);
  EXPECT_EQ(ring.write(std::span(sent).subspan(10), now()), 0u) << "it was full";
  Bytes got(4);
  EXPECT_EQ(end.read(got, now()), 4u);
  EXPECT_EQ(ring.write(std::span(sent).subspan(10), now()), 4u) << "the reader had taken 4";
  got.resize(20);
  EXPECT_EQ(end.read(got, now()), 10u) << "what was left and what came after it";
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 10, sent.begin() + 4));
}

TEST_F(Task8_7_Buffer, NothingThereIsNothingRead) {
  KvRing ring = KvRing::create(10);
  Bytes got(4);
  EXPECT_EQ(ring.read(got, now()), 0u);
  const auto begin = Clock::now();
  EXPECT_EQ(ring.read(got, begin + 30ms), 0u);
  EXPECT_GE(Clock::now() - begin, 30ms) << "it did not wait until the deadline";
}

// Memory of one side's own. Whoever touches a page of it for the first time is held up there, in the middle of a copy, while
// `look` looks at what the other side sees.
class WatchedMemory {
 public:
  WatchedMemory(size_t size, std::function<void()> look) : size_(size), look_(std::move(look)) {
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    watched_ = this;
    struct sigaction action {};
    action.sa_sigaction = &on_touch;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~WatchedMemory() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(data_, size_);
  }
  WatchedMemory(const WatchedMemory&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  void watch() const { ::mprotect(data_, size_, PROT_NONE); }
  size_t num_pages() const { return size_ / page(); }

 private:
  static size_t page() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }
  // Unlike other signals it comes where the copy stands, as if the copy had called it.
  static void on_touch(int, siginfo_t* info, void*) {
    const auto at = static_cast<size_t>(static_cast<std::byte*>(info->si_addr) - watched_->data_);
    if (at >= watched_->size_) {
      ::signal(SIGSEGV, SIG_DFL);
      return;
    }
    ::mprotect(watched_->data_ + at / page() * page(), page(), PROT_READ | PROT_WRITE);
    try {
      watched_->look_();
    } catch (...) {  // an error cannot leave by the copy; whoever looks after it gets it again
    }
  }

  static inline const WatchedMemory* watched_ = nullptr;
  const size_t size_;
  const std::function<void()> look_;
  std::byte* data_;
  struct sigaction before_ {};
};

// In the middle of a copy the other side takes all that it is told is there, and fills all the room that it is told there is.
TEST_F(Task8_7_Buffer, NeitherTouchesWhatIsTheOthers) {
  KvRing ring = KvRing::create(KvRing::kPiece), end = other_end(ring);
  const Bytes sent = some_bytes(KvRing::kPiece);
  size_t num_looks = 0;
  {
    Bytes got;
    const auto take = [&](Bytes part = Bytes(KvRing::kPiece)) {
      part.resize(end.read(part, now()));
      got.insert(got.end(), part.begin(), part.end());
      ++num_looks;
    };
    const WatchedMemory from(KvRing::kPiece, take);
    std::ranges::copy(sent, from.bytes().begin());
    from.watch();
    EXPECT_EQ(ring.write(from.bytes(), far_), KvRing::kPiece);
    EXPECT_EQ(num_looks, from.num_pages());
    take();
    EXPECT_TRUE(got == sent) << "the reader was told of bytes that were not copied yet";
  }
  EXPECT_EQ(ring.write(sent, far_), KvRing::kPiece);
  const Bytes next(KvRing::kPiece);
  const WatchedMemory to(KvRing::kPiece, [&] { ring.write(next, now()); });
  to.watch();
  EXPECT_EQ(end.read(to.bytes(), far_), KvRing::kPiece);
  EXPECT_TRUE(std::ranges::equal(to.bytes(), sent))
      << "the writer was told of room whose bytes were not copied yet";
}

// Whoever was not woken goes on at the deadline: once is enough to be noticed.
TEST_F(Task8_7_Buffer, WhoSleepsIsWoken) {
  KvRing ring = KvRing::create(64), end = other_end(ring);
  auto echo = std::async(std::launch::async, [&] {
    Bytes got(100);
    for (int i = 0; i < 50; ++i) {
      std::this_thread::sleep_for(1ms);  // the writer sleeps by now
      if (end.read(got, far_) != got.size()) return false;
    }
    return true;
  });
  const Bytes sent = some_bytes(100);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(ring.write(sent, far_), sent.size()) << "the writer was not woken";
    if (i % 5 == 0) std::this_thread::sleep_for(4ms);  // the reader sleeps by now
  }
  EXPECT_TRUE(echo.get()) << "the reader was not woken";
  EXPECT_LT(Clock::now(), far_) << "who slept was not woken";
}

// The reader of a message longer than the ring must take while the writer writes.
TEST_F(Task8_7_Buffer, WhatIsLongerThanTheRingGoesThrough) {
  KvRing ring = KvRing::create(KvRing::kPiece), end = other_end(ring);
  const Bytes sent = some_bytes(20 * KvRing::kPiece + 11);
  auto writer = std::async(std::launch::async, [&] { return ring.write(sent, far_); });
  Bytes got(sent.size());
  EXPECT_EQ(end.read(got, far_), got.size());
  EXPECT_EQ(writer.get(), sent.size());
  EXPECT_TRUE(got == sent);
}

TEST_F(Task8_7_Buffer, WhatWasWrittenBeforeTheEndIsRead) {
  KvRing ring = KvRing::create(100), end = other_end(ring);
  const Bytes sent = some_bytes(40);
  ring.write(sent, now());
  ring.close();
  Bytes got(40);
  EXPECT_EQ(end.read(got, now()), 40u);
  EXPECT_TRUE(got == sent);
  EXPECT_THROW(end.read(got, now()), KvChannelError);
  EXPECT_THROW(ring.write(sent, now()), KvChannelError) << "nobody will read it";
}

TEST_F(Task8_7_Buffer, CloseReleasesBothWaits) {
  for (const bool by_reader : {false, true}) {
    KvRing full = KvRing::create(4), empty = KvRing::create(4);
    full.write(some_bytes(4), now());
    auto writer = std::async(std::launch::async, [&] { full.write(some_bytes(1), far_); });
    auto reader = std::async(std::launch::async, [&] {
      Bytes got(1);
      empty.read(got, far_);
    });
    std::this_thread::sleep_for(5ms);  // both sleep by now, or will find it closed
    KvRing full_end = other_end(full), empty_end = other_end(empty);
    (by_reader ? full_end : full).close();
    (by_reader ? empty_end : empty).close();
    EXPECT_THROW(writer.get(), KvChannelError);
    EXPECT_THROW(reader.get(), KvChannelError);
    EXPECT_LT(Clock::now(), far_);
  }
}

// The words of another process are not believed: nothing outside the ring is read or written.
TEST_F(Task8_7_Buffer, WordsThatCannotBeAreAnError) {
  // Wherever they lie: every aligned word of what stands before the bytes is set to what no ring can hold.
  for (const bool writes : {true, false}) {
    int num_noticed = 0;
    for (size_t offset = 64; offset < 320; offset += 8) {
      KvRing ring = KvRing::create(4096);
      SharedMemory memory =
          SharedMemory::open(FileDescriptor(::fcntl(ring.descriptor(), F_DUPFD_CLOEXEC, 0)));
      const uint64_t far_off = uint64_t{1} << 40;
      std::memcpy(memory.data() + offset, &far_off, sizeof far_off);
      Bytes bytes(16);
      try {
        if (writes)
          ring.write(bytes, now());
        else
          ring.read(bytes, now());
      } catch (const KvChannelError&) {
        ++num_noticed;
      }
    }
    EXPECT_GE(num_noticed, 2) << "what is written, and what is taken, by " << (writes ? "write" : "read");
  }
}

TEST_F(Task8_7_Buffer, MemoryWithoutARingIsRefused) {
  const auto open = [](const SharedMemory& memory) {
    KvRing::open(FileDescriptor(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0)));
  };
  EXPECT_THROW(open(SharedMemory::create("zeros", 1 << 16)), Error);
  EXPECT_THROW(open(SharedMemory::create("small", 8)), Error);
  const KvRing ring = KvRing::create(100);
  SharedMemory memory = SharedMemory::open(FileDescriptor(::fcntl(ring.descriptor(), F_DUPFD_CLOEXEC, 0)));
  const uint64_t huge = uint64_t{1} << 50;
  std::memcpy(memory.data() + 8, &huge, sizeof huge);  // its capacity
  EXPECT_THROW(open(memory), Error);
}

}  // namespace
}  // namespace ladder
