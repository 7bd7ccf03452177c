#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {
namespace {

using Ids = std::vector<int32_t>;
constexpr int64_t kBlockSize = 4;

Ids range(int32_t first, int32_t count) {
  Ids ids(count);
  for (int32_t i = 0; i < count; ++i) ids[i] = first + i;
  return ids;
}

BlockManager cached_manager(int64_t num_blocks, std::unique_ptr<BlockHasher> hasher = nullptr) {
  if (!hasher) hasher = std::make_unique<Sha256BlockHasher>(1);
  return BlockManager(num_blocks, kBlockSize,
                      std::make_unique<HashPrefixIndex>(num_blocks, kBlockSize, std::move(hasher)));
}

// One sequence's use of the manager.
struct User {
  Ids tokens;
  PrefixKey key;
  BlockTable table;

  explicit User(Ids ids, const std::string& salt = "", const std::string& adapter = "")
      : tokens(std::move(ids)) {
    key.salt = salt;
    key.adapter = adapter;
  }

  // Looks up, allocates, computes and caches; returns the cached tokens found.
  int64_t run(BlockManager& blocks) {
    BlockTable hit;
    blocks.find_prefix(key, tokens, hit);
    EXPECT_TRUE(blocks.allocate(table, hit, std::ssize(tokens)));
    blocks.cache(key, tokens, table, std::ssize(tokens));
    return std::ssize(hit) * blocks.block_size();
  }
};

int64_t hits(BlockManager& blocks, const Ids& tokens, const std::string& salt = "",
             const std::string& adapter = "") {
  User user(tokens, salt, adapter);
  BlockTable hit;
  blocks.find_prefix(user.key, user.tokens, hit);
  return std::ssize(hit) * blocks.block_size();
}

TEST(Task3_4_PrefixCache, FindsTheFullBlocksOfACommonPrefix) {
  BlockManager blocks = cached_manager(16);
  User first(range(1, 14));
  EXPECT_EQ(first.run(blocks), 0);
  EXPECT_EQ(blocks.num_cached_blocks(), 3) << "the partial block is not cached";
  EXPECT_FALSE(blocks.is_cached(first.table[3]));

  Ids tokens = range(1, 14);
  tokens[9] = 99;  // differs in the third block
  User second(tokens);
  EXPECT_EQ(second.run(blocks), 8);
  EXPECT_EQ(Ids(second.table.begin(), second.table.begin() + 2),
            Ids(first.table.begin(), first.table.begin() + 2));
  EXPECT_EQ(blocks.ref_count(first.table[0]), 2);
  EXPECT_EQ(blocks.ref_count(first.table[2]), 1);
}

TEST(Task3_4_PrefixCache, ABlockIsOnlyFoundAfterEverythingBeforeIt) {
  BlockManager blocks = cached_manager(16);
  User first(range(1, 12));
  first.run(blocks);
  Ids tokens = range(1, 12);
  tokens[0] = 99;  // blocks 1 and 2 hold the same tokens, after another past
  EXPECT_EQ(hits(blocks, tokens), 0);
  EXPECT_EQ(hits(blocks, range(5, 8)), 0);
}

// nano-vllm #144: all blocks were hits, no token was left, and a kernel was launched over nothing.
TEST(Task3_4_PrefixCache, AFullHitLeavesATokenToCompute) {
  BlockManager blocks = cached_manager(16);
  User first(range(1, 12));
  first.run(blocks);
  EXPECT_EQ(blocks.num_cached_blocks(), 3);
  EXPECT_EQ(hits(blocks, range(1, 12)), 8) << "12 tokens in 3 cached blocks: the last is computed again";
  EXPECT_EQ(hits(blocks, range(1, 13)), 12);
  EXPECT_EQ(hits(blocks, range(1, 4)), 0);
  EXPECT_EQ(hits(blocks, range(1, 1)), 0);
}

TEST(Task3_4_PrefixCache, OnlyBlocksThatAreComputedAreFound) {
  BlockManager blocks = cached_manager(16);
  User first(range(1, 13));
  ASSERT_TRUE(blocks.append(first.table, 13));
  EXPECT_EQ(hits(blocks, range(1, 13)), 0);
  blocks.cache(first.key, first.tokens, first.table, 7);
  EXPECT_EQ(hits(blocks, range(1, 13)), 4);
  blocks.cache(first.key, first.tokens, first.table, 12);
  EXPECT_EQ(hits(blocks, range(1, 13)), 12);
}

TEST(Task3_4_PrefixCache, FewerComputedTokensThanBeforeChangeNothing) {
  BlockManager blocks = cached_manager(8);
  User user(range(1, 16));
  ASSERT_TRUE(blocks.append(user.table, 16));
  blocks.cache(user.key, user.tokens, user.table, 12);
  blocks.cache(user.key, user.tokens, user.table, 4);
  EXPECT_EQ(user.key.num_indexed_blocks, 3);
  blocks.cache(user.key, user.tokens, user.table, 16);
  EXPECT_EQ(blocks.num_cached_blocks(), 4);
  EXPECT_EQ(hits(blocks, range(1, 17)), 16);
}

TEST(Task3_4_PrefixCache, AMatchReplacesTheBlocksOfTheListItIsGiven) {
  HashPrefixIndex index(4, kBlockSize, std::make_unique<Sha256BlockHasher>(1));
  PrefixKey key, other;
  index.insert(key, range(1, 8), Ids{0, 1}, 2);
  Ids found = {3};
  index.match(key, range(1, 8), 2, found);
  EXPECT_EQ(found, (Ids{0, 1}));
  index.match(other, range(50, 8), 2, found);
  EXPECT_EQ(found, Ids{});
}

TEST(Task3_4_PrefixCache, AKeyCountsNoBlocksAfterAMatchThatFindsNone) {
  HashPrefixIndex index(4, kBlockSize, std::make_unique<Sha256BlockHasher>(1));
  const Ids tokens = range(1, 8);
  PrefixKey key;
  index.insert(key, tokens, Ids{0, 1}, 2);
  ASSERT_EQ(key.num_indexed_blocks, 2);
  index.erase(1);
  index.erase(0);
  Ids found;
  index.match(key, tokens, 2, found);
  EXPECT_EQ(key.num_indexed_blocks, 0);
  EXPECT_EQ(key.last_entry, 0);
}

// The exact order, as vLLM's test_prefill has it: partial blocks first, for immediate use; cached ones last,
// of one prefix the tail before the root.
TEST(Task3_4_PrefixCache, FreesPartialBlocksToTheFrontAndAPrefixTailFirst) {
  BlockManager blocks = cached_manager(10);
  User first(range(1, 14));
  first.run(blocks);  // blocks 0 1 2 and the partial 3
  User second(range(1, 13));
  EXPECT_EQ(second.run(blocks), 12);  // 0 1 2 and the partial 4
  EXPECT_EQ(second.table, (Ids{0, 1, 2, 4}));
  blocks.free(first.table);
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{3, 5, 6, 7, 8, 9}));
  blocks.free(second.table);
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{4, 3, 5, 6, 7, 8, 9, 2, 1, 0}));
  EXPECT_EQ(blocks.num_cached_blocks(), 3) << "free, and still cached";
}

