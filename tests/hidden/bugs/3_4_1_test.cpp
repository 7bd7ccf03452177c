// Bug 3.4#1: the root's salt and adapter are compared as one string where hashes are equal.
#include <gtest/gtest.h>

#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {
namespace {

class CollidingHasher final : public BlockHasher {
 public:
  BlockHash root(std::string_view, std::string_view) override { return {}; }
  BlockHash block(const BlockHash&, std::span<const int32_t>) override { return {}; }
};

TEST(Bug3_4_1, SaltAndAdapterAreComparedEachByItself) {
  HashPrefixIndex index(8, 4, std::make_unique<CollidingHasher>());
  const std::vector<int32_t> tokens = {1, 2, 3, 4}, table = {5};
  PrefixKey owner, other;
  owner.salt = "team-a";
  other.salt = "team-", other.adapter = "a";
  index.insert(owner, tokens, table, 1);
  std::vector<int32_t> found;
  index.match(other, tokens, 1, found);
  EXPECT_TRUE(found.empty());
  index.match(owner, tokens, 1, found);
  EXPECT_EQ(found, table);
}

}  // namespace
}  // namespace ladder
