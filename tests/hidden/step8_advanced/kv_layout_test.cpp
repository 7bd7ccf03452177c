// Task 8.7.layout: random layouts, and what each head and layer says of its readers by itself.
#include "step8_advanced/disaggregation/layout/kv_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/step8_advanced/disaggregation/layout/played_engine.h"

namespace ladder {
namespace {

using namespace ladder::testing;

std::vector<int64_t> random_stages(Random& random, int64_t num_layers) {
  std::set<int64_t> ends = {num_layers};
  for (int64_t more = random.integer(0, 4); more > 0; --more) ends.insert(random.integer(1, num_layers));
  return {ends.begin(), ends.end()};
}

struct Pair {
  KvLayout from, to;
};
Pair random_pair(Random& random) {
  const int64_t heads = random.integer(1, 16), num_layers = random.integer(1, 12);
  const auto random_ranks = [&] {
    int ranks = 1;
    do ranks = static_cast<int>(random.integer(1, 24));
    while (!divides(heads, ranks));
    return ranks;
  };
  return {layout_of(heads, random_ranks(), random_stages(random, num_layers)),
          layout_of(heads, random_ranks(), random_stages(random, num_layers))};
}

// Numbered in the order of layers: which stage has a layer.
int64_t stage_of(const KvLayout& layout, int64_t layer) {
  return std::ranges::upper_bound(layout.stage_ends, layer) - layout.stage_ends.begin();
}
// The tensor ranks that keep a head.
std::vector<int> keepers(const KvLayout& layout, int64_t head) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.tensor_parallel_size; ++rank) {
    const int64_t size = layout.tensor_parallel_size;
    const int64_t first = rank * layout.num_kv_heads / size;
    const int64_t count = std::max<int64_t>(1, layout.num_kv_heads / size);
    if (head >= first && head < first + count) ranks.push_back(rank);
  }
  return ranks;
}

TEST(Hidden8_7_Layout, EveryRankGetsAllThatItKeepsFromWhoKeepsIt) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300 && !HasFailure(); ++round) {
    const auto [from, to] = random_pair(random);
    SCOPED_TRACE(layout_text(from) + " -> " + layout_text(to));
    std::map<std::tuple<int, int64_t, int64_t>, int> sources;  // reader, layer, head
    std::tuple<int, int64_t, int64_t> last{-1, 0, 0};
    const KvRead* before = nullptr;
    const std::vector<KvRead> reads = kv_reads(from, to);
    for (const KvRead& read : reads) {
      const std::tuple place(read.to_rank, read.first_layer, read.first_head);
      ASSERT_LT(last, place) << "the order";
      last = place;
      ASSERT_FALSE(before != nullptr && before->to_rank == read.to_rank &&
                   before->from_rank == read.from_rank)
          << "two reads that are one";
      before = &read;
      for (int64_t layer = read.first_layer; layer < read.first_layer + read.num_layers; ++layer)
        for (int64_t head = read.first_head; head < read.first_head + read.num_heads; ++head)
          ASSERT_TRUE(sources.emplace(std::tuple(read.to_rank, layer, head), read.from_rank).second)
              << "twice";
    }
    size_t wanted = 0;
    for (int64_t layer = 0; layer < to.num_layers; ++layer)
      for (int64_t head = 0; head < to.num_kv_heads; ++head)
        for (const int rank : keepers(to, head)) {
          ++wanted;
          const int reader = rank + static_cast<int>(stage_of(to, layer)) * to.tensor_parallel_size;
          const auto found = sources.find({reader, layer, head});
          ASSERT_NE(found, sources.end())
              << "rank " << reader << " lacks layer " << layer << ", head " << head;
          ASSERT_EQ(found->second / from.tensor_parallel_size, stage_of(from, layer));
          ASSERT_TRUE(std::ranges::count(keepers(from, head), found->second % from.tensor_parallel_size));
        }
    ASSERT_EQ(sources.size(), wanted) << "somebody gets what he does not keep";
  }
}

// Readers of a head that several ranks keep are dealt out over them.
TEST(Hidden8_7_Layout, CopiesTakeTurns) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300 && !HasFailure(); ++round) {
    auto [from, to] = random_pair(random);
    from.stage_ends = to.stage_ends = {from.num_layers};
    SCOPED_TRACE(layout_text(from) + " -> " + layout_text(to));
    std::map<int64_t, std::map<int, int64_t>> times;
    for (const KvRead& read : kv_reads(from, to))
      for (int64_t head = read.first_head; head < read.first_head + read.num_heads; ++head)
        ++times[head][read.from_rank];
    for (int64_t head = 0; head < from.num_kv_heads; ++head) {
      int64_t least = INT64_MAX, most = 0;
      for (const int rank : keepers(from, head)) {
        least = std::min(least, times[head][rank]);
        most = std::max(most, times[head][rank]);
      }
      ASSERT_LE(most, least + 1) << "head " << head;
    }
  }
}

TEST(Hidden8_7_Layout, RefusesWhatIsNoPair) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    auto [from, to] = random_pair(random);
    ASSERT_EQ(error_of([&] { kv_reads(from, to); }), "no error");
    switch (random.integer(0, 3)) {
      case 0:
        to.k_dim += random.integer(1, 5);
        break;
      case 1:
        to.v_dim += random.integer(1, 5);
        break;
      case 2:
        to.kept_as = KvCacheDType::int4;
        break;
      default:
        to.num_layers += 1, to.stage_ends.back() += 1;
    }
    ASSERT_NE(error_of([&] { kv_reads(from, to); }), "no error")
        << layout_text(from) << ", " << layout_text(to);
  }
}

}  // namespace
}  // namespace ladder