TEST(Task3_4_PrefixCache, EvictsTheTailOfAPrefixBeforeItsRoot) {
  BlockManager blocks = cached_manager(4);
  User first(range(1, 12));
  first.run(blocks);
  blocks.free(first.table);
  BlockTable other;
  ASSERT_TRUE(blocks.append(other, 8));  // the unused block, and one eviction
  EXPECT_EQ(hits(blocks, range(1, 13)), 8);
  ASSERT_TRUE(blocks.append(other, 12));
  EXPECT_EQ(hits(blocks, range(1, 13)), 4);
  ASSERT_TRUE(blocks.append(other, 16));
  EXPECT_EQ(hits(blocks, range(1, 13)), 0);
  EXPECT_EQ(blocks.num_cached_blocks(), 0);
}

// The table of the chapter.
TEST(Task3_4_PrefixCache, AnEvictionInFourEvents) {
  BlockManager blocks = cached_manager(6);
  const auto free_ids = [&] { return blocks.pool().free_ids(); };
  User a(range(1, 10));
  a.run(blocks);
  EXPECT_EQ(a.table, (Ids{0, 1, 2}));
  EXPECT_EQ(free_ids(), (Ids{3, 4, 5}));
  blocks.free(a.table);
  EXPECT_EQ(free_ids(), (Ids{2, 3, 4, 5, 1, 0}));
  User b(range(1, 6));
  EXPECT_EQ(b.run(blocks), 4);
  EXPECT_EQ(b.table, (Ids{0, 2}));
  EXPECT_EQ(free_ids(), (Ids{3, 4, 5, 1}));
  BlockTable c;
  ASSERT_TRUE(blocks.append(c, 16));
  EXPECT_EQ(c, (Ids{3, 4, 5, 1}));
  EXPECT_FALSE(blocks.is_cached(1));
  EXPECT_TRUE(blocks.is_cached(0));
  blocks.free(b.table);
  EXPECT_EQ(free_ids(), (Ids{2, 0}));
}

