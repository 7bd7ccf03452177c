#pragma once
// Random use of the block manager, checked against a plain model: which block holds which tokens.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder {

using Ids = std::vector<int32_t>;

// Two bits of hash: nearly everything collides.
class PoorHasher final : public BlockHasher {
 public:
  BlockHash root(std::string_view salt, std::string_view) override { return {{salt.size() % 4, 0, 0, 0}}; }
  BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens) override {
    return {{(parent.words[0] + static_cast<uint64_t>(tokens[0])) % 4, 0, 0, 0}};
  }
};

struct BlockUser {
  Ids tokens;
  PrefixKey key;
  BlockTable table;
  int64_t num_computed = 0;
};

// The most of each.
struct BlockDaySizes {
  int64_t num_blocks = 40, block_size = 5, num_tokens = 30;
};

class BlockDay {
 public:
  BlockDay(uint64_t seed, bool poor_hash, const BlockDaySizes& sizes = {}) : random_(seed), sizes_(sizes) {
    num_blocks_ = uniform(4, sizes.num_blocks);
    block_size_ = uniform(1, sizes.block_size);
    std::unique_ptr<BlockHasher> hasher = std::make_unique<Sha256BlockHasher>(seed);
    if (poor_hash) hasher = std::make_unique<PoorHasher>();
    blocks_ = std::make_unique<BlockManager>(
        num_blocks_, block_size_,
        std::make_unique<HashPrefixIndex>(num_blocks_, block_size_, std::move(hasher)));
    contents_.resize(num_blocks_);
  }

  void run() {
    for (int event = 0; event < 300; ++event) {
      const int64_t kind = uniform(0, 9);
      if (kind < 3)
        start();
      else if (kind < 7)
        advance();
      else if (kind < 8)
        fork();
      else
        finish();
      check_books();
      if (::testing::Test::HasFailure()) return;
    }
    while (!users_.empty()) finish();
    check_books();
    EXPECT_EQ(blocks_->num_free_blocks(), num_blocks_);
  }

  int64_t num_hits = 0, num_evictions = 0, num_forks = 0;

