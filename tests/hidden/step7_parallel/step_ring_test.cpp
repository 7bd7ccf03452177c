// Task 7.1: rings of random shapes, messages of random lengths, readers that dawdle, in threads and in processes.
#include "step7_parallel/workers/step_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <future>
#include <thread>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;
using Read = StepRingReader::Read;

constexpr auto kPatience = 10s;

StepRingReader reader_of(const StepRingWriter& writer, int reader, std::chrono::microseconds spin) {
  return StepRingReader(FileDescriptor(::fcntl(writer.descriptor(), F_DUPFD_CLOEXEC, 0)), reader, spin);
}

StepRingShape random_shape(Random& random) {
  return {static_cast<int>(random.integer(1, 5)), static_cast<int>(random.integer(1, 9)),
          static_cast<uint32_t>(random.integer(1, 3000))};
}

// Of the series of this seed: the length of each depends on the ring, and so does the text.
std::string message_of(uint64_t seed, int64_t number, const StepRingShape& shape) {
  Random random(seed + static_cast<uint64_t>(number));
  std::string message(static_cast<size_t>(random.integer(0, 3 * int64_t{shape.slot_bytes})), '\0');
  for (char& byte : message) byte = static_cast<char>(random.integer(0, 255));
  return message;
}

bool gets_all(StepRingReader reader, uint64_t seed, int64_t count, const StepRingShape& shape) {
  Random random(seed);
  std::string message;
  for (int64_t i = 0; i < count; ++i) {
    if (random.integer(0, 9) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 200)));
    const auto begin = StepRingWriter::Clock::now();
    Read read = reader.read(message, 0ms);
    if (read == Read::nothing_yet) read = reader.read(message, kPatience);
    if (StepRingWriter::Clock::now() - begin > kPatience / 2) return false;  // it was not woken
    if (read != Read::message || message != message_of(seed, i, shape)) return false;
  }
  const auto begin = StepRingWriter::Clock::now();
  return reader.read(message, kPatience) == Read::closed &&
         StepRingWriter::Clock::now() - begin < kPatience / 2;
}

TEST(Hidden7_1_StepRing, ReadersOfAllSpeedsGetTheSame) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  for (int round = 0; round < 8; ++round) {
    const StepRingShape shape = random_shape(random);
    const std::chrono::microseconds spin(random.integer(0, 1) * 50);
    StepRingWriter writer(shape, spin);
    std::vector<std::future<bool>> readers;
    for (int i = 0; i < shape.num_readers; ++i)
      readers.push_back(std::async(
          std::launch::async, [&, i] { return gets_all(reader_of(writer, i, spin), seed, 200, shape); }));
    try {
      for (int64_t i = 0; i < 200; ++i) writer.write(message_of(seed, i, shape), kPatience);
      EXPECT_TRUE(writer.wait_until_taken(kPatience));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    writer.close();
    for (auto& reader : readers)
      EXPECT_TRUE(reader.get()) << shape.num_readers << " readers, " << shape.num_slots << " slots of "
                                << shape.slot_bytes << ", seed " << seed;
    if (HasFailure()) return;
  }
}

TEST(Hidden7_1_StepRing, ProcessesGetTheSame) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  const StepRingShape shape = random_shape(random);
  StepRingWriter writer(shape, 0us);
  std::vector<pid_t> children;
  for (int i = 0; i < shape.num_readers; ++i)
    if (children.emplace_back(::fork()) == 0) {
      try {
        ::_exit(gets_all(reader_of(writer, i, 0us), seed, 150, shape) ? 0 : 1);
      } catch (...) {  // the child does not go on as a second test program
        ::_exit(2);
      }
    }
  for (int64_t i = 0; i < 150; ++i) writer.write(message_of(seed, i, shape), kPatience);
  EXPECT_TRUE(writer.wait_until_taken(kPatience));
  writer.close();
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "seed " << seed;
  }
}

// A full ring, whichever reader it is that takes nothing; then the end, which loses nothing that was written.
TEST(Hidden7_1_StepRing, AFullRingHoldsAsManyAsItHasSlots) {
  Random random(fresh_seed());
  for (int round = 0; round < 20; ++round) {
    const StepRingShape shape = random_shape(random);
    const auto idle = static_cast<int>(random.integer(0, shape.num_readers - 1));
    StepRingWriter writer(shape, 0us);
    std::vector<StepRingReader> readers;
    for (int i = 0; i < shape.num_readers; ++i) readers.push_back(reader_of(writer, i, 0us));
    std::string message;
    for (int i = 0; i < shape.num_slots; ++i) {
      writer.write("x", kPatience);
      for (int reader = 0; reader < shape.num_readers; ++reader)
        if (reader != idle) {
          EXPECT_EQ(readers[static_cast<size_t>(reader)].read(message, 0ms), Read::message);
        }
    }
    EXPECT_THROW(writer.write("y", 5ms), Error);
    EXPECT_THROW(writer.write("y", kPatience), Error);
    for (int i = 0; i < shape.num_slots; ++i)
      EXPECT_EQ(readers[static_cast<size_t>(idle)].read(message, 0ms), Read::message);
    for (StepRingReader& reader : readers) EXPECT_EQ(reader.read(message, 0ms), Read::closed);
  }
}

}  // namespace
}  // namespace ladder
