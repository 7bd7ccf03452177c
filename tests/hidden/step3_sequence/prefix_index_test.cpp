// Task 3.4, held against what its headers promise: which blocks an index must find, counted from what was put in; what a key
// counts after each call; and how many names may be asked for, with names that are good and names that collide.
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/prefix/hash_prefix_index.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using Ids = std::vector<int32_t>;

struct NameCounts {
  int64_t roots = 0, blocks = 0;
};

// SHA-256, of which `mask` leaves what it leaves of a name: all, or two bits.
class CountingHasher final : public BlockHasher {
 public:
  CountingHasher(NameCounts& counts, uint64_t mask) : counts_(counts), mask_(mask) {}
  BlockHash root(std::string_view salt, std::string_view adapter) override {
    ++counts_.roots;
    return masked(hasher_.root(salt, adapter));
  }
  BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens) override {
    ++counts_.blocks;
    return masked(hasher_.block(parent, tokens));
  }

 private:
  BlockHash masked(const BlockHash& hash) const {
    return mask_ == ~uint64_t{0} ? hash : BlockHash{{hash.words[0] & mask_, 0, 0, 0}};
  }
  NameCounts& counts_;
  uint64_t mask_;
  Sha256BlockHasher hasher_{1};
};

// What a block holds: for whom, and all tokens up to its end.
using Content = std::tuple<std::string, std::string, Ids>;

// A request's prompt, and how many of its names are known to its completions together.
struct Prompt {
  Ids tokens;
  std::string salt, adapter;
  std::shared_ptr<std::vector<BlockHash>> names;  // null: nothing is shared, all names are the sequence's own
  int64_t num_roots = 0, num_names = 0;
};

struct User {
  std::shared_ptr<Prompt> prompt;
  Ids output;
  PrefixKey key;
  BlockTable table;
  int64_t num_own_names = 0;

  TokenView tokens() const { return {prompt->tokens, output}; }
};

class IndexDay {
 public:
  IndexDay(testing::Random& random, uint64_t mask)
      : random_(random),
        size_(random.integer(1, 6)),
        contents_(static_cast<size_t>(random.integer(8, 60))),
        index_(std::ssize(contents_), size_, std::make_unique<CountingHasher>(counts_, mask)) {}

  void run() {
    for (int event = 0; event < 250; ++event) {
      const int64_t kind = random_.integer(0, 9);
      if (kind < 2)
        begin();
      else if (users_.empty())
        continue;
      else if (kind < 5)
        compute(any());
      else if (kind < 6)
        look_up(any());
      else if (kind < 7)
        begin_sibling(any());
      else if (kind < 8)
        leave();
      else
        evict();
      find_as_somebody_else();
      check_blocks();
      if (::testing::Test::HasFailure()) return;
    }
  }

  int64_t num_found = 0, num_evicted = 0;

 private:
  User& any() { return users_[static_cast<size_t>(random_.integer(0, std::ssize(users_) - 1))]; }

  Ids some_tokens(int64_t count) {
    Ids ids;
    while (std::ssize(ids) < count) ids.push_back(static_cast<int32_t>(random_.integer(0, 1)));
    return ids;
  }

  // What block `i` of these tokens holds.
  Content content(const Prompt& prompt, const TokenView& tokens, int64_t i) const {
    Ids up_to(tokens.prompt.begin(), tokens.prompt.end());
    up_to.insert(up_to.end(), tokens.output.begin(), tokens.output.end());
    up_to.resize(static_cast<size_t>((i + 1) * size_));
    return {prompt.salt, prompt.adapter, up_to};
  }

  // The blocks that may be found for each block of the longest indexed prefix.
  std::vector<std::set<int32_t>> expected(const Prompt& prompt, const TokenView& tokens, int64_t most) const {
    std::vector<std::set<int32_t>> found;
    for (int64_t i = 0; i < most; ++i) {
      const auto holders = holders_.find(content(prompt, tokens, i));
      if (holders == holders_.end()) break;
      found.push_back(holders->second);
    }
    return found;
  }

