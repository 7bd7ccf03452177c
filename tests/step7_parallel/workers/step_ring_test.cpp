#include "step7_parallel/workers/step_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/support/error_of.h"
#include "tests/support/memory_files.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::error_of;

using namespace std::chrono_literals;
using Read = StepRingReader::Read;
using ::testing::HasSubstr;

constexpr auto kPatience = 60s;  // longer than any machine's haste; nothing waits for it that works

// Whoever was not woken goes on when its time is up, thousands of times: once is enough.
class Impatience {
 public:
  ~Impatience() noexcept(false) {
    if (StepRingWriter::Clock::now() - begin_ > kPatience / 2 && std::uncaught_exceptions() == 0)
      throw Error("it was not woken in time");
  }

 private:
  const StepRingWriter::Clock::time_point begin_ = StepRingWriter::Clock::now();
};

void put(StepRingWriter& writer, std::string_view message) {
  const Impatience impatience;
  writer.write(message, kPatience);
}
Read take(StepRingReader& reader, std::string& message) {
  const Impatience impatience;
  return reader.read(message, kPatience);
}

FileDescriptor copy_of(int descriptor) {
  return FileDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
}

StepRingReader reader_of(const StepRingWriter& writer, int reader, std::chrono::microseconds spin = 100us) {
  return StepRingReader(copy_of(writer.descriptor()), reader, spin);
}

// Message `number` of a series, of a length that tries what is special about slots.
std::string message_of(uint64_t seed, int number, const StepRingShape& shape) {
  std::mt19937_64 random(seed + static_cast<uint64_t>(number));
  const uint64_t slot = shape.slot_bytes;
  const uint64_t lengths[] = {0,
                              1,
                              slot - 1,
                              slot,
                              slot + 1,
                              2 * slot,
                              random() % (4 * slot),
                              random() % 32,
                              slot * static_cast<uint64_t>(shape.num_slots) * 2 + 3};
  std::string message(lengths[random() % std::size(lengths)], '\0');
  for (char& byte : message) byte = static_cast<char>(random());
  return message;
}

// "": it got all of them, and then the end.
std::string wrong_with(StepRingReader reader, uint64_t seed, int count, const StepRingShape& shape) try {
  std::string message;
  for (int i = 0; i < count; ++i) {
    if (take(reader, message) != Read::message) return "no message " + std::to_string(i);
    if (message != message_of(seed, i, shape)) return "another message " + std::to_string(i);
  }
  return take(reader, message) == Read::closed ? "" : "no end";
} catch (const Error& error) {
  return error.what();
}

// Exit code 0: the work said true. Whatever it throws, the child does not go on as a second test program.
pid_t child_that(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    ::_exit(work() ? 0 : 1);
  } catch (...) {
    ::_exit(2);
  }
}

TEST(Task7_1_StepRing, EveryReaderGetsEveryMessageInOrder) {
  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE("LADDER_TEST_SEED=" + std::to_string(seed));
  for (const StepRingShape& shape :
       {StepRingShape{1, 1, 64}, {2, 2, 100}, {3, 4, 1000}, {2, 1, 20000}, {4, 16, 7}})
    for (const auto spin : {0us, 50us}) {
      StepRingWriter writer(shape, spin);
      std::vector<std::future<std::string>> readers;
      for (int reader = 0; reader < shape.num_readers; ++reader)
        readers.push_back(std::async(std::launch::async, [&, reader] {
          return wrong_with(reader_of(writer, reader, spin), seed, 300, shape);
        }));
      EXPECT_EQ(error_of([&] {
                  for (int i = 0; i < 300; ++i) put(writer, message_of(seed, i, shape));
                }),
                "no error");
      EXPECT_TRUE(writer.wait_until_taken(kPatience));
      writer.close();
      for (auto& reader : readers)
        EXPECT_EQ(reader.get(), "") << shape.num_readers << " readers, " << shape.num_slots << " slots of "
                                    << shape.slot_bytes;
      if (HasFailure()) return;
    }
}

