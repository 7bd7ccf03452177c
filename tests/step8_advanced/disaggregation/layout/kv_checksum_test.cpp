#include "step8_advanced/disaggregation/layout/kv_checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

std::vector<std::byte> random_bytes(int64_t count, Random& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.integer(0, 255));
  return bytes;
}

// The vectors of RFC 3720, B.4, and the check value of the catalogues of CRCs.
TEST(KvChecksum, IsCrc32c) {
  const std::string_view digits = "123456789";
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  for (const auto checksum : {kv_checksum, kv_checksum_by_table}) {
    EXPECT_EQ(checksum(std::as_bytes(std::span(digits)), 0), 0xe3069283u);
    EXPECT_EQ(checksum(zeros, 0), 0x8a9136aau);
    EXPECT_EQ(checksum(ones, 0), 0x62a8ab43u);
    EXPECT_EQ(checksum({}, 0), 0u);
  }
}

TEST(KvChecksum, IsTheSameWithAndWithoutTheInstruction) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<std::byte> bytes = random_bytes(40'000, random);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const auto begin = static_cast<size_t>(random.integer(0, 20));
    const auto count = static_cast<size_t>(random.integer(0, repeat % 2 == 0 ? 100 : 39'980));
    const std::span<const std::byte> some = std::span(bytes).subspan(begin, count);
    EXPECT_EQ(kv_checksum(some, 7), kv_checksum_by_table(some, 7)) << begin << " + " << count;
  }
}

TEST(KvChecksum, OfPiecesIsThatOfTheWhole) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<std::byte> bytes = random_bytes(20'000, random);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto cut = static_cast<size_t>(random.integer(0, 20'000));
    const std::span<const std::byte> all = bytes;
    EXPECT_EQ(kv_checksum(all.subspan(cut), kv_checksum(all.first(cut))), kv_checksum(all)) << cut;
  }
}

TEST(KvChecksum, SeesEveryFlippedBit) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<std::byte> bytes = random_bytes(7'000, random);
  const uint32_t whole = kv_checksum(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 13) {
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_NE(kv_checksum(bytes), whole) << bit;
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

}  // namespace
}  // namespace ladder
