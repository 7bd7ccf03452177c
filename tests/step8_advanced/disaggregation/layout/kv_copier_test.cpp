// Keys and values between caches on a GPU and packed bytes: what the host does with the same caches, by every rung.
#include <gtest/gtest.h>

#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "step8_advanced/disaggregation/layout/kv_copier.h"
#include "step8_advanced/disaggregation/layout/kv_move.h"
#include "tests/step8_advanced/disaggregation/layout/played_engine.h"
#include "tests/support/devices.h"

namespace ladder {
namespace {

using testing::CacheKind;
using testing::first_difference;
using testing::layout_of;
using testing::PlayedEngine;
using testing::Random;

constexpr Device kGpu{DeviceType::cuda, 0};

// All bytes of the caches, those around the heads too.
void copy_caches(const PlayedEngine& from, const PlayedEngine& to) {
  for (size_t rank = 0; rank < from.ranks.size(); ++rank)
    for (size_t layer = 0; layer < from.ranks[rank].caches.size(); ++layer) {
      const KvCacheView &a = from.ranks[rank].caches[layer], &b = to.ranks[rank].caches[layer];
      const std::pair<const Tensor*, const Tensor*> tensors[] = {
          {&a.k, &b.k}, {&a.v, &b.v}, {&a.k_scales, &b.k_scales}, {&a.v_scales, &b.v_scales}};
      for (const auto& [one, other] : tensors) {
        if (!one->defined()) continue;
        const int64_t bytes =
            (one->dim(0) * one->stride(0) - (one->stride(1) - one->dim(2) * one->stride(2))) *
            dtype_size(one->dtype());
        device_copy(other->raw(), other->device(), one->raw(), one->device(), bytes);
      }
    }
}

struct OnGpu {
  std::shared_ptr<void> memory;
  KvBody body;

  explicit OnGpu(size_t size) : memory(device_allocate(kGpu, static_cast<int64_t>(size) + 64)) {
    body = {static_cast<std::byte*>(memory.get()), size, kGpu};
  }
  explicit OnGpu(std::span<const std::byte> bytes, size_t offset = 0) : OnGpu(bytes.size()) {
    body.data += offset;
    device_copy(body.data, kGpu, bytes.data(), {}, static_cast<int64_t>(bytes.size()));
  }
  std::vector<std::byte> on_host() const {
    std::vector<std::byte> bytes(body.size);
    device_copy(bytes.data(), {}, body.data, kGpu, static_cast<int64_t>(bytes.size()));
    return bytes;
  }
};

class KvCopierOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  }

  static void run(const Variant<KvMoveArgs>& rung, KvMoveArgs args) {
    std::vector<std::byte> tables(kv_tables_size(args));
    write_kv_tables(args, tables.data());
    const OnGpu on_gpu(tables);
    args.tables = on_gpu.body.data;
    rung.run(*testing::cuda_context(), args);
    device_synchronize(kGpu, testing::cuda_context()->stream);
  }
};

// A rank's caches of all layers, packed together.
struct Case {
  KvLayout from, to;
  int64_t first = 0, count = 0;
  CacheKind kind = CacheKind::dense;
};

Case random_case(Random& random) {
  Case result;
  const int ranks = random.one_of<int>({1, 2, 4});
  result.from = layout_of(4, ranks, {3});
  result.from.k_dim = random.one_of<int64_t>({6, 8, 64, 128, 1, 33});
  result.from.v_dim = random.one_of<int64_t>({10, 64, 128, 4, 2});
  result.from.kept_as =
      random.one_of<KvCacheDType>({KvCacheDType::automatic, KvCacheDType::automatic, KvCacheDType::fp8,
                                   KvCacheDType::int8, KvCacheDType::int4});
  result.from.dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
  result.from.block_size = random.one_of<int64_t>({1, 4, 16});
  result.to = result.from;
  result.to.block_size = random.one_of<int64_t>({3, 16, 32});
  result.to.dtype = random.one_of<DType>({DType::f32, DType::bf16, DType::f16});
  result.first = random.integer(0, 40);
  result.count = random.integer(1, 300);
  if (result.from.kept_as == KvCacheDType::automatic && random.integer(0, 2) == 0)
    result.kind = CacheKind::wide;
  return result;
}