TEST(Task3_4_PrefixCache, EvictsTheLeastRecentlyUsedPrefix) {
  BlockManager blocks = cached_manager(2);
  User a(range(1, 4)), b(range(50, 4));
  a.run(blocks);
  b.run(blocks);
  blocks.free(a.table);
  blocks.free(b.table);
  User again(range(1, 5));  // a hit: prefix a is now the most recent
  BlockTable hit;
  blocks.find_prefix(again.key, again.tokens, hit);
  ASSERT_TRUE(blocks.allocate(again.table, hit, 4));
  blocks.free(again.table);
  BlockTable other;
  ASSERT_TRUE(blocks.append(other, 4));
  EXPECT_EQ(hits(blocks, range(1, 5)), 4);
  EXPECT_EQ(hits(blocks, range(50, 5)), 0);
}

TEST(Task3_4_PrefixCache, AHitTakesAFreeBlockOutOfTheMiddleOfTheFreeList) {
  BlockManager blocks = cached_manager(6);
  User a(range(1, 4)), b(range(50, 4));
  a.run(blocks);
  b.run(blocks);
  blocks.free(a.table);
  blocks.free(b.table);
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{2, 3, 4, 5, 0, 1}));
  User again(range(1, 5));
  EXPECT_EQ(again.run(blocks), 4);
  EXPECT_EQ(again.table, (Ids{0, 2}));
  EXPECT_EQ(blocks.pool().free_ids(), (Ids{3, 4, 5, 1}));
}

// A hit on a free block is not for nothing: it takes that block out of the free ones.
TEST(Task3_4_PrefixCache, RevivedBlocksCountAgainstTheFreeOnes) {
  BlockManager blocks = cached_manager(3);
  User a(range(1, 8));
  a.run(blocks);
  blocks.free(a.table);
  EXPECT_EQ(blocks.num_free_blocks(), 3);
  User b(range(1, 16));
  BlockTable hit;
  blocks.find_prefix(b.key, b.tokens, hit);
  ASSERT_EQ(std::ssize(hit), 2);
  EXPECT_FALSE(blocks.allocate(b.table, hit, 16)) << "2 revived and 2 new blocks, 3 are free";
  EXPECT_EQ(blocks.num_free_blocks(), 3);
  EXPECT_TRUE(blocks.allocate(b.table, hit, 12));
}

// mini-sglang PR #142: two sequences compute the same block at once; the cache kept one copy and freed the
// other, which a running sequence's table still pointed at.
TEST(Task3_4_PrefixCache, ADuplicateBlockStaysWithTheTableThatPointsAtIt) {
  BlockManager blocks = cached_manager(8);
  User a(range(1, 8)), b(range(1, 8));
  ASSERT_TRUE(blocks.append(a.table, 8));
  ASSERT_TRUE(blocks.append(b.table, 8));
  blocks.cache(a.key, a.tokens, a.table, 8);
  blocks.cache(b.key, b.tokens, b.table, 8);
  EXPECT_EQ(b.table, (Ids{2, 3})) << "a table is never rewritten";
  EXPECT_EQ(blocks.ref_count(2), 1);
  EXPECT_EQ(blocks.num_free_blocks(), 4) << "and no copy is freed under it";
  blocks.free(a.table);
  EXPECT_EQ(blocks.ref_count(2), 1);
  EXPECT_EQ(hits(blocks, range(1, 9)), 8);
  blocks.free(b.table);
  EXPECT_EQ(blocks.num_free_blocks(), 8);
}

