// Task 8.7.layout: keys and values of one engine in the blocks of another: all that was wanted, nothing else touched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/step8_advanced/disaggregation/layout/played_engine.h"

namespace ladder {
namespace {

using testing::CacheKind;
using testing::divides;
using testing::error_of;
using testing::first_difference;
using ::testing::HasSubstr;
using testing::layout_of;
using testing::PlayedEngine;
using testing::Random;

const std::vector<std::vector<int64_t>> kStages = {{4}, {2, 4}, {1, 4}, {1, 3, 4}};

// What lies in `to` afterwards is what would lie there if it had computed these tokens itself.
void expect_handed_over(const KvLayout& from, const KvLayout& to, Random& random, CacheKind kind) {
  SCOPED_TRACE(layout_text(from) + " -> " + layout_text(to));
  const int64_t first = random.integer(0, 40), count = random.integer(1, 50);
  PlayedEngine producer(from, first + count, random, kind), consumer(to, first + count, random, kind);
  producer.fill(0, first + count);
  PlayedEngine expected(to, first + count, random, kind);
  expected.block_table = consumer.block_table;
  expected.fill(first, count);
  consumer.take(producer, first, count, random);
  EXPECT_EQ(first_difference(consumer, expected), "") << "tokens " << first << " + " << count;
}

TEST(Task8_7_Layout_Pack, AnyRanksToAnyOthers) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t heads : {1, 2, 3, 8})
    for (const int from : {1, 2, 3, 4, 6, 8})
      for (const int to : {1, 2, 3, 4, 6, 8})
        if (divides(heads, from) && divides(heads, to))
          for (int repeat = 0; repeat < 4; ++repeat) {
            KvLayout a = layout_of(heads, from, random.one_of(kStages)),
                     b = layout_of(heads, to, random.one_of(kStages));
            a.block_size = random.one_of<int64_t>({1, 4, 16});
            b.block_size = random.one_of<int64_t>({3, 16, 32});
            if (random.integer(0, 1) == 1) std::swap(a.block_size, b.block_size);
            a.dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
            b.dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
            a.kept_as = b.kept_as =
                random.one_of<KvCacheDType>({KvCacheDType::automatic, KvCacheDType::automatic,
                                             KvCacheDType::fp8, KvCacheDType::int8, KvCacheDType::int4});
            a.k_dim = b.k_dim = random.integer(1, 9);
            a.v_dim = b.v_dim = random.integer(1, 9);
            expect_handed_over(a, b, random, CacheKind::dense);
            if (HasFailure()) return;
          }
}

TEST(Task8_7_Layout_Pack, AnyBlockSizes) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t from : {1, 4, 16})
    for (const int64_t to : {3, 16, 32})
      for (const bool back : {false, true})
        for (const int ranks : {1, 2}) {  // with two ranks each has one head, and its tokens are dense
          KvLayout a = layout_of(2, ranks), b = layout_of(2, ranks);
          a.block_size = back ? to : from;
          b.block_size = back ? from : to;
          for (int repeat = 0; repeat < 4; ++repeat) expect_handed_over(a, b, random, CacheKind::dense);
          if (HasFailure()) return;
        }
}

TEST(Task8_7_Layout_Pack, AnyStages) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto& from : kStages)
    for (const auto& to : kStages)
      expect_handed_over(layout_of(2, 4, from), layout_of(2, 1, to), random, CacheKind::dense);
}

// Rows of these many bytes are copied by code of their own.
TEST(Task8_7_Layout_Pack, RowsOfEverySize) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t dim : {2, 32, 33, 64, 128, 256}) {
    KvLayout layout = layout_of(2, 1, {1});
    layout.k_dim = dim;
    layout.v_dim = 2 * dim;
    expect_handed_over(layout, layout, random, CacheKind::dense);
  }
}

