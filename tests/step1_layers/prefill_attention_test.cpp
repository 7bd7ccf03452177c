// Paged attention at the sizes that the prefill rungs are made of: more rows than a tile, heads and pages as
// models have them, short chunks of long sequences, many sequences at once.
#include "tests/step1_layers/attention_scene.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// One call: sequences, the rows of them that it has, and what they must give.
struct Call {
  std::string what;
  std::vector<SequenceData> data;
  std::vector<Part> parts;
  int64_t block_size;
  std::vector<Reference> expected;

  double scale() const { return 1 / std::sqrt(static_cast<double>(data[0].k.dim(2))); }
};

// `rows`: of the data, first and last position of each part.
struct Rows {
  size_t data;
  int64_t begin, end;
};
Call make_call(std::string what, std::vector<SequenceData> data, const std::vector<Rows>& rows,
               int64_t block_size) {
  Call call{std::move(what), std::move(data), {}, block_size, {}};
  for (const Rows& part : rows) {
    call.parts.push_back({&call.data[part.data], part.begin, part.end});
    call.expected.push_back(attention_reference(call.data[part.data], part.begin, part.end, call.scale()));
  }
  return call;
}

// The calls of a test and their references, which are computed once for all rungs.
struct Calls {
  Random random;
  std::vector<Call> calls;

  explicit Calls(std::vector<Call> (*make)(Random&)) : calls(make(random)) {}
};

void check(const OpContext& ctx, Calls& test) {
  SCOPED_TRACE(test.random.describe());
  for (const Call& call : test.calls) {
    SCOPED_TRACE(call.what);
    const Attended result = attend(ctx, test.random, call.parts, call.block_size, call.scale());
    int64_t row = 0;
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const Part& part = call.parts[i];
      const int64_t length = part.end - part.begin;
      if (length == 0) continue;
      EXPECT_TRUE(close_to(result.out.narrow(0, row, length), call.expected[i].out))
          << "rows " << part.begin << ".." << part.end;
      const auto lse = to_double(result.lse.narrow(0, row, length));
      for (size_t at = 0; at < lse.size(); ++at) EXPECT_NEAR(lse[at], call.expected[i].lse[at], 1e-4);
      row += length;
    }
  }
}

std::vector<Call> calls_of_models(Random& random) {
  struct Case {
    HeadShape shape;
    DType dtype;
    int64_t block_size;
  };
  const int64_t first = emulated() ? 37 : 261, begin = emulated() ? 61 : 120;
  const int64_t second = emulated() ? 70 : 193;
  std::vector<Call> calls;
  for (const Case& one : {Case{{2, 2, 128, 128}, DType::bf16, 16},
                          {{4, 1, 128, 128}, DType::f16, 256},
                          {{3, 1, 128, 128}, DType::f16, 48},
                          {{16, 1, 128, 128}, DType::bf16, 32},
                          {{4, 2, 128, 128}, DType::f32, 16},
                          {{7, 1, 64, 64}, DType::f16, 16},
                          {{2, 1, 64, 64}, DType::f32, 64},
                          {{2, 2, 256, 256}, DType::f16, 128},
                          {{2, 1, 256, 256}, DType::f32, 16}})
    calls.push_back(
        make_call("heads " + std::to_string(one.shape.heads) + " of " + std::to_string(one.shape.k_dim),
                  {random_sequence(random, first, one.shape, one.dtype),
                   random_sequence(random, second, one.shape, one.dtype)},
                  {{0, 0, first}, {1, second - 1, second}, {1, begin, second - 6}}, one.block_size));
  return calls;
}
RUNG_TEST(Task1_7_PrefillAttention, HeadSizesGroupsAndPagesOfModels, "paged_attention",
          mixed_attention_variants()) {
  static Calls calls(calls_of_models);
  check(ctx, calls);
}

// The running maximum rises from tile to tile, and what was summed before has to shrink with it.
std::vector<Call> growing_keys(Random& random) {
  const int64_t length = emulated() ? 75 : 333;
  std::vector<Call> calls;
  for (int64_t dim : {64, 128}) {
    const DType dtype = dim == 64 ? DType::bf16 : DType::f16;
    const SequenceData data = random_sequence(random, length, {4, 2, dim, dim}, dtype);
    with_float_type(dtype, "k", [&](auto tag) {
      auto* k = data.k.data<decltype(tag)>();
      const int64_t row = data.k.numel() / data.length();
      for (int64_t i = 0; i < data.k.numel(); ++i)
        k[i] = decltype(tag)(static_cast<float>(k[i]) * static_cast<float>(1 + i / row / 24));
    });
    calls.push_back(
        make_call("dim " + std::to_string(dim), {data}, {{0, 0, length}, {0, length - 33, length}}, 16));
  }
  return calls;
}
RUNG_TEST(Task1_7_PrefillAttention, KeysThatWeighMoreThanAllBefore, "paged_attention",
          mixed_attention_variants()) {
  static Calls calls(growing_keys);
  check(ctx, calls);
}

std::vector<Call> short_chunk(Random& random) {
  // Few rows and many keys: a rung may cut the keys into parts.
  const int64_t length = emulated() ? 613 : 2113;
  std::vector<Call> calls;
  for (int64_t dim : {64, 128})
    calls.push_back(make_call("dim " + std::to_string(dim),
                              {random_sequence(random, length, {4, 2, dim, dim}, DType::f16),
                               random_sequence(random, 30, {4, 2, dim, dim}, DType::f16)},
                              {{0, length - 33, length}, {1, 27, 30}}, 16));
  return calls;
}
RUNG_TEST(Task1_7_PrefillAttention, AShortChunkOfALongSequence, "paged_attention",
          mixed_attention_variants()) {
  static Calls calls(short_chunk);
  check(ctx, calls);
}

std::vector<Call> many_sequences(Random& random) {
  // More items than there are multiprocessors: blocks take several, one after the other.
  std::vector<SequenceData> data;
  std::vector<Rows> rows;
  for (int i = 0; i < 14; ++i)
    data.push_back(
        random_sequence(random, random.integer(2, 140 / (i + 1) + 2), {16, 16, 128, 128}, DType::f16));
  for (size_t i = 0; i < data.size(); ++i) {
    const int64_t count = i % 5 == 3 ? 0 : random.integer(1, 2);  // some without a row
    rows.push_back({i, data[i].length() - count, data[i].length()});
  }
  std::vector<Call> calls;
  calls.push_back(make_call("14 sequences", std::move(data), rows, 16));
  return calls;
}
RUNG_TEST(Task1_7_PrefillAttention, ManySequencesOfFewRows, "paged_attention", mixed_attention_variants()) {
  static Calls calls(many_sequences);
  check(ctx, calls);
}

}  // namespace
}  // namespace ladder