// The copy that was named first is evicted while the other sequence still runs: nothing is lost.
TEST(Task3_4_PrefixCache, AChainOutlivesTheOtherCopyOfItsBlocks) {
  BlockManager blocks = cached_manager(8);
  User a(range(1, 4)), b(range(1, 12));
  ASSERT_TRUE(blocks.append(a.table, 4));
  ASSERT_TRUE(blocks.append(b.table, 12));
  blocks.cache(a.key, a.tokens, a.table, 4);
  blocks.cache(b.key, b.tokens, b.table, 8);
  EXPECT_EQ(blocks.num_cached_blocks(), 3);
  blocks.free(a.table);
  BlockTable other;
  ASSERT_TRUE(blocks.append(other, 20));
  EXPECT_EQ(blocks.num_cached_blocks(), 2);
  EXPECT_EQ(hits(blocks, range(1, 13)), 8);
  blocks.cache(b.key, b.tokens, b.table, 12);
  EXPECT_EQ(hits(blocks, range(1, 13)), 12);
}

// vLLM #44701: with untagged fields a salt equal to an adapter's name shared the adapter's cache.
TEST(Task3_4_PrefixCache, SaltAndAdapterOfTheSameNameAreDifferentCaches) {
  Sha256BlockHasher hasher(1);
  const BlockHash none = hasher.root("", ""), salt = hasher.root("x", ""), adapter = hasher.root("", "x");
  EXPECT_NE(none, salt);
  EXPECT_NE(none, adapter);
  EXPECT_NE(salt, adapter);
  EXPECT_NE(hasher.root("ab", "c"), hasher.root("a", "bc")) << "lengths are part of the hash";
  EXPECT_NE(hasher.root("", "a"), hasher.root("a", ""));

  BlockManager blocks = cached_manager(8);
  User user(range(1, 4), "x");
  user.run(blocks);
  EXPECT_EQ(hits(blocks, range(1, 5), "x"), 4);
  EXPECT_EQ(hits(blocks, range(1, 5), ""), 0);
  EXPECT_EQ(hits(blocks, range(1, 5), "y"), 0);
  EXPECT_EQ(hits(blocks, range(1, 5), "", "x"), 0);
  EXPECT_EQ(hits(blocks, range(1, 5), "x", "x"), 0);
}

// CVE-2025-25183: names that can be predicted can be aimed at.
TEST(Task3_4_PrefixCache, TheRootIsRandomUnlessASeedIsGiven) {
  EXPECT_NE(Sha256BlockHasher().root("", ""), Sha256BlockHasher().root("", ""));
  EXPECT_EQ(Sha256BlockHasher(3).root("", ""), Sha256BlockHasher(3).root("", ""));
  EXPECT_NE(Sha256BlockHasher(3).root("", ""), Sha256BlockHasher(4).root("", ""));
}

// Known answers, from Python's hashlib: for each field its tag, its length as 8 little-endian bytes, its
// content.
//   field = lambda tag, b: tag + struct.pack("<Q", len(b)) + b
//   root = sha256(field(b"r", struct.pack("<Q", 1) + bytes(24)) + field(b"s", b"salt") + field(b"a",
//   b"adapter")) block = sha256(field(b"p", root) + field(b"t", struct.pack("<4i", 1, 2, 3, 4)))
TEST(Task3_4_PrefixCache, HashesTheDocumentedBytes) {
  Sha256BlockHasher hasher(1);
  const BlockHash root = hasher.root("salt", "adapter");
  EXPECT_EQ(root.words[0], 0x0e378eaf7790d623ull);
  const Ids tokens = {1, 2, 3, 4};
  EXPECT_EQ(hasher.block(root, tokens).words[0], 0xd4e81f7a080ea86aull);
}