TEST_F(KvCopierOnGpu, DoesWhatTheHostDoesByEveryRung) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Case one = random_case(random);
    SCOPED_TRACE(layout_text(one.from) + " -> " + layout_text(one.to));
    const int64_t end = one.first + one.count;
    PlayedEngine producer(one.from, end, random, one.kind);
    producer.fill(0, end);
    if (one.from.kept_as == KvCacheDType::automatic &&
        one.kind == CacheKind::dense)  // numbers that are rounded
      for (const RankKvCaches& rank : producer.ranks)
        for (const KvCacheView& cache : rank.caches)
          for (const Tensor& tensor : {cache.k, cache.v})
            tensor.copy_from(random.normal(tensor.shape(), tensor.dtype()));
    PlayedEngine on_gpu(one.from, end, random, one.kind, kGpu);
    on_gpu.block_table = producer.block_table;
    copy_caches(producer, on_gpu);
    for (const KvRead& read : kv_reads(one.from, one.to)) {
      const KvPart part{read.first_layer, read.first_head, read.num_heads, one.first, one.count};
      const RankKvCaches &of_host = producer.ranks.at(static_cast<size_t>(read.from_rank)),
                         &of_gpu = on_gpu.ranks.at(static_cast<size_t>(read.from_rank));
      std::vector<std::byte> expected(static_cast<size_t>(read.num_layers * packed_size(one.from, part)));
      pack_kv(one.from, of_host, producer.block_table, part, expected, read.num_layers);
      for (const Variant<KvMoveArgs>& rung : kv_move_variants()) {
        if (rung.device != DeviceType::cuda) continue;
        const OnGpu packed(expected.size());
        run(rung, kv_move_args(one.from, of_gpu, on_gpu.block_table, part, read.num_layers, packed.body,
                               one.from.dtype, "pack_kv"));
        ASSERT_EQ(packed.on_host(), expected) << rung.name;
      }
      KvCopier copier;
      std::vector<std::byte> on_host(expected.size());
      const std::vector<uint32_t> checksums =
          copier.pack(one.from, of_gpu, on_gpu.block_table, part, read.num_layers, std::span(on_host));
      ASSERT_EQ(on_host, expected) << "into the host's memory";
      ASSERT_EQ(checksums, kv_checksums_on_host(std::span(expected), read.num_layers));

      // And back, into an engine of another kind.
      PlayedEngine reader(one.to, end, random, one.kind), wanted(one.to, end, random, one.kind);
      wanted.block_table = reader.block_table;
      const RankKvCaches& into = reader.ranks.at(static_cast<size_t>(read.to_rank));
      const auto check = [&](const std::string& what, const auto& unpack) {
        PlayedEngine gpu_reader(one.to, end, random, one.kind, kGpu), seen(one.to, end, random, one.kind);
        gpu_reader.block_table = seen.block_table = reader.block_table;
        unpack(gpu_reader.ranks.at(static_cast<size_t>(read.to_rank)));
        copy_caches(gpu_reader, seen);
        EXPECT_EQ(first_difference(seen, reader), "") << what;
      };
      unpack_kv(one.to, into, reader.block_table, part, expected, one.from.dtype, read.num_layers);
      const OnGpu packed(expected);
      for (const Variant<KvMoveArgs>& rung : kv_move_variants()) {
        if (rung.device != DeviceType::cuda) continue;
        check(std::string(rung.name), [&](const RankKvCaches& caches) {
          const KvMoveArgs args = kv_move_args(one.to, caches, reader.block_table, part, read.num_layers,
                                               packed.body, one.from.dtype, "unpack_kv");
          if (rung.supports == nullptr || rung.supports(args))
            run(rung, args);
          else
            EXPECT_TRUE(copier.unpack(one.to, caches, reader.block_table, part, read.num_layers, packed.body,
                                      one.from.dtype, checksums));
        });
      }
      check("from the host's memory", [&](const RankKvCaches& caches) {
        EXPECT_TRUE(copier.unpack(one.to, caches, reader.block_table, part, read.num_layers,
                                  std::span(on_host), one.from.dtype, checksums));
      });
      if (HasFailure()) return;
    }
  }
}