TEST(Task8_7_Layout_Pack, ReadsStridesFromTheCache) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int ranks : {1, 2}) {
    expect_handed_over(layout_of(2, ranks), layout_of(2, 1), random, CacheKind::wide);
    expect_handed_over(layout_of(2, 1), layout_of(2, ranks), random, CacheKind::wide);
  }
}

TEST(Task8_7_Layout_Pack, NeighbouringBlocksBecomeOneCopyWithTheSameBytes) {
  Random random;
  SCOPED_TRACE(random.describe());
  const KvLayout layout = layout_of(1, 1, {1});
  PlayedEngine producer(layout, 40, random), consumer(layout, 40, random), expected(layout, 40, random);
  producer.block_table = {2, 3, 4, 8, 7, 6, 5, 9, 10, 11, 0, 1, 12};
  consumer.block_table = {0, 2, 4, 5, 6, 7, 8, 12, 9, 10, 11, 1, 3};
  expected.block_table = consumer.block_table;
  producer.fill(0, 40);
  expected.fill(3, 35);
  consumer.take_part(producer, {.num_layers = 1, .num_heads = 1}, {0, 0, 1, 3, 35});
  EXPECT_EQ(first_difference(consumer, expected), "");
}

TEST(Task8_7_Layout_Pack, IsInTheOrderThatTheHeaderSays) {
  Random random;
  KvLayout layout = layout_of(2, 1, {1});
  layout.k_dim = 1;
  layout.v_dim = 2;
  layout.kept_as = KvCacheDType::int8;
  PlayedEngine engine(layout, 8, random);
  engine.block_table = {1, 0};
  const KvCacheView& cache = engine.ranks[0].caches[0];
  // Tokens 3 and 4, in the last place of block 1 and the first of block 0.
  for (const auto& [block, offset, token] : {std::tuple{1, 3, 3}, std::tuple{0, 0, 4}})
    for (int head = 0; head < 2; ++head) {
      const auto base = static_cast<uint8_t>(100 * head + 10 * token);
      cache.k.at<uint8_t>({block, offset, head, 0}) = base;
      cache.v.at<uint8_t>({block, offset, head, 0}) = base + 1;
      cache.v.at<uint8_t>({block, offset, head, 1}) = base + 2;
      for (int i = 0; i < 2; ++i) {
        cache.k_scales.at<float>({block, offset, head, i}) = static_cast<float>(base + 3 + i);
        cache.v_scales.at<float>({block, offset, head, i}) = static_cast<float>(base + 5 + i);
      }
    }
  const KvPart part{0, 0, 2, 3, 2};
  std::vector<std::byte> packed(static_cast<size_t>(packed_size(layout, part)));
  ASSERT_EQ(packed.size(), 4 + 8 + 2 * 4 * 8u);
  pack_kv(layout, engine.ranks[0], engine.block_table, part, packed);
  std::vector<int> codes;
  for (size_t i = 0; i < 12; ++i) codes.push_back(static_cast<int>(packed[i]));
  EXPECT_THAT(codes, ::testing::ElementsAre(30, 40, 130, 140, 31, 32, 41, 42, 131, 132, 141, 142));
  std::vector<float> scales(16);
  std::memcpy(scales.data(), packed.data() + 12, 64);
  EXPECT_THAT(scales,
              ::testing::ElementsAre(33, 34, 43, 44, 133, 134, 143, 144, 35, 36, 45, 46, 135, 136, 145, 146));
}