  // Names that the user lacks of its first `count` blocks, at the most; and what was asked for becomes known.
  void expect_names(User& user, const NameCounts& before, int64_t count, const char* what) {
    const int64_t asked = counts_.blocks - before.blocks, roots = counts_.roots - before.roots;
    const int64_t num_prompt_blocks = user.key.num_prompt_tokens / size_;
    const int64_t known = user.prompt->num_names + user.num_own_names;
    ASSERT_LE(asked, std::max<int64_t>(count - known, 0))
        << what << ": names were asked for; " << known << " are known, " << count << " are of use";
    const int64_t of_prompt = std::min(asked, num_prompt_blocks - user.prompt->num_names);
    user.prompt->num_names += of_prompt;
    user.num_own_names += asked - of_prompt;
    user.prompt->num_roots += roots;
    ASSERT_LE(user.prompt->num_roots, 1) << what << ": the root's name is kept";
  }

  // The key counts `count` blocks of the user's, and its last entry is that content's.
  void expect_counted(const User& user, int64_t count, const char* what) {
    ASSERT_EQ(user.key.num_indexed_blocks, count) << what;
    if (count == 0) {
      ASSERT_EQ(user.key.last_entry, 0u) << what;
      return;
    }
    const auto [entry, is_new] =
        entries_.try_emplace(content(*user.prompt, user.tokens(), count - 1), user.key.last_entry);
    ASSERT_EQ(user.key.last_entry, entry->second) << what << ": one content, one number";
    ASSERT_NE(user.key.last_entry, 0u) << what;
    for (const auto& [other, number] : entries_)
      ASSERT_EQ(number == entry->second, other == entry->first) << what << ": one number, one content";
  }

  void match(User& user, int64_t most, Ids& found) {
    const NameCounts before = counts_;
    found = some_tokens(random_.integer(0, 3));  // what an earlier look-up has left
    index_.match(user.key, user.tokens(), most, found);
    const auto may_be = expected(*user.prompt, user.tokens(), most);
    ASSERT_EQ(found.size(), may_be.size()) << "of " << most << " blocks";
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_TRUE(may_be[i].contains(found[i])) << "block " << found[i] << " holds something else";
    num_found += std::ssize(found);
    expect_counted(user, std::ssize(found), "after a match");
    expect_names(user, before, std::min<int64_t>(std::ssize(found) + 1, most), "a match");
  }

  void begin() {
    User user;
    user.prompt = std::make_shared<Prompt>();
    Prompt& prompt = *user.prompt;
    prompt.tokens = some_tokens(random_.integer(1, 8 * size_));
    prompt.salt = random_.one_of<std::string>({"", "", "a", "b", "ab"});
    prompt.adapter = random_.one_of<std::string>({"", "", "a", "b"});
    if (random_.integer(0, 3) > 0) prompt.names = std::make_shared<std::vector<BlockHash>>();
    start(std::move(user));
  }

  void begin_sibling(const User& of) {
    User user;
    user.prompt = of.prompt;
    if (!of.prompt->names || random_.integer(0, 2) == 0) {  // of the same prompt, and without its names
      user.prompt = std::make_shared<Prompt>(*of.prompt);
      user.prompt->names = nullptr;
      user.prompt->num_names = user.prompt->num_roots = 0;
    }
    start(std::move(user));
  }

  // With the blocks that are found, or none of them: then it computes what others have, at the same time.
  void start(User user) {
    user.key.salt = user.prompt->salt;
    user.key.adapter = user.prompt->adapter;
    user.key.prompt_hashes = user.prompt->names;
    if (user.prompt->names) user.key.num_prompt_tokens = std::ssize(user.prompt->tokens);
    if (random_.integer(0, 2) > 0) match(user, random_.integer(0, user.tokens().size() / size_), user.table);
    users_.push_back(std::move(user));
  }

  // More tokens, more blocks, and some of the full ones are computed. Or a sibling's table, with what it has indexed.
  void compute(User& user) {
    if (random_.integer(0, 1) == 1) {
      const Ids more = some_tokens(random_.integer(1, 2 * size_));
      user.output.insert(user.output.end(), more.begin(), more.end());
    }
    const int64_t num_full = user.tokens().size() / size_;
    if (user.table.empty() && random_.integer(0, 1) == 1)
      for (const User& other : users_)
        if (&other != &user && user.table.empty() && other.prompt->tokens == user.prompt->tokens &&
            other.prompt->salt == user.prompt->salt && other.prompt->adapter == user.prompt->adapter) {
          const int64_t both = std::min(std::ssize(other.table), std::ssize(user.prompt->tokens) / size_);
          user.table.assign(other.table.begin(), other.table.begin() + both);
          user.key.forget_table();
        }
    while (std::ssize(user.table) < num_full) {
      const int32_t id = free_block();
      if (id < 0) break;
      user.table.push_back(id);
      in_tables_[id] = 1;
    }
    const int64_t most = std::min(std::ssize(user.table), num_full);
    if (most < user.key.num_indexed_blocks) return;
    const int64_t count = random_.integer(user.key.num_indexed_blocks, most);
    bool is_new = false;
    for (int64_t i = 0; i < count; ++i) is_new |= !contents_[user.table[i]];
    const NameCounts before = counts_;
    index_.insert(user.key, user.tokens(), user.table, count);
    for (int64_t i = 0; i < count; ++i) {
      if (contents_[user.table[i]]) continue;
      contents_[user.table[i]] = content(*user.prompt, user.tokens(), i);
      holders_[*contents_[user.table[i]]].insert(user.table[i]);
    }
    expect_counted(user, count, "after an insert");
    expect_names(user, before, is_new ? count : 0, "an insert");
  }