class CollidingHasher final : public BlockHasher {
 public:
  BlockHash root(std::string_view, std::string_view) override { return {}; }
  BlockHash block(const BlockHash&, std::span<const int32_t>) override { return {}; }
};

// Equal hashes are not believed: every block has the same one here.
TEST(Task3_4_PrefixCache, EqualHashesNeverGiveAnotherPromptsBlocks) {
  BlockManager blocks = cached_manager(16, std::make_unique<CollidingHasher>());
  User a(range(1, 8)), b(range(50, 8)), c(range(1, 8), "salt");
  a.run(blocks);
  EXPECT_EQ(b.run(blocks), 0);
  EXPECT_EQ(c.run(blocks), 0) << "same tokens, same hash, another salt";
  EXPECT_EQ(blocks.num_cached_blocks(), 6);
  EXPECT_EQ(hits(blocks, range(1, 9)), 8);
  EXPECT_EQ(hits(blocks, range(50, 9)), 8);
  Ids mixed = range(1, 4);
  for (const int32_t id : range(54, 5)) mixed.push_back(id);
  EXPECT_EQ(hits(blocks, mixed), 4) << "b's second block comes after b's first, not after a's";
}

TEST(Task3_4_PrefixCache, SaltAndAdapterAreBothComparedWhereHashesAreEqual) {
  BlockManager blocks = cached_manager(16, std::make_unique<CollidingHasher>());
  User user(range(1, 4), "x", "a");
  user.run(blocks);
  EXPECT_EQ(hits(blocks, range(1, 5), "x", "b"), 0);
  EXPECT_EQ(hits(blocks, range(1, 5), "y", "a"), 0);
  EXPECT_EQ(hits(blocks, range(1, 5), "x", "a"), 4);
}

TEST(Task3_4_PrefixCache, AnAdapterWithoutASaltIsComparedToo) {
  BlockManager blocks = cached_manager(16, std::make_unique<CollidingHasher>());
  User plain(range(1, 4)), adapted(range(50, 4), "", "a");
  plain.run(blocks);
  adapted.run(blocks);
  EXPECT_EQ(hits(blocks, range(1, 5), "", "a"), 0);
  EXPECT_EQ(hits(blocks, range(50, 5)), 0);
  EXPECT_EQ(hits(blocks, range(50, 5), "", "a"), 4);
}

// The same, where the first block is evicted while its successor stays, and another first block of equal hash
// takes its place in the chain.
TEST(Task3_4_PrefixCache, ABlockIsNotFoundAfterAnotherParentOfEqualHash) {
  HashPrefixIndex index(4, kBlockSize, std::make_unique<CollidingHasher>());
  const Ids a = range(1, 9);
  PrefixKey key;
  index.insert(key, a, Ids{0, 1}, 2);
  index.erase(0);
  Ids b = range(70, 4);
  b.insert(b.end(), a.begin() + 4, a.end());
  PrefixKey other;
  index.insert(other, b, Ids{2}, 1);
  Ids found;
  PrefixKey fresh;
  index.match(fresh, b, 2, found);
  EXPECT_EQ(found, Ids{2}) << "block 1 was computed after other tokens";
}

// Counts what it is asked for.
struct NameCounts {
  int64_t roots = 0, blocks = 0;
};

class CountingHasher final : public BlockHasher {
 public:
  explicit CountingHasher(NameCounts& counts) : counts_(counts) {}
  BlockHash root(std::string_view salt, std::string_view adapter) override {
    ++counts_.roots;
    return hasher_.root(salt, adapter);
  }
  BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens) override {
    ++counts_.blocks;
    return hasher_.block(parent, tokens);
  }

 private:
  NameCounts& counts_;
  Sha256BlockHasher hasher_{1};
};

