// Task 8.7.layout: who reads which layers and heads from whom.
#include "step8_advanced/disaggregation/layout/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "tests/step8_advanced/disaggregation/layout/played_engine.h"

namespace ladder {

void PrintTo(const KvRead& read, std::ostream* out) {
  *out << fmt::format("rank {} -> {}: layers {} + {}, heads {} + {}", read.from_rank, read.to_rank,
                      read.first_layer, read.num_layers, read.first_head, read.num_heads);
}

namespace {

using ::testing::AllOf;
using testing::divides;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::layout_of;
using testing::Random;

constexpr int kTensorRanks[] = {1, 2, 3, 4, 6, 8};
constexpr int64_t kHeads[] = {1, 2, 3, 8};
const std::vector<int64_t> kStages[] = {{6}, {2, 6}, {3, 6}, {1, 4, 6}, {2, 3, 6}};

// work(from, to) of every pair that exists.
template <class Work>
void for_pairs(Work work) {
  for (const int64_t heads : kHeads)
    for (const int from : kTensorRanks)
      for (const int to : kTensorRanks)
        if (divides(heads, from) && divides(heads, to))
          for (const auto& from_stages : kStages)
            for (const auto& to_stages : kStages) {
              const KvLayout a = layout_of(heads, from, from_stages), b = layout_of(heads, to, to_stages);
              SCOPED_TRACE(layout_text(a) + " -> " + layout_text(b));
              work(a, b);
              if (::testing::Test::HasFailure()) return;
            }
}

int64_t first_layer_of(const KvLayout& layout, int rank) {
  const int stage = rank / layout.tensor_parallel_size;
  return stage == 0 ? 0 : layout.stage_ends[static_cast<size_t>(stage) - 1];
}
int64_t end_layer_of(const KvLayout& layout, int rank) {
  return layout.stage_ends[static_cast<size_t>(rank / layout.tensor_parallel_size)];
}

TEST(Task8_7_Layout_Heads, AreSharedOutInOrder) {
  EXPECT_EQ(heads_of_rank(8, 4, 0).first, 0);
  EXPECT_EQ(heads_of_rank(8, 4, 3).first, 6);
  EXPECT_EQ(heads_of_rank(8, 4, 3).count, 2);
  EXPECT_EQ(heads_of_rank(3, 1, 0).count, 3);
}

TEST(Task8_7_Layout_Heads, NeighboursShareOneWhereThereAreMoreRanks) {
  std::vector<int64_t> first;
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(heads_of_rank(2, 8, rank).count, 1);
    first.push_back(heads_of_rank(2, 8, rank).first);
  }
  EXPECT_THAT(first, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
}

TEST(Task8_7_Layout_Heads, RefuseRanksThatDoNotDivideThem) {
  EXPECT_THAT(error_of([] { heads_of_rank(8, 3, 0); }), AllOf(HasSubstr("8"), HasSubstr("3")));
  EXPECT_THAT(error_of([] { heads_of_rank(3, 8, 0); }), AllOf(HasSubstr("8"), HasSubstr("3")));
}

TEST(Task8_7_Layout_Reads, FourRanksToTwo) {
  EXPECT_THAT(kv_reads(layout_of(8, 4), layout_of(8, 2)),
              ElementsAre(KvRead{0, 0, 0, 4, 0, 2}, KvRead{1, 0, 0, 4, 2, 2}, KvRead{2, 1, 0, 4, 4, 2},
                          KvRead{3, 1, 0, 4, 6, 2}));
}

TEST(Task8_7_Layout_Reads, TwoRanksToFour) {
  EXPECT_THAT(kv_reads(layout_of(8, 2), layout_of(8, 4)),
              ElementsAre(KvRead{0, 0, 0, 4, 0, 2}, KvRead{0, 1, 0, 4, 2, 2}, KvRead{1, 2, 0, 4, 4, 2},
                          KvRead{1, 3, 0, 4, 6, 2}));
}

TEST(Task8_7_Layout_Reads, StagesThatEndElsewhere) {
  EXPECT_THAT(kv_reads(layout_of(2, 1, {4, 6}), layout_of(2, 1, {2, 6})),
              ElementsAre(KvRead{0, 0, 0, 2, 0, 2}, KvRead{0, 1, 2, 2, 0, 2}, KvRead{1, 1, 4, 2, 0, 2}));
}

TEST(Task8_7_Layout_Reads, EachRankGetsItsLayersAndHeadsOnce) {
  for_pairs([](const KvLayout& from, const KvLayout& to) {
    std::map<std::tuple<int, int64_t, int64_t>, int> times;
    for (const KvRead& read : kv_reads(from, to))
      for (int64_t layer = 0; layer < read.num_layers; ++layer)
        for (int64_t head = 0; head < read.num_heads; ++head)
          ++times[{read.to_rank, read.first_layer + layer, read.first_head + head}];
    int64_t wanted = 0;
    for (int rank = 0; rank < to.tensor_parallel_size * std::ssize(to.stage_ends); ++rank) {
      const HeadRange heads =
          heads_of_rank(to.num_kv_heads, to.tensor_parallel_size, rank % to.tensor_parallel_size);
      for (int64_t layer = first_layer_of(to, rank); layer < end_layer_of(to, rank); ++layer)
        for (int64_t head = heads.first; head < heads.first + heads.count; ++head, ++wanted)
          EXPECT_EQ((times[{rank, layer, head}]), 1)
              << "rank " << rank << " layer " << layer << " head " << head;
    }
    EXPECT_EQ(std::ssize(times), wanted) << "a rank gets what it does not keep";
  });
}

TEST(Task8_7_Layout_Reads, AreFromRanksThatKeepIt) {
  for_pairs([](const KvLayout& from, const KvLayout& to) {
    for (const KvRead& read : kv_reads(from, to)) {
      ASSERT_LT(read.from_rank, from.tensor_parallel_size * std::ssize(from.stage_ends));
      const HeadRange heads = heads_of_rank(from.num_kv_heads, from.tensor_parallel_size,
                                            read.from_rank % from.tensor_parallel_size);
      EXPECT_GE(read.first_head, heads.first);
      EXPECT_LE(read.first_head + read.num_heads, heads.first + heads.count);
      EXPECT_GE(read.first_layer, first_layer_of(from, read.from_rank));
      EXPECT_LE(read.first_layer + read.num_layers, end_layer_of(from, read.from_rank));
    }
  });
}

TEST(Task8_7_Layout_Reads, AreInOrderAndAsFewAsThatTakes) {
  for_pairs([](const KvLayout& from, const KvLayout& to) {
    const std::vector<KvRead> reads = kv_reads(from, to);
    const auto place = [](const KvRead& read) {
      return std::tuple(read.to_rank, read.first_layer, read.first_head);
    };
    for (size_t i = 1; i < reads.size(); ++i) {
      EXPECT_LT(place(reads[i - 1]), place(reads[i]));
      EXPECT_FALSE(reads[i - 1].to_rank == reads[i].to_rank && reads[i - 1].from_rank == reads[i].from_rank)
          << "read " << i << " goes on where the one before ended";
    }
  });
}

TEST(Task8_7_Layout_Reads, TakeTurnsAmongRanksThatKeepTheSame) {
  for_pairs([](const KvLayout& from, const KvLayout& to) {
    if (from.stage_ends.size() > 1) return;
    // Of each head, how often each rank that keeps it is read.
    std::map<int64_t, std::map<int, int>> times;
    for (int rank = 0; rank < from.tensor_parallel_size; ++rank) {
      const HeadRange heads = heads_of_rank(from.num_kv_heads, from.tensor_parallel_size, rank);
      for (int64_t head = heads.first; head < heads.first + heads.count; ++head) times[head][rank] = 0;
    }
    for (const KvRead& read : kv_reads(from, to))
      for (int64_t head = read.first_head; head < read.first_head + read.num_heads; ++head)
        ++times[head][read.from_rank];
    for (const auto& [head, ranks] : times) {
      int least = 1000, most = 0;
      for (const auto& [rank, count] : ranks) least = std::min(least, count), most = std::max(most, count);
      EXPECT_LE(most - least, 1) << "head " << head;
    }
  });
}

TEST(Task8_7_Layout_Refusals, NameWhatDiffers) {
  const KvLayout mine = layout_of(8, 2);
  const auto refusal = [&](auto change) {
    KvLayout theirs = mine;
    change(theirs);
    return error_of([&] { kv_reads(theirs, mine); });
  };
  EXPECT_EQ(refusal([](KvLayout&) {}), "no error");
  EXPECT_EQ(refusal([](KvLayout& of) { of.dtype = DType::bf16; }), "no error");
  EXPECT_EQ(refusal([](KvLayout& of) { of.block_size = 32; }), "no error");
  EXPECT_THAT(refusal([](KvLayout& of) { of.num_layers = 5, of.stage_ends = {5}; }), HasSubstr("layers"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.num_kv_heads = 4; }), HasSubstr("KV heads"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.k_dim = 7; }), HasSubstr("per key"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.v_dim = 7; }), HasSubstr("per value"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.kept_as = KvCacheDType::fp8; }),
              AllOf(HasSubstr("fp8"), HasSubstr("f32")));
  KvLayout fp8 = mine, int8 = mine;
  fp8.kept_as = KvCacheDType::fp8;
  int8.kept_as = KvCacheDType::int8;
  EXPECT_THAT(error_of([&] { kv_reads(fp8, int8); }), AllOf(HasSubstr("fp8"), HasSubstr("int8")));
}