 private:
  int64_t uniform(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  // What a token's slot holds is a function of everything up to it.
  Ids prefix(const BlockUser& user, int64_t block) const {
    Ids content(user.tokens.begin(), user.tokens.begin() + (block + 1) * block_size_);
    content.push_back(-1 - static_cast<int32_t>(user.key.salt.size()));
    return content;
  }

  // Blocks that taking `count` from the front evicts.
  int64_t expected_evictions(int64_t count, std::span<const int32_t> not_these) {
    int64_t evictions = 0;
    for (const int32_t id : blocks_->pool().free_ids()) {
      if (std::find(not_these.begin(), not_these.end(), id) != not_these.end()) continue;
      if (count-- <= 0) break;
      evictions += blocks_->is_cached(id);
    }
    return evictions;
  }

  void start() {
    BlockUser user;
    const int64_t size = uniform(1, sizes_.num_tokens);
    for (int64_t i = 0; i < size; ++i) user.tokens.push_back(static_cast<int32_t>(uniform(0, 1)));
    if (uniform(0, 3) == 0) user.key.salt.push_back('s');
    BlockTable hit;
    blocks_->find_prefix(user.key, user.tokens, hit);
    ASSERT_LT(std::ssize(hit) * block_size_, size) << "nothing is left to compute";
    for (int64_t i = 0; i < std::ssize(hit); ++i)
      ASSERT_EQ(contents_[hit[i]], prefix(user, i)) << "another prompt's block was found";
    num_hits += std::ssize(hit);
    user.num_computed = std::ssize(hit) * block_size_;
    const int64_t num_tokens = uniform(user.num_computed + 1, size);
    allocate(user, hit, num_tokens);
  }

  void allocate(BlockUser& user, const BlockTable& shared, int64_t num_tokens) {
    const int64_t cached = blocks_->num_cached_blocks();
    const int64_t free = blocks_->num_free_blocks();
    const int64_t count = blocks_->blocks_for(num_tokens) - std::ssize(shared);
    const int64_t revived =
        std::count_if(shared.begin(), shared.end(), [&](int32_t id) { return blocks_->ref_count(id) == 0; });
    const int64_t evictions = expected_evictions(count, shared);
    const bool done = blocks_->allocate(user.table, shared, num_tokens);
    ASSERT_EQ(done, count + revived <= free);
    if (!done) return;
    ASSERT_EQ(blocks_->num_cached_blocks(), cached - evictions) << "a cached block was lost";
    num_evictions += evictions;
    compute(user, num_tokens);
    users_.push_back(std::move(user));
  }

  // The K and V of the tokens up to num_tokens are written; then the full blocks are cached.
  void compute(BlockUser& user, int64_t num_tokens) {
    for (int64_t block = user.num_computed / block_size_; (block + 1) * block_size_ <= num_tokens; ++block)
      contents_[user.table[block]] = prefix(user, block);
    user.num_computed = num_tokens;
    const int64_t before = user.key.num_indexed_blocks;
    blocks_->cache(user.key, user.tokens, user.table, num_tokens);
    if (num_tokens / block_size_ <= before) return;
    PrefixKey fresh;
    fresh.salt = user.key.salt;
    Ids tokens(user.tokens.begin(), user.tokens.begin() + num_tokens);
    tokens.push_back(0);
    BlockTable found;
    blocks_->find_prefix(fresh, tokens, found);
    ASSERT_EQ(std::ssize(found), num_tokens / block_size_) << "a computed block is not found";
  }

  void advance() {
    if (users_.empty()) return;
    BlockUser& user = users_[uniform(0, std::ssize(users_) - 1)];
    if (user.num_computed == std::ssize(user.tokens))
      user.tokens.push_back(static_cast<int32_t>(uniform(0, 1)));
    const int64_t num_tokens = uniform(user.num_computed + 1, std::ssize(user.tokens));
    const BlockTable before = user.table;
    const int64_t cached = blocks_->num_cached_blocks();
    const int64_t count = blocks_->blocks_for(num_tokens) - std::ssize(user.table);
    const int64_t evictions = expected_evictions(count, {});
    if (!blocks_->append(user.table, num_tokens)) {
      ASSERT_EQ(user.table, before);
      return;
    }
    ASSERT_EQ(blocks_->num_cached_blocks(), cached - evictions) << "a cached block was lost";
    num_evictions += evictions;
    compute(user, num_tokens);
  }

  void fork() {
    if (users_.empty()) return;
    const BlockUser& parent = users_[uniform(0, std::ssize(users_) - 1)];
    const int64_t full = std::min<int64_t>(parent.num_computed, std::ssize(parent.tokens) - 1) / block_size_;
    BlockUser child;
    child.tokens = parent.tokens;
    child.key.salt = parent.key.salt;
    child.num_computed = full * block_size_;
    const BlockTable shared(parent.table.begin(), parent.table.begin() + full);
    ++num_forks;
    allocate(child, shared, std::ssize(child.tokens));
  }

  void finish() {
    if (users_.empty()) return;
    const int64_t index = uniform(0, std::ssize(users_) - 1);
    const int64_t cached = blocks_->num_cached_blocks();
    blocks_->free(users_[index].table);
    EXPECT_EQ(blocks_->num_cached_blocks(), cached) << "freeing evicts nothing";
    users_.erase(users_.begin() + index);
  }

  void check_books() {
    std::vector<int64_t> references(num_blocks_, 0);
    for (const BlockUser& user : users_)
      for (const int32_t id : user.table) ++references[id];
    std::vector<bool> is_free(num_blocks_, false);
    for (const int32_t id : blocks_->pool().free_ids()) {
      ASSERT_FALSE(is_free[id]);
      is_free[id] = true;
    }
    int64_t cached = 0;
    for (int32_t id = 0; id < num_blocks_; ++id) {
      ASSERT_EQ(blocks_->ref_count(id), references[id]);
      ASSERT_EQ(is_free[id], references[id] == 0);
      cached += blocks_->is_cached(id);
    }
    ASSERT_EQ(blocks_->num_cached_blocks(), cached);
    ASSERT_EQ(blocks_->num_free_blocks() + blocks_->num_used_blocks(), num_blocks_);
    // What a running sequence has computed is still there.
    for (const BlockUser& user : users_)
      for (int64_t block = 0; (block + 1) * block_size_ <= user.num_computed; ++block)
        ASSERT_EQ(contents_[user.table[block]], prefix(user, block)) << "a block in use was overwritten";
  }

  std::mt19937_64 random_;
  BlockDaySizes sizes_;
  int64_t num_blocks_ = 0, block_size_ = 0;
  std::unique_ptr<BlockManager> blocks_;
  std::vector<Ids> contents_;  // by block: all tokens up to its end, and the salt
  std::vector<BlockUser> users_;
};

}  // namespace ladder
