// Tasks 3.2 to 3.4 at other sizes, with inputs that nobody knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <list>
#include <numeric>
#include <set>

#include "step1_layers/core/error.h"
#include "tests/step3_sequence/block_day.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

TEST(Hidden3_2_BlockPool, DoesWhatAListDoes) {
  testing::Random random;
  for (int day = 0; day < 30; ++day) {
    const int64_t num_blocks = random.integer(1, 200);
    BlockPool pool(num_blocks);
    std::list<int32_t> model;
    for (int32_t id = 0; id < num_blocks; ++id) model.push_back(id);
    Ids taken;
    for (int event = 0; event < 600; ++event) {
      const int64_t kind = random.integer(0, 4);
      if (kind == 0 && !model.empty()) {
        ASSERT_EQ(pool.front(), model.front());
        ASSERT_EQ(pool.take_front(), model.front());
        taken.push_back(model.front());
        model.pop_front();
      } else if (kind == 1 && !model.empty()) {
        const auto any = std::next(model.begin(), random.integer(0, std::ssize(model) - 1));
        pool.take(*any);
        ASSERT_EQ(pool.block(*any).next, -1);
        ASSERT_EQ(pool.block(*any).previous, -1);
        taken.push_back(*any);
        model.erase(any);
      } else if (kind >= 2 && !taken.empty()) {
        std::swap(taken[random.integer(0, std::ssize(taken) - 1)], taken.back());
        kind == 2 ? pool.push_front(taken.back()) : pool.push_back(taken.back());
        kind == 2 ? model.push_front(taken.back()) : model.push_back(taken.back());
        taken.pop_back();
      }
      ASSERT_EQ(pool.free_ids(), Ids(model.begin(), model.end()));
      ASSERT_EQ(pool.num_free(), std::ssize(model));
      for (const int32_t id : taken) ASSERT_FALSE(pool.is_free(id));
    }
  }
}

TEST(Hidden3_2_BlockPool, RefusesSizesThatNoBlockNumberHas) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t num_blocks :
       {-random.integer(0, 1 << 20), (int64_t{1} << 32) + random.integer(1, 1000),
        -(int64_t{1} << 32) + random.integer(1, 1000), (int64_t{1} << 31) - 1 + random.integer(0, 1) * 5})
    EXPECT_THROW(BlockPool pool(num_blocks), Error) << num_blocks;
}

// Blocks taken from anywhere, and given back to both ends, in a list of many.
TEST(Hidden3_2_BlockPool, TakesAsLongForManyBlocksAsForFew) {
  testing::Random random;
  const auto count = static_cast<int32_t>(random.integer(60'000, 70'000));
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, random.engine());
  BlockPool pool(count);
  const std::clock_t begin = std::clock();
  for (size_t i = 0; i < ids.size() / 2; ++i) pool.take(ids[i]);
  for (size_t i = 0; i < ids.size() / 2; ++i) i % 2 == 0 ? pool.push_back(ids[i]) : pool.push_front(ids[i]);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 1.0) << "seconds of the processor";
  EXPECT_EQ(pool.num_free(), count);
}

// An index by hand: what was put in stays until it is overwritten.
class Marked final : public PrefixIndex {
 public:
  explicit Marked(std::set<int32_t>& ids) : ids_(ids) {}
  void match(PrefixKey&, const TokenView&, int64_t, std::vector<int32_t>&) override {}
  void insert(PrefixKey&, const TokenView&, std::span<const int32_t>, int64_t) override {}
  bool contains(int32_t id) const override { return ids_.contains(id); }
  void erase(int32_t id) override { ids_.erase(id); }
  int64_t size() const override { return std::ssize(ids_); }

 private:
  std::set<int32_t>& ids_;
};