TEST(Task8_7_Layout_Refusals, NumbersThatNoEngineHas) {
  const auto refusal = [&](auto change) {
    KvLayout layout = layout_of(8, 2, {2, 4});
    change(layout);
    return error_of([&] { expect_kv_layout(layout); });
  };
  EXPECT_EQ(refusal([](KvLayout&) {}), "no error");
  for (const int64_t number : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, INT64_MIN, INT64_MAX}) {
    EXPECT_THAT(refusal([&](KvLayout& of) { of.num_layers = number; }), HasSubstr("layer"));
    EXPECT_THAT(refusal([&](KvLayout& of) { of.num_kv_heads = number; }), HasSubstr("KV heads"));
    EXPECT_THAT(refusal([&](KvLayout& of) { of.k_dim = number; }), HasSubstr("per key"));
    EXPECT_THAT(refusal([&](KvLayout& of) { of.v_dim = number; }), HasSubstr("per value"));
    EXPECT_THAT(refusal([&](KvLayout& of) { of.block_size = number; }), HasSubstr("block"));
    EXPECT_THAT(refusal([&](KvLayout& of) { of.stage_ends = {number, 4}; }), HasSubstr("stage"));
  }
  for (const int ranks : {0, -1, INT32_MIN, INT32_MAX})
    EXPECT_THAT(refusal([&](KvLayout& of) { of.tensor_parallel_size = ranks; }), HasSubstr("ranks"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.stage_ends = {}; }), HasSubstr("stages"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.stage_ends = {2, 2, 4}; }), HasSubstr("stage 1"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.stage_ends = {2, 3}; }), HasSubstr("expected 4"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.dtype = DType::i64; }), HasSubstr("i64"));
  EXPECT_THAT(refusal([](KvLayout& of) { of.tensor_parallel_size = 3; }), HasSubstr("8 KV heads"));
}