TEST_F(KvCopierOnGpu, CopiesNothingThatHasAnotherChecksum) {
  Random random;
  for (const DType to_dtype : {DType::bf16, DType::f32}) {
    KvLayout from = layout_of(4, 1, {3});
    from.dtype = DType::bf16;
    KvLayout to = from;
    to.dtype = to_dtype;
    PlayedEngine producer(from, 40, random);
    producer.fill(0, 40);
    const KvPart part{0, 0, 4, 0, 40};
    std::vector<std::byte> bytes(static_cast<size_t>(3 * packed_size(from, part)));
    KvCopier copier;
    std::vector<uint32_t> checksums =
        copier.pack(from, producer.ranks[0], producer.block_table, part, 3, std::span(bytes));
    const PlayedEngine reader(to, 40, random, CacheKind::dense, kGpu);
    PlayedEngine seen(to, 40, random), untouched(to, 40, random);
    untouched.block_table = seen.block_table = reader.block_table;
    const OnGpu packed(bytes);
    const auto unpack = [&](const KvBody& body) {
      return copier.unpack(to, reader.ranks[0], reader.block_table, part, 3, body, from.dtype, checksums);
    };
    for (size_t wrong = 0; wrong < 3; ++wrong) {
      checksums[wrong] ^= 1;
      EXPECT_FALSE(unpack(packed.body));
      EXPECT_FALSE(unpack(std::span(bytes)));
      checksums[wrong] ^= 1;
    }
    copy_caches(reader, seen);
    EXPECT_EQ(first_difference(seen, untouched), "") << dtype_name(to_dtype);
    EXPECT_TRUE(unpack(packed.body));
    copy_caches(reader, seen);
    EXPECT_NE(first_difference(seen, untouched), "");
  }
}

// A whole message of Llama-3.1-8B, as the engine has it.
TEST_F(KvCopierOnGpu, TakesLargeMessages) {
  Random random;
  KvLayout layout = layout_of(8, 1, {2});
  layout.k_dim = layout.v_dim = 128;
  layout.dtype = DType::bf16;
  layout.block_size = 16;
  PlayedEngine producer(layout, 4096, random), on_gpu(layout, 4096, random, CacheKind::dense, kGpu);
  producer.fill(0, 4096);
  on_gpu.block_table = producer.block_table;
  copy_caches(producer, on_gpu);
  const KvPart part{0, 0, 8, 1, 4095};
  std::vector<std::byte> expected(static_cast<size_t>(2 * packed_size(layout, part)));
  pack_kv(layout, producer.ranks[0], producer.block_table, part, expected, 2);
  KvCopier copier;
  const OnGpu packed(expected.size());
  const std::vector<uint32_t> checksums =
      copier.pack(layout, on_gpu.ranks[0], on_gpu.block_table, part, 2, packed.body);
  EXPECT_EQ(packed.on_host(), expected);
  EXPECT_EQ(checksums, kv_checksums_on_host(std::span(expected), 2));
  EXPECT_EQ(copier.checksums(packed.body, 2), checksums);
}

TEST_F(KvCopierOnGpu, ChecksumsAreTheHosts) {
  Random random;
  SCOPED_TRACE(random.describe());
  KvCopier copier;
  std::vector<size_t> sizes = {1,      2,      3,      15,      16,      17,        255,
                               256,    257,    272,    511,     512,     4096,      8192,
                               131071, 131072, 131073, 131'088, 262'144, 1'000'000, 9'000'016};
  while (sizes.size() < 60) sizes.push_back(static_cast<size_t>(random.integer(1, 400'000)));
  for (const size_t size : sizes) {
    const int64_t count = size > 1'000'000 ? 2 : random.integer(1, 5);
    std::vector<std::byte> bytes(size * static_cast<size_t>(count));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.engine()());
    std::vector<uint32_t> expected;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i)
      expected.push_back(kv_checksum(std::span(bytes).subspan(i * size, size)));
    for (const size_t offset : {0, 16, 1})
      EXPECT_EQ(copier.checksums(OnGpu(bytes, offset).body, count), expected)
          << count << " of " << size << " bytes, at " << offset;
  }
}

TEST_F(KvCopierOnGpu, SeesAFlippedBit) {
  std::vector<std::byte> bytes(500'000, std::byte{3});
  KvCopier copier;
  const uint32_t whole = copier.checksums(OnGpu(bytes).body, 1).at(0);
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 123'457) {
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_NE(copier.checksums(OnGpu(bytes).body, 1).at(0), whole) << bit;
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

TEST_F(KvCopierOnGpu, RefusesABodyOnAnotherGpu) {
  Random random;
  const KvLayout layout = layout_of(2, 1, {1});
  const PlayedEngine engine(layout, 8, random, CacheKind::dense, kGpu);
  const KvPart part{0, 0, 2, 0, 8};
  OnGpu packed(static_cast<size_t>(packed_size(layout, part)));
  packed.body.device.index = 1;  // so it says
  KvCopier copier;
  EXPECT_THROW(copier.pack(layout, engine.ranks[0], engine.block_table, part, 1, packed.body), Error);
  EXPECT_THROW(
      {
        std::vector<std::byte> on_host(packed.body.size);
        pack_kv(layout, engine.ranks[0], engine.block_table, part, on_host);
      },
      Error);
}

}  // namespace
}  // namespace ladder