// Tables, counts and the order of the free list, by hand.
TEST(Hidden3_3_BlockManager, DoesWhatCountingByHandDoes) {
  testing::Random random;
  for (int day = 0; day < 60; ++day) {
    const int64_t num_blocks = random.integer(3, 70), block_size = random.integer(1, 20);
    std::set<int32_t> indexed, cached;  // by the manager, and by hand
    BlockManager blocks(num_blocks, block_size, std::make_unique<Marked>(indexed));
    std::list<int32_t> free;
    for (int32_t id = 0; id < num_blocks; ++id) free.push_back(id);
    std::vector<int64_t> holders(num_blocks, 0);
    std::vector<BlockTable> tables;
    const auto take = [&] {
      const int32_t id = free.front();
      free.pop_front();
      cached.erase(id);
      ++holders[id];
      return id;
    };
    for (int event = 0; event < 200; ++event) {
      const int64_t kind = random.integer(0, 4);
      if (kind == 0) {  // a table that begins with part of another one, or with free blocks that are cached
        Ids shared;
        if (!tables.empty() && random.integer(0, 1) == 1) {
          const BlockTable& other = random.one_of(tables);
          shared.assign(other.begin(), other.begin() + random.integer(0, std::ssize(other)));
        } else {
          for (const int32_t id : free)
            if (cached.contains(id) && random.integer(0, 1) == 1 && shared.size() < 3) shared.push_back(id);
        }
        const int64_t num_tokens = random.integer(1, 6 * block_size), left = random.integer(0, 2);
        const int64_t fresh =
            std::max<int64_t>((num_tokens + block_size - 1) / block_size - std::ssize(shared), 0);
        const int64_t revived = std::ranges::count_if(shared, [&](int32_t id) { return holders[id] == 0; });
        BlockTable table;
        const bool fits = fresh + revived + left <= std::ssize(free);
        ASSERT_EQ(blocks.allocate(table, shared, num_tokens, left), fits);
        if (fits) {
          BlockTable expected;
          for (const int32_t id : shared) {
            if (holders[id]++ == 0) free.remove(id);
            expected.push_back(id);
          }
          for (int64_t i = 0; i < fresh; ++i) expected.push_back(take());
          ASSERT_EQ(table, expected);
          tables.push_back(table);
        }
      } else if (kind == 1 && !tables.empty()) {
        BlockTable& table = tables[random.integer(0, std::ssize(tables) - 1)];
        const int64_t num_tokens = random.integer(1, (std::ssize(table) + 2) * block_size);
        const int64_t fresh = (num_tokens + block_size - 1) / block_size - std::ssize(table);
        BlockTable expected = table;
        const bool fits = fresh <= std::ssize(free);
        ASSERT_EQ(blocks.append(table, num_tokens), fits);
        for (int64_t i = 0; fits && i < fresh; ++i) expected.push_back(take());
        ASSERT_EQ(table, expected);
      } else if (kind == 2 && !tables.empty()) {  // some of it is cached from now on
        for (const int32_t id : random.one_of(tables))
          if (random.integer(0, 1) == 1) cached.insert(id), indexed.insert(id);
      } else if (kind == 3 && !tables.empty()) {  // a table is started once
        BlockTable& table = tables[random.integer(0, std::ssize(tables) - 1)];
        const BlockTable before = table;
        if (table.empty()) continue;
        ASSERT_THROW(blocks.allocate(table, {}, random.integer(1, 2 * block_size)), Error);
        ASSERT_EQ(table, before);
      } else if (!tables.empty()) {
        const int64_t index = random.integer(0, std::ssize(tables) - 1);
        const BlockTable given = tables[index];
        blocks.free(tables[index]);
        ASSERT_TRUE(tables[index].empty());
        tables.erase(tables.begin() + index);
        for (auto id = given.rbegin(); id != given.rend(); ++id)
          if (--holders[*id] == 0) cached.contains(*id) ? free.push_back(*id) : free.push_front(*id);
      }
      ASSERT_EQ(blocks.pool().free_ids(), Ids(free.begin(), free.end()));
      ASSERT_EQ(indexed, cached) << "what is overwritten leaves the index, and nothing else does";
      for (int32_t id = 0; id < num_blocks; ++id)
        ASSERT_EQ(blocks.ref_count(id), holders[id]) << "block " << id;
    }
  }
}

// Whether a text has this number in it, and not as a part of another.
bool names(const std::string& text, int32_t id) {
  const std::string number = std::to_string(id);
  const auto is_digit = [&](size_t at) { return at < text.size() && std::isdigit(text[at]) != 0; };
  for (size_t at = text.find(number); at != std::string::npos; at = text.find(number, at + 1))
    if (!(at > 0 && is_digit(at - 1)) && !is_digit(at + number.size())) return true;
  return false;
}

// Of the blocks of a table one has fewer holders than the table has entries of it: a block that nobody holds, or one that
// stands there twice.
TEST(Hidden3_3_BlockManager, NamesTheBlockThatIsGivenBackTooOften) {
  testing::Random random;
  SCOPED_TRACE(random.describe());
  for (int day = 0; day < 120; ++day) {
    const int64_t num_blocks = random.integer(10, 90), block_size = random.integer(1, 9);
    BlockManager blocks(num_blocks, block_size);
    BlockTable rest, table, sharing;
    ASSERT_TRUE(blocks.append(rest, random.integer(0, 3) * block_size));
    ASSERT_TRUE(blocks.append(table, random.integer(1, 6) * block_size));
    const bool shared = random.integer(0, 1) == 1;
    if (shared) {
      ASSERT_TRUE(blocks.allocate(sharing, table, 0));
    }
    const bool nobodys = shared || random.integer(0, 1) == 1;
    const int32_t id = nobodys ? blocks.pool().front() : random.one_of(table);
    table.insert(table.begin() + random.integer(0, std::ssize(table)), id);
    try {
      blocks.free(table);
      FAIL() << "no Error: block " << id << (nobodys ? " is nobody's" : " is given back twice");
    } catch (const Error& error) {
      ASSERT_TRUE(names(error.what(), id)) << "block " << id << ": " << error.what();
    }
  }
}

void random_days(int days, bool poor_hash, const BlockDaySizes& sizes) {
  const uint64_t first = testing::fresh_seed();
  for (int i = 0; i < days; ++i) {
    SCOPED_TRACE("seed " + std::to_string(first + i));
    BlockDay day(first + i, poor_hash, sizes);
    day.run();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Hidden3_4_Days, LargeBlocksAndLongPrompts) {
  random_days(100, false, {60, 13, 120});
}

TEST(Hidden3_4_Days, FewBlocksAndHashesThatCollide) {
  random_days(150, true, {9, 2, 15});
}

}  // namespace
}  // namespace ladder