  // As after a preemption: the table is given up, and what of it is indexed still may be found again.
  void look_up(User& user) {
    user.table.clear();
    match(user, random_.integer(0, user.tokens().size() / size_), user.table);
  }

  void leave() { users_.erase(users_.begin() + random_.integer(0, std::ssize(users_) - 1)); }

  // Nobody's block that is indexed; the last one that holds a content stays while a longer one needs it.
  void evict() {
    mark_tables();
    for (int32_t id = 0; id < std::ssize(contents_); ++id) {
      if (!contents_[id] || in_tables_.contains(id) || random_.integer(0, 2) == 0) continue;
      const Content held = *contents_[id];
      if (holders_.at(held).size() == 1 && is_needed(held)) continue;
      index_.erase(id);
      contents_[id].reset();
      holders_.at(held).erase(id);
      if (holders_.at(held).empty()) {
        holders_.erase(held);
        entries_.erase(held);
      }
      ++num_evicted;
    }
  }

  bool is_needed(const Content& held) const {
    const auto& [salt, adapter, tokens] = held;
    for (const auto& [other, ids] : holders_) {
      const auto& [other_salt, other_adapter, longer] = other;
      if (other_salt == salt && other_adapter == adapter && longer.size() > tokens.size() &&
          std::equal(tokens.begin(), tokens.end(), longer.begin()))
        return true;
    }
    return false;
  }

  void mark_tables() {
    in_tables_.clear();
    for (const User& user : users_)
      for (const int32_t id : user.table) in_tables_[id] = 1;
  }

  int32_t free_block() {
    mark_tables();
    for (int32_t id = 0; id < std::ssize(contents_); ++id)
      if (!contents_[id] && !in_tables_.contains(id)) return id;
    return -1;
  }

  // A key of its own, whose prompt ends elsewhere: names do not depend on who computed what.
  void find_as_somebody_else() {
    if (users_.empty()) return;
    const User& user = any();
    User other;
    other.prompt = std::make_shared<Prompt>(*user.prompt);
    other.prompt->tokens.insert(other.prompt->tokens.end(), user.output.begin(), user.output.end());
    other.prompt->num_names = other.prompt->num_roots = 0;
    if (random_.integer(0, 3) == 0) other.prompt->salt += "a";  // somebody else in earnest
    other.key.salt = other.prompt->salt;
    other.key.adapter = other.prompt->adapter;
    other.key.num_prompt_tokens = random_.integer(0, std::ssize(other.prompt->tokens));
    Ids found;
    match(other, std::ssize(other.prompt->tokens) / size_, found);
  }

  void check_blocks() {
    int64_t count = 0;
    for (int32_t id = 0; id < std::ssize(contents_); ++id) {
      ASSERT_EQ(index_.contains(id), contents_[id].has_value()) << "block " << id;
      count += contents_[id].has_value();
    }
    ASSERT_EQ(index_.size(), count);
  }

  testing::Random& random_;
  const int64_t size_;
  std::vector<std::optional<Content>> contents_;  // by block: what is indexed
  NameCounts counts_;
  HashPrefixIndex index_;
  std::map<Content, std::set<int32_t>> holders_;
  std::map<Content, uint64_t> entries_;  // as keys have told them
  std::map<int32_t, int> in_tables_;
  std::vector<User> users_;
};

void index_days(uint64_t mask) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  int64_t num_found = 0, num_evicted = 0;
  for (int day = 0; day < 40; ++day) {
    IndexDay of(random, mask);
    of.run();
    if (::testing::Test::HasFailure()) return;
    num_found += of.num_found;
    num_evicted += of.num_evicted;
  }
  EXPECT_GT(num_found, 1000);
  EXPECT_GT(num_evicted, 200);
}

