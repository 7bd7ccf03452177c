#include "step4_runner/kv_cache_piece.h"

#include <gtest/gtest.h>

#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_size.h"
#include "tests/support/model_devices.h"

namespace ladder {
namespace {

// A layer of numbers, and one of codes, which has scales too.
std::vector<KvCacheSpec> two_layers() {
  KvCacheSpec numbers, codes;
  numbers.num_kv_heads = 3;
  numbers.k_dim = 5;
  numbers.v_dim = 7;
  codes = numbers;
  codes.kept_as = KvCacheDType::int4;
  return {numbers, codes};
}

std::vector<Tensor> tensors_of(const std::vector<KvCacheView>& caches) {
  std::vector<Tensor> tensors;
  for (const KvCacheView& cache : caches)
    for (const Tensor& tensor : {cache.k, cache.v, cache.k_scales, cache.v_scales})
      if (tensor.defined()) tensors.push_back(tensor);
  return tensors;
}

// Each begins behind the one before, on a multiple of kKvAlignment.
void expect_one_behind_the_other(const std::vector<KvCacheView>& caches, int64_t size) {
  const std::vector<Tensor> tensors = tensors_of(caches);
  ASSERT_EQ(tensors.size(), 6u);
  const char* const begin = static_cast<const char*>(tensors[0].raw());
  int64_t end = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t at = static_cast<const char*>(tensor.raw()) - begin;
    EXPECT_EQ(at, (end + kKvAlignment - 1) / kKvAlignment * kKvAlignment);
    end = at + tensor.nbytes();
  }
  EXPECT_LE(end, size);
}

TEST(KvCachePiece, HasRoomForAllLayersAndNoMore) {
  const std::vector<KvCacheSpec> specs = two_layers();
  const int64_t size = kv_piece_bytes(specs, 9, 4);
  EXPECT_EQ(size, kKvPieceBlock);
  EXPECT_GT(kv_piece_bytes(specs, 9000, 4), kKvPieceBlock);
  EXPECT_EQ(kv_piece_bytes(specs, 9000, 4) % kKvPieceBlock, 0);
  const std::shared_ptr<void> memory = device_allocate({}, size);
  auto caches = kv_caches_in(memory, size, specs, 9, 4, {});
  expect_one_behind_the_other(caches, size);
  // The same shapes as where each tensor has memory of its own.
  const std::vector<Tensor> here = tensors_of(caches),
                            alone = tensors_of(allocate_kv_caches(specs, 9, 4, {}));
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(here[i].shape(), alone[i].shape());
    EXPECT_EQ(here[i].dtype(), alone[i].dtype());
  }
  EXPECT_EQ(caches[1].kept_as, KvCacheDType::int4);

  const Tensor& last = here.back();
  const int64_t end = static_cast<char*>(last.raw()) - static_cast<char*>(memory.get()) + last.nbytes();
  EXPECT_NO_THROW(kv_caches_in(memory, end, specs, 9, 4, {}));
  EXPECT_THROW(kv_caches_in(memory, end - 1, specs, 9, 4, {}), Error);
  EXPECT_THROW(kv_caches_in(memory, 0, specs, 9, 4, {}), Error);
}

TEST(KvCachePiece, HoldsAllCachesOfAGpu) {
  ladder::testing::need_device(DeviceType::cuda);
  if (IsSkipped()) return;
  const std::vector<KvCacheSpec> specs = two_layers();
  expect_one_behind_the_other(allocate_kv_caches(specs, 9, 4, {DeviceType::cuda, 0}),
                              kv_piece_bytes(specs, 9, 4));
}

}  // namespace
}  // namespace ladder