// Chunks as large as a copy takes long, and more readers than processors: one that has to pause in its copy finds another
// chunk behind the pause if its slot was given back too early, or shown too early.
// Field bug vLLM 29819, and so does NoWakeIsLost: see FIELD_BUGS.md.
TEST(Task7_1_StepRing, ASlotIsReadWholeBeforeItIsWrittenAgain) {
  const StepRingShape shape{6, 1, 4 << 20};
  StepRingWriter writer(shape);
  std::vector<std::future<std::string>> readers;
  for (int i = 0; i < shape.num_readers; ++i)
    readers.push_back(std::async(std::launch::async, [&, i] {
      StepRingReader reads = reader_of(writer, i);
      std::string message;
      for (int number = 0; number < 300; ++number) {
        if (reads.read(message, kPatience) != Read::message) return std::string("no message");
        const auto byte = static_cast<char>(number);
        if (message.front() != byte ||
            std::memcmp(message.data(), message.data() + 1, message.size() - 1) != 0)
          return "mixed " + std::to_string(number);
      }
      return std::string();
    }));
  for (int number = 0; number < 300; ++number)
    put(writer, std::string(shape.slot_bytes, static_cast<char>(number)));
  for (auto& reader : readers) EXPECT_EQ(reader.get(), "");
}

TEST(Task7_1_StepRing, ReadersMayBeProcesses) {
  const StepRingShape shape{2, 3, 512};
  StepRingWriter writer(shape);
  pid_t children[2];
  for (int reader = 0; reader < 2; ++reader) {
    children[reader] =
        child_that([&] { return wrong_with(reader_of(writer, reader), 7, 200, shape).empty(); });
  }
  for (int i = 0; i < 200; ++i) put(writer, message_of(7, i, shape));
  EXPECT_TRUE(writer.wait_until_taken(kPatience));
  writer.close();
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Task7_1_StepRing, TheSlowestReaderHoldsTheWriter) {
  for (const int slowest : {0, 1, 2}) {
    StepRingWriter writer({3, 2, 8});
    std::vector<StepRingReader> fast;
    for (int reader = 0; reader < 3; ++reader)
      if (reader != slowest) fast.push_back(reader_of(writer, reader));
    StepRingReader slow = reader_of(writer, slowest);
    std::string message;
    for (const char* text : {"one", "two"}) {
      writer.write(text, kPatience);
      for (StepRingReader& reader : fast) {
        EXPECT_EQ(reader.read(message, 0ms), Read::message);
        EXPECT_EQ(message, text);
      }
    }
    EXPECT_EQ(fast[0].read(message, 1ms), Read::nothing_yet);
    EXPECT_FALSE(writer.wait_until_taken(1ms));
    EXPECT_EQ(error_of([&] { writer.write("three", 50ms); }),
              fmt::format("step ring: reader {} has taken nothing for 50 ms", slowest));
    // Nothing may follow what perhaps is half a message.
    EXPECT_EQ(slow.read(message, 0ms), Read::message);
    EXPECT_EQ(message, "one");
    EXPECT_EQ(error_of([&] { writer.write("four", 50ms); }), "step ring: it is closed");
    EXPECT_EQ(slow.read(message, 0ms), Read::message) << "what was written before the end is there";
    EXPECT_EQ(message, "two");
    EXPECT_EQ(slow.read(message, kPatience), Read::closed);
    EXPECT_EQ(fast[1].read(message, kPatience), Read::closed);
  }
}

TEST(Task7_1_StepRing, APartOfAMessageIsNoMessage) {
  StepRingWriter writer({1, 2, 4});
  StepRingReader reader = reader_of(writer, 0);
  auto writing = std::async(std::launch::async, [&] { writer.write("0123456789abcdef", kPatience); });
  std::string message = "none";
  int empty_reads = 0;
  while (reader.read(message, 0ms) == Read::nothing_yet) {
    ASSERT_EQ(message, "none");
    ASSERT_LT(++empty_reads, 100'000'000);
  }
  EXPECT_EQ(message, "0123456789abcdef");
  writing.get();
  EXPECT_EQ(reader.read(message, 1ms), Read::nothing_yet);
}

// Back and forth, both sides asleep as often as can be: a lost wake would stand for kPatience.
TEST(Task7_1_StepRing, NoWakeIsLost) {
  StepRingWriter there({1, 1, 8}, 0us), back({1, 1, 8}, 0us);
  auto answering = std::async(std::launch::async, [&] {
    StepRingReader reader = reader_of(there, 0, 0us);
    std::string message;
    for (int i = 0; i < 5000; ++i) {
      if (take(reader, message) != Read::message) return false;
      put(back, message);
    }
    return true;
  });
  StepRingReader reader = reader_of(back, 0, 0us);
  std::string message;
  for (int i = 0; i < 5000; ++i) {
    put(there, std::to_string(i));
    ASSERT_EQ(take(reader, message), Read::message) << i;
    ASSERT_EQ(message, std::to_string(i));
  }
  EXPECT_TRUE(answering.get());
}

