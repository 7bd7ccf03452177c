// Bodies that are shorter on the way: as they were, from every dtype that keys and values are kept in; and what hostile bytes do.
#include "step8_advanced/disaggregation/transport/kv_compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "step1_layers/core/error.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::HasSubstr;

constexpr KvBodyForm kForms[] = {KvBodyForm::zstd, KvBodyForm::zstd_of_2_bytes, KvBodyForm::zstd_of_4_bytes};

Bytes bytes_of(const Tensor& tensor) {
  const auto* const begin = static_cast<const std::byte*>(tensor.raw());
  return Bytes(begin, begin + tensor.nbytes());
}
Bytes noise(testing::Random& random, size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.integer(0, 255));
  return bytes;
}

double ratio(const Bytes& body, KvBodyForm form) {
  KvBodyPacker packer;
  KvBodyUnpacker unpacker;
  KvBodyCounts counts;
  const KvPackedBody packed = packer.pack(body, form, counts);
  EXPECT_TRUE(packed.form == form || packed.bytes.data() == body.data());
  EXPECT_EQ(counts.num_bytes, std::ssize(body));
  EXPECT_EQ(counts.num_packed_bytes, std::ssize(packed.bytes));
  Bytes back(body.size());
  unpacker.receive({0, body.size(), packed.form, packed.packed_size()}, std::span(back),
                   [&](std::span<std::byte> to) {
                     ASSERT_EQ(to.size(), packed.bytes.size());
                     std::ranges::copy(packed.bytes, to.begin());
                   });
  EXPECT_TRUE(back == body) << "form " << static_cast<int>(form);
  return static_cast<double>(body.size()) / static_cast<double>(packed.bytes.size());
}

TEST(Task8_7_Compression, NumbersAreShorterWhereTheirBytesAreToldApart) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  const auto numbers = [&](DType dtype) { return bytes_of(random.normal({8, 100, 128}, dtype)); };
  const Bytes bf16 = numbers(DType::bf16), f16 = numbers(DType::f16), f32 = numbers(DType::f32);
  EXPECT_GT(ratio(bf16, KvBodyForm::zstd_of_2_bytes), 1.4);
  EXPECT_GT(ratio(bf16, KvBodyForm::zstd_of_2_bytes), ratio(bf16, KvBodyForm::zstd));
  EXPECT_GT(ratio(f16, KvBodyForm::zstd_of_2_bytes), 1.1);
  EXPECT_GT(ratio(f32, KvBodyForm::zstd_of_4_bytes), 1.15);
}

TEST(Task8_7_Compression, WhatCannotBeShortenedTravelsAsItIs) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  KvBodyPacker packer;
  for (const size_t size : {4096, 4097, 100'003, 1 << 18})
    for (const KvBodyForm form : kForms) {
      const Bytes body = noise(random, size);
      KvBodyCounts counts;
      const KvPackedBody packed = packer.pack(body, form, counts);
      EXPECT_EQ(packed.form, KvBodyForm::plain) << size;
      EXPECT_EQ(packed.bytes.data(), body.data()) << size;
      EXPECT_EQ(ratio(body, form), 1.0);
    }
}

TEST(Task8_7_Compression, EverySizeComesBack) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const KvBodyForm form : kForms)
    for (int i = 0; i < 30; ++i) {
      Bytes body = noise(random, static_cast<size_t>(random.integer(4096, 40'000)));
      for (size_t at = 0; at < body.size(); at += static_cast<size_t>(random.integer(1, 4))) body[at] = {};
      ratio(body, form);
    }
}

// A few bytes that claim to be many more than their message says: the room for the message is all that is filled.
TEST(Task8_7_Compression, WhatBecomesLargerThanItsMessageIsAnError) {
  KvBodyPacker packer;
  KvBodyCounts counts;
  for (const KvBodyForm form : kForms) {
    const KvPackedBody bomb = packer.pack(Bytes(4 << 20), form, counts);
    ASSERT_EQ(bomb.form, form);
    ASSERT_LT(bomb.bytes.size(), 2000u);
    KvBodyUnpacker unpacker;
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}}) {
      Bytes room(size + 64, std::byte{0x5a});
      EXPECT_THROW(unpacker.unpack(form, bomb.bytes, std::span(room).first(size)), KvChannelError);
      EXPECT_EQ(Bytes(room.end() - 64, room.end()), Bytes(64, std::byte{0x5a}))
          << "behind the message's room";
    }
    Bytes larger((4 << 20) + 1);
    EXPECT_THROW(unpacker.unpack(form, bomb.bytes, larger), KvChannelError) << "fewer than its message says";
  }
}

TEST(Task8_7_Compression, ChangedBytesAreAnErrorOrOfTheSameSize) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  KvBodyPacker packer;
  KvBodyUnpacker unpacker;
  KvBodyCounts counts;
  const Bytes body = bytes_of(random.normal({1, 40, 128}, DType::bf16));
  for (const KvBodyForm form : kForms) {
    const KvPackedBody packed = packer.pack(body, form, counts);
    ASSERT_EQ(packed.form, form);
    const Bytes good(packed.bytes.begin(), packed.bytes.end());
    Bytes back(body.size());
    for (int round = 0; round < 300; ++round) {
      Bytes bad = good;
      if (round % 3 == 0) bad.resize(static_cast<size_t>(random.integer(0, std::ssize(bad) - 1)));
      if (round % 3 == 1) bad = noise(random, bad.size());
      if (round % 3 == 2)
        for (int i = 0; i < 3; ++i)
          bad[static_cast<size_t>(random.integer(0, std::ssize(bad) - 1))] =
              static_cast<std::byte>(random.integer(0, 255));
      try {
        unpacker.unpack(form, bad, back);
        EXPECT_EQ(round % 3, 2) << "neither a part nor noise is a body";
      } catch (const KvChannelError&) {
      }
    }
    unpacker.unpack(form, good, back);
    EXPECT_TRUE(back == body) << "after what was wrong";
  }
}

}  // namespace
}  // namespace ladder