TEST(Task3_4_PrefixCache, ALookUpNamesOneBlockMoreThanItFinds) {
  const Ids tokens = range(1, 4000);
  for (const int64_t num_prompt_tokens : {0, 4000}) {  // names of the output, names of the prompt
    SCOPED_TRACE("prompt tokens " + std::to_string(num_prompt_tokens));
    NameCounts counts;
    HashPrefixIndex index(8, kBlockSize, std::make_unique<CountingHasher>(counts));
    Ids found;
    PrefixKey early, first, late;
    early.num_prompt_tokens = late.num_prompt_tokens = num_prompt_tokens;
    index.match(early, tokens, 999, found);
    EXPECT_EQ(counts.blocks, 1) << "nothing is indexed";
    index.insert(first, tokens, Ids{0, 1, 2}, 3);
    counts.blocks = 0;
    index.match(late, tokens, 999, found);
    EXPECT_EQ(found, (Ids{0, 1, 2}));
    EXPECT_EQ(counts.blocks, 4) << "three are indexed";
  }
}

TEST(Task3_4_PrefixCache, AKeyIsAskedForEachNameOnce) {
  NameCounts counts;
  HashPrefixIndex index(8, kBlockSize, std::make_unique<CountingHasher>(counts));
  const Ids tokens = range(1, 12);
  PrefixKey key;
  key.num_prompt_tokens = 8;
  Ids found;
  index.match(key, tokens, 3, found);
  index.match(key, tokens, 3, found);
  index.insert(key, tokens, Ids{0, 1, 2}, 3);
  index.match(key, tokens, 3, found);
  EXPECT_EQ(counts.roots, 1);
  EXPECT_EQ(counts.blocks, 3);
}

TEST(Task3_4_PrefixCache, BlocksThatASiblingHasIndexedAreNotNamedAgain) {
  NameCounts counts;
  HashPrefixIndex index(8, kBlockSize, std::make_unique<CountingHasher>(counts));
  const Ids tokens = range(1, 12);
  PrefixKey key, sibling;
  index.insert(sibling, tokens, Ids{0, 1, 2}, 3);
  counts = {};
  index.insert(key, tokens, Ids{0, 1, 2}, 3);
  EXPECT_EQ(counts.blocks, 0) << "the table's blocks are in the index";
  EXPECT_EQ(key.num_indexed_blocks, 3);
  EXPECT_EQ(key.last_entry, sibling.last_entry);
}

// The key of a completion; copies of it are those of its siblings.
PrefixKey completion_key(int64_t num_prompt_tokens) {
  PrefixKey key;
  key.prompt_hashes = std::make_shared<std::vector<BlockHash>>();
  key.num_prompt_tokens = num_prompt_tokens;
  return key;
}

TEST(Task3_4_PrefixCache, CompletionsNameTheBlocksOfTheirPromptOnce) {
  NameCounts counts;
  HashPrefixIndex index(8, kBlockSize, std::make_unique<CountingHasher>(counts));
  const Ids prompt = range(1, 8);
  PrefixKey a = completion_key(8), b = a;
  index.insert(a, prompt, Ids{0, 1}, 2);
  index.insert(b, prompt, Ids{2, 3}, 2);  // computed at the same time, in blocks of its own
  EXPECT_EQ(counts.roots, 1);
  EXPECT_EQ(counts.blocks, 2);
}

// Two completions of a prompt of six tokens: the second block is theirs, although the prompt begins it.
class TwoCompletions {
 public:
  TwoCompletions() {
    PrefixKey a = completion_key(6), b = a;
    index_.insert(a, TokenView(prompt_, output_a), Ids{0, 1, 2}, 3);
    index_.insert(b, TokenView(prompt_, output_b), Ids{0, 4, 5}, 3);
  }

  // What a later prompt finds that begins with the prompt and this output.
  Ids found(const Ids& output) {
    Ids tokens = prompt_;
    tokens.insert(tokens.end(), output.begin(), output.end());
    PrefixKey key = completion_key(12);
    Ids ids;
    index_.match(key, tokens, 3, ids);
    return ids;
  }

  const Ids output_a = range(10, 6), output_b = range(20, 6);

 private:
  const Ids prompt_ = range(1, 6);
  HashPrefixIndex index_{8, kBlockSize, std::make_unique<Sha256BlockHasher>(1)};
};

TEST(Task3_4_PrefixCache, CompletionsDoNotShareTheNamesOfTheirOutputs) {
  TwoCompletions completions;
  EXPECT_EQ(completions.found(completions.output_b), (Ids{0, 4, 5}));
}