TEST(Task7_1_StepRing, ItsEndWakesWhoWaits) {
  StepRingWriter full({1, 1, 8}, 0us), empty({1, 1, 8}, 0us);
  full.write("one", kPatience);
  const auto begin = StepRingWriter::Clock::now();
  auto writing =
      std::async(std::launch::async, [&] { return error_of([&] { full.write("two", kPatience); }); });
  auto reading = std::async(std::launch::async, [&] {
    std::string message;
    return reader_of(empty, 0, 0us).read(message, kPatience);
  });
  std::this_thread::sleep_for(20ms);
  full.close();
  empty.close();
  EXPECT_EQ(writing.get(), "step ring: it is closed");
  EXPECT_EQ(reading.get(), Read::closed);
  EXPECT_LT(StepRingWriter::Clock::now() - begin, kPatience / 2);
}

// Whoever watches the processes closes the ring: the writer does not wait for the dead.
TEST(Task7_1_StepRing, AKilledReaderNeedNotBeWaitedFor) {
  StepRingWriter writer({2, 1, 8}, 0us);
  const pid_t child = child_that([&] {
    std::string message;
    return reader_of(writer, 0, 0us).read(message, kPatience) == Read::closed;
  });
  std::this_thread::sleep_for(10ms);
  ::kill(child, SIGKILL);
  auto watching = std::async(std::launch::async, [&] {
    ::waitpid(child, nullptr, 0);
    writer.close();
  });
  EXPECT_EQ(error_of([&] {
              writer.write("one", kPatience);
              writer.write("two", kPatience);
            }),
            "step ring: it is closed");
  watching.get();
}

TEST(Task7_1_StepRing, ItsMemoryHasNoNameAndCannotShrink) {
  const std::set<std::string> before = testing::files_of_memory();
  const StepRingWriter writer({1, 1, 8});
  EXPECT_EQ(testing::files_of_memory(), before);
  EXPECT_NE(::ftruncate(writer.descriptor(), 0), 0);
  EXPECT_THAT(error_of([] { StepRingWriter({1, 1 << 16, 1u << 30}); }), HasSubstr("are more than"));
}

TEST(Task7_1_StepRing, OtherMemoryIsRefused) {
  const auto opened = [](FileDescriptor descriptor, int reader = 0) {
    return error_of([&] { StepRingReader(std::move(descriptor), reader); });
  };
  EXPECT_THAT(opened(FileDescriptor(::open("/dev/zero", O_RDWR))),
              HasSubstr("none of another process's memory"));
  EXPECT_THAT(opened(copy_of(SharedMemory::create("other", 8).descriptor())), HasSubstr("8 bytes are none"));
  const SharedMemory zeros = SharedMemory::create("other", 4096);
  EXPECT_THAT(opened(copy_of(zeros.descriptor())), HasSubstr("holds something else"));
  const StepRingWriter writer({2, 1, 8});
  for (const int reader : {-1, 2})
    EXPECT_THAT(opened(copy_of(writer.descriptor()), reader), HasSubstr("of 2"));
  // The head of a ring of many slots, in memory for one.
  const SharedMemory source = SharedMemory::open(copy_of(StepRingWriter({1, 999, 64}).descriptor()));
  std::copy_n(source.data(), zeros.size(), zeros.data());
  EXPECT_THAT(opened(copy_of(zeros.descriptor())), HasSubstr("4096 bytes of"));
  EXPECT_THAT(error_of([] { StepRingWriter({0, 1, 8}); }), HasSubstr("0 readers"));
}

TEST(Task7_1_StepRing, AChunkLargerThanItsSlotIsAnError) {
  StepRingWriter writer({1, 1, 8});
  writer.write("12345678", kPatience);
  const StepRingMemory ring(SharedMemory::open(copy_of(writer.descriptor())));
  ring.slot(0).size = 9;
  std::string message;
  EXPECT_THAT(error_of([&] { reader_of(writer, 0).read(message, 0ms); }), HasSubstr("a chunk of 9 bytes"));
}

}  // namespace
}  // namespace ladder
