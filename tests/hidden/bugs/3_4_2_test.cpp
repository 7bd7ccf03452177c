// Bug 3.4#2: reset_prefix_cache() does not come to the last block of the cache.
#include <gtest/gtest.h>

#include <numeric>

#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {
namespace {

TEST(Bug3_4_2, ResetForgetsEveryBlockOfAFullCache) {
  constexpr int64_t kBlocks = 4, kBlockSize = 4;
  BlockManager blocks(
      kBlocks, kBlockSize,
      std::make_unique<HashPrefixIndex>(kBlocks, kBlockSize, std::make_unique<Sha256BlockHasher>(1)));
  std::vector<int32_t> tokens(kBlocks * kBlockSize);
  std::iota(tokens.begin(), tokens.end(), 1);
  PrefixKey key;
  BlockTable table;
  ASSERT_TRUE(blocks.append(table, std::ssize(tokens)));
  blocks.cache(key, tokens, table, std::ssize(tokens));
  blocks.free(table);
  ASSERT_EQ(blocks.num_cached_blocks(), kBlocks);
  EXPECT_TRUE(blocks.reset_prefix_cache());
  EXPECT_EQ(blocks.num_cached_blocks(), 0);
}

}  // namespace
}  // namespace ladder