TEST(Task3_4_PrefixCache, ABlockOfTheOutputIsNamedAfterTheOneBeforeIt) {
  TwoCompletions completions;
  EXPECT_EQ(completions.found(completions.output_a), (Ids{0, 1, 2}));
}

class CheapHasher final : public BlockHasher {
 public:
  BlockHash root(std::string_view, std::string_view) override { return {{1, 1, 0, 0}}; }
  BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens) override {
    const uint64_t word = (parent.words[0] ^ static_cast<uint64_t>(tokens[0])) * 0x9e3779b97f4a7c15ull + 1;
    return {{word ^ (word >> 31), word >> 17, 0, 0}};
  }
};

// Milliseconds, in time linear in the prompt; one that walks along all names for each block takes seconds.
TEST(Task3_4_PrefixCache, ALongPromptIsNamedAndFoundInLinearTime) {
  constexpr int32_t kNumBlocks = 60'000;
  HashPrefixIndex index(kNumBlocks, 1, std::make_unique<CheapHasher>());
  const Ids tokens = range(1, kNumBlocks);
  PrefixKey key;
  key.num_prompt_tokens = kNumBlocks / 2;  // names of the prompt, and of what follows it
  const auto begin = std::chrono::steady_clock::now();
  index.insert(key, tokens, range(0, kNumBlocks), kNumBlocks);
  Ids found;
  index.match(key, tokens, kNumBlocks, found);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(found, range(0, kNumBlocks));
  EXPECT_LT(seconds.count(), 2.0);
}

// The same of a decode, which indexes one block after the other: a call looks at the new one, not at all of them.
TEST(Task3_4_PrefixCache, ALongTableIsIndexedBlockByBlockInLinearTime) {
  constexpr int32_t kNumBlocks = 100'000;
  HashPrefixIndex index(kNumBlocks, 1, std::make_unique<CheapHasher>());
  const Ids tokens = range(1, kNumBlocks), table = range(0, kNumBlocks);
  PrefixKey key;
  const auto begin = std::chrono::steady_clock::now();
  for (int32_t i = 1; i <= kNumBlocks; ++i) index.insert(key, tokens, table, i);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(index.size(), kNumBlocks);
  EXPECT_LT(seconds.count(), 2.0);
}

TEST(Task3_4_PrefixCache, ResetForgetsAllContentUnlessABlockIsHeld) {
  BlockManager blocks = cached_manager(16);
  User a(range(1, 12), "salt");
  a.run(blocks);
  EXPECT_FALSE(blocks.reset_prefix_cache());
  EXPECT_EQ(hits(blocks, range(1, 13), "salt"), 12);
  blocks.free(a.table);
  EXPECT_TRUE(blocks.reset_prefix_cache());
  EXPECT_EQ(blocks.num_cached_blocks(), 0);
  EXPECT_EQ(hits(blocks, range(1, 13), "salt"), 0);
  User b(range(1, 12), "salt");
  EXPECT_EQ(b.run(blocks), 0);
  EXPECT_EQ(hits(blocks, range(1, 13), "salt"), 12) << "and is filled again";
  EXPECT_TRUE(BlockManager(4, kBlockSize).reset_prefix_cache()) << "there is nothing to forget";
}

TEST(Task3_4_PrefixCache, WithoutAnIndexNothingIsFound) {
  BlockManager blocks(8, kBlockSize);
  User a(range(1, 8));
  EXPECT_EQ(a.run(blocks), 0);
  EXPECT_EQ(hits(blocks, range(1, 9)), 0);
  EXPECT_EQ(blocks.num_cached_blocks(), 0);
}

TEST(Task3_4_PrefixCache, WithoutAnIndexTheBlocksOfAnEarlierLookUpAreForgotten) {
  BlockManager blocks(8, kBlockSize);
  User user(range(1, 9));
  BlockTable found = {7};
  blocks.find_prefix(user.key, user.tokens, found);
  EXPECT_EQ(found, BlockTable{});
}

}  // namespace
}  // namespace ladder