TEST(Task8_7_Layout_Engine, IsDescribedAsItIsBuilt) {
  DecoderSpec spec;
  spec.num_layers = 7;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  RunnerConfig config;
  config.dtype = DType::bf16;
  config.tensor_parallel_size = 2;
  config.pipeline_parallel_size = 2;
  config.batch.block_size = 16;
  EXPECT_EQ(layout_text(kv_layout_of(spec, config)),
            "7 layers of 8 heads of 128, bf16, TP 2, 2 stages, blocks of 16");
  EXPECT_THAT(kv_layout_of(spec, config).stage_ends, ElementsAre(3, 7));
  config.decode_context_parallel_size = 2;
  EXPECT_THAT(error_of([&] { kv_layout_of(spec, config); }), HasSubstr("--decode-context-parallel-size 2"));
  config.decode_context_parallel_size = 1;
  config.prefill_context_parallel_size = 2;
  EXPECT_THAT(error_of([&] { kv_layout_of(spec, config); }), HasSubstr("--prefill-context-parallel-size 2"));
}

// Bytes per token, as the chapter lists them.
TEST(Task8_7_Layout_Size, IsWhatTheChapterSays) {
  const auto bytes_per_token = [](int64_t layers, int64_t heads, int64_t dim, KvCacheDType kept_as) {
    KvLayout layout = layout_of(heads, 1, {layers});
    layout.k_dim = layout.v_dim = dim;
    layout.dtype = DType::bf16;
    layout.kept_as = kept_as;
    return layers * packed_size(layout, {.num_heads = heads, .num_tokens = 1});
  };
  EXPECT_EQ(bytes_per_token(28, 8, 128, KvCacheDType::automatic), 114'688);  // Qwen3-0.6B
  EXPECT_EQ(bytes_per_token(36, 8, 128, KvCacheDType::automatic), 147'456);  // Qwen3-8B
  EXPECT_EQ(bytes_per_token(32, 8, 128, KvCacheDType::automatic), 131'072);  // Llama-3.1-8B
  EXPECT_EQ(bytes_per_token(80, 8, 128, KvCacheDType::automatic), 327'680);  // Llama-3.1-70B
  EXPECT_EQ(bytes_per_token(36, 8, 128, KvCacheDType::fp8), 78'336);
  EXPECT_EQ(bytes_per_token(36, 8, 128, KvCacheDType::int4), 41'472);
}

}  // namespace
}  // namespace ladder
