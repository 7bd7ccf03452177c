// Paged attention at the sizes that the prefill rungs are made of: more rows than a tile, heads and pages as
// models have them, short chunks of long sequences, many sequences at once.
#include "tests/step1_layers/attention_scene.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// One call over the parts on every rung, each compared with one reference.
void check_every_rung(Random& random, const std::vector<Part>& parts, int64_t block_size) {
  const double scale = 1 / std::sqrt(static_cast<double>(parts[0].data->k.dim(2)));
  std::vector<Reference> expected;
  for (const Part& part : parts)
    expected.push_back(attention_reference(*part.data, part.begin, part.end, scale));
  on_every_rung<PagedAttentionArgs>("paged_attention", paged_attention_variants(), [&](const OpContext& ctx) {
    const Attended result = attend(ctx, random, parts, block_size, scale);
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t length = parts[i].end - parts[i].begin;
      if (length == 0) continue;
      EXPECT_TRUE(close_to(result.out.narrow(0, row, length), expected[i].out))
          << "rows " << parts[i].begin << ".." << parts[i].end;
      const auto lse = to_double(result.lse.narrow(0, row, length));
      for (size_t at = 0; at < lse.size(); ++at) EXPECT_NEAR(lse[at], expected[i].lse[at], 1e-4);
      row += length;
    }
  });
}

TEST(Task1_7_PrefillAttention, HeadSizesGroupsAndPagesOfModels) {
  struct Case {
    HeadShape shape;
    DType dtype;
    int64_t block_size;
  };
  for (const Case& one : {Case{{2, 2, 128, 128}, DType::bf16, 16},
                          {{4, 1, 128, 128}, DType::f16, 256},
                          {{3, 1, 128, 128}, DType::f16, 48},
                          {{16, 1, 128, 128}, DType::bf16, 32},
                          {{4, 2, 128, 128}, DType::f32, 16},
                          {{7, 1, 64, 64}, DType::f16, 16},
                          {{2, 1, 64, 64}, DType::f32, 64},
                          {{2, 2, 256, 256}, DType::f16, 128},
                          {{2, 1, 256, 256}, DType::f32, 16}}) {
    Random random;
    SCOPED_TRACE(random.describe() + " heads " + std::to_string(one.shape.heads) + " of " +
                 std::to_string(one.shape.k_dim));
    const SequenceData whole = random_sequence(random, 261, one.shape, one.dtype);
    const SequenceData chunk = random_sequence(random, 193, one.shape, one.dtype);
    check_every_rung(random, {{&whole, 0, 261}, {&chunk, 192, 193}, {&chunk, 120, 187}}, one.block_size);
  }
}

// The running maximum rises from tile to tile, and what was summed before has to shrink with it.
TEST(Task1_7_PrefillAttention, KeysThatWeighMoreThanAllBefore) {
  for (int64_t dim : {64, 128}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
    const DType dtype = dim == 64 ? DType::bf16 : DType::f16;
    const SequenceData data = random_sequence(random, 333, {4, 2, dim, dim}, dtype);
    with_float_type(dtype, "k", [&](auto tag) {
      auto* k = data.k.data<decltype(tag)>();
      const int64_t row = data.k.numel() / data.length();
      for (int64_t i = 0; i < data.k.numel(); ++i)
        k[i] = decltype(tag)(static_cast<float>(k[i]) * static_cast<float>(1 + i / row / 24));
    });
    check_every_rung(random, {{&data, 0, 333}, {&data, 300, 333}}, 16);
  }
}

TEST(Task1_7_PrefillAttention, AShortChunkOfALongSequence) {
  // Few rows and many keys: a rung may cut the keys into parts.
  for (int64_t dim : {64, 128}) {
    Random random;
    SCOPED_TRACE(random.describe() + " dim " + std::to_string(dim));
    const SequenceData data = random_sequence(random, 2113, {4, 2, dim, dim}, DType::f16);
    const SequenceData other = random_sequence(random, 30, {4, 2, dim, dim}, DType::f16);
    check_every_rung(random, {{&data, 2080, 2113}, {&other, 27, 30}}, 16);
  }
}

TEST(Task1_7_PrefillAttention, ManySequencesOfFewRows) {
  // More items than there are multiprocessors: blocks take several, one after the other.
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<SequenceData> data;
  std::vector<Part> parts;
  for (int i = 0; i < 14; ++i)
    data.push_back(
        random_sequence(random, random.integer(2, 140 / (i + 1) + 2), {16, 16, 128, 128}, DType::f16));
  for (const SequenceData& one : data) {
    const int64_t rows = parts.size() % 5 == 3 ? 0 : random.integer(1, 2);  // some without a row
    parts.push_back({&one, one.length() - rows, one.length()});
  }
  check_every_rung(random, parts, 16);
}

}  // namespace
}  // namespace ladder