TEST(Hidden3_4_Index, FindsWhatItHoldsAndNamesNoMoreThanItNeeds) {
  index_days(~uint64_t{0});
}

TEST(Hidden3_4_Index, DoesSoWhereNamesCollide) {
  index_days(3);
}

// Different pairs of salt and adapter never share, however they are cut: each has a name of its own, and always the same.
TEST(Hidden3_4_Names, EverySaltAndAdapterHasARootOfItsOwn) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  Sha256BlockHasher hasher(random.integer(0, 1 << 30));
  std::map<std::array<uint64_t, 4>, std::pair<std::string, std::string>> seen;
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int64_t left = random.integer(0, 6); left > 0; --left) text += random.one_of<char>({'a', 'b', '\0'});
    const auto cut = static_cast<size_t>(random.integer(0, std::ssize(text)));
    const std::pair<std::string, std::string> domain{text.substr(0, cut), text.substr(cut)};
    const auto [name, is_new] = seen.try_emplace(hasher.root(domain.first, domain.second).words, domain);
    ASSERT_EQ(name->second, domain) << "two domains of one name";
    ASSERT_EQ(hasher.root(domain.first, domain.second).words, name->first);
  }
}

// cache() is told of any number of computed tokens, and the key never counts fewer blocks than before.
TEST(Hidden3_4_Manager, AKeyNeverCountsFewerBlocks) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int day = 0; day < 50; ++day) {
    const int64_t size = random.integer(1, 9), num_tokens = random.integer(1, 90);
    NameCounts counts;
    BlockManager blocks(
        100, size,
        std::make_unique<HashPrefixIndex>(100, size, std::make_unique<CountingHasher>(counts, ~uint64_t{0})));
    Ids tokens;
    for (int64_t i = 0; i < num_tokens; ++i) tokens.push_back(static_cast<int32_t>(random.integer(0, 99)));
    PrefixKey key;
    BlockTable table;
    ASSERT_TRUE(blocks.append(table, num_tokens));
    int64_t most = 0;
    for (int call = 0; call < 12; ++call) {
      const int64_t num_computed = random.integer(0, num_tokens);
      blocks.cache(key, tokens, table, num_computed);
      most = std::max(most, num_computed / size);
      ASSERT_EQ(key.num_indexed_blocks, most);
      ASSERT_EQ(blocks.num_cached_blocks(), most);
    }
    ASSERT_EQ(counts.blocks, most) << "no block is named twice";
  }
}

TEST(Hidden3_4_Manager, WithoutAnIndexNothingIsFoundWhateverTheListHeld) {
  testing::Random random;
  for (int i = 0; i < 20; ++i) {
    BlockManager blocks(50, random.integer(1, 8));
    const Ids tokens(static_cast<size_t>(random.integer(1, 60)), 5);
    PrefixKey key;
    BlockTable found(static_cast<size_t>(random.integer(1, 5)), static_cast<int32_t>(random.integer(0, 49)));
    blocks.find_prefix(key, tokens, found);
    ASSERT_EQ(found, BlockTable{});
    blocks.cache(key, tokens, {}, 0);
    ASSERT_EQ(key.num_indexed_blocks, 0);
  }
}

// A table that grows by a block at a time: a call looks at the new block, not at all of them.
TEST(Hidden3_4_Index, ALongTableGrowsInLinearTime) {
  testing::Random random;
  const auto count = static_cast<int32_t>(random.integer(150'000, 160'000));
  struct Cheap final : BlockHasher {
    BlockHash root(std::string_view, std::string_view) override { return {{1, 1, 0, 0}}; }
    BlockHash block(const BlockHash& parent, std::span<const int32_t> tokens) override {
      const uint64_t word = (parent.words[0] ^ static_cast<uint64_t>(tokens[0])) * 0x9e3779b97f4a7c15ull + 1;
      return {{word ^ (word >> 31), word >> 17, 0, 0}};
    }
  };
  HashPrefixIndex index(count, 1, std::make_unique<Cheap>());
  Ids tokens, table;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i), table.push_back(i);
  PrefixKey key;
  key.num_prompt_tokens = random.integer(0, count);
  const std::clock_t begin = std::clock();
  for (int32_t i = 1; i <= count; ++i) index.insert(key, tokens, table, i);
  EXPECT_EQ(index.size(), count);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 3.0) << "seconds of the processor";
}

}  // namespace
}  // namespace ladder