TEST(Task8_7_Layout_Pack, RoundsFloatsOfAnotherDtype) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType from : {DType::f32, DType::bf16, DType::f16})
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
      KvLayout a = layout_of(2, 1, {1}), b = a;
      a.dtype = from;
      b.dtype = to;
      PlayedEngine producer(a, 12, random), consumer(b, 12, random);
      consumer.block_table = producer.block_table;
      for (const Tensor& tensor : {producer.ranks[0].caches[0].k, producer.ranks[0].caches[0].v})
        tensor.copy_from(random.normal(tensor.shape(), from));
      consumer.take(producer, 0, 12, random);
      const int64_t tokens = 12;
      for (const bool keys : {true, false}) {
        const KvCacheView &mine = consumer.ranks[0].caches[0], &theirs = producer.ranks[0].caches[0];
        for (int64_t token = 0; token < tokens; ++token) {
          const int32_t block = producer.block_table[static_cast<size_t>(token / 4)];
          const auto token_of = [&](const KvCacheView& cache) {
            return (keys ? cache.k : cache.v).select(0, block).select(0, token % 4).clone();
          };
          EXPECT_TRUE(testing::bitwise_equal(token_of(mine), token_of(theirs).to(to)));
        }
      }
    }
}

TEST(Task8_7_Layout_Pack, CopiesToAndFromADevice) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Device device{DeviceType::fake, 0};
  KvLayout layout = layout_of(2, 1, {1});
  PlayedEngine producer(layout, 20, random, CacheKind::wide, device),
      consumer(layout, 20, random, CacheKind::dense, device), expected(layout, 20, random);
  producer.fill(0, 20);
  expected.block_table = consumer.block_table;
  expected.fill(3, 14);
  consumer.take(producer, 3, 14, random);
  EXPECT_EQ(first_difference(consumer, expected), "");
}

TEST(Task8_7_Layout_Pack, RefusesWhatIsNotThere) {
  Random random;
  const KvLayout layout = layout_of(8, 4, {2, 4});
  PlayedEngine engine(layout, 20, random);     // blocks of 4, and three more
  const RankKvCaches& rank = engine.ranks[5];  // layers 2 and 3, heads 2 and 3
  const auto refusal = [&](KvPart part, int64_t extra_bytes = 0, std::span<const int32_t> table = {}) {
    if (table.empty()) table = engine.block_table;
    std::vector<std::byte> packed(static_cast<size_t>(packed_size(layout, part) % 100'000 + extra_bytes));
    const std::string packing = error_of([&] { pack_kv(layout, rank, table, part, packed); }),
                      unpacking = error_of([&] { unpack_kv(layout, rank, table, part, packed, DType::f32); });
    EXPECT_EQ(packing == "no error", unpacking == "no error") << packing << "; " << unpacking;
    return packing;
  };
  EXPECT_EQ(refusal({2, 2, 2, 5, 27}), "no error");
  EXPECT_THAT(refusal({1, 2, 2, 5, 27}), HasSubstr("layers 2 to 3"));
  EXPECT_THAT(refusal({4, 2, 2, 5, 27}), HasSubstr("not 4"));
  EXPECT_THAT(refusal({2, 1, 2, 5, 27}), HasSubstr("heads"));
  EXPECT_THAT(refusal({2, 3, 2, 5, 27}), HasSubstr("heads"));
  EXPECT_THAT(refusal({2, 2, 0, 5, 27}), HasSubstr("heads"));
  EXPECT_THAT(refusal({2, 2, 2, 5, 28}), HasSubstr("tokens"));
  EXPECT_THAT(refusal({2, 2, 2, -1, 3}), HasSubstr("tokens"));
  EXPECT_THAT(refusal({2, 2, 2, 5, 0}), HasSubstr("tokens"));
  EXPECT_THAT(refusal({2, 2, 2, INT64_MAX, 2}), HasSubstr("tokens"));
  EXPECT_THAT(refusal({2, 2, 2, 5, 27}, 1), HasSubstr("bytes"));
  for (const int32_t block : {-1, 8}) {
    const std::vector<int32_t> table = {0, block, 1};
    EXPECT_THAT(refusal({2, 2, 2, 5, 2}, 0, table), HasSubstr("block"));
    EXPECT_EQ(refusal({2, 2, 2, 8, 2}, 0, table), "no error") << "that block is not touched";
  }
}

}  // namespace
}  // namespace ladder
