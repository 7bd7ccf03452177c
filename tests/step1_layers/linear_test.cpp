// Task 1.4: linear layers whose weights are split over ranks.
#include "step1_layers/linear/linear.h"
#include "step1_layers/linear/load_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/support/error_of.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Random;

// One full checkpoint tensor per part: weights first, then biases.
struct Checkpoint {
  std::vector<Tensor> weights;
  std::vector<Tensor> biases;
};

Checkpoint make_checkpoint(Random& random, int64_t in, const std::vector<int64_t>& out, DType dtype) {
  Checkpoint checkpoint;
  for (int64_t size : out) {
    checkpoint.weights.push_back(random.exact({size, in}, dtype));
    checkpoint.biases.push_back(random.exact({size}, dtype));
  }
  return checkpoint;
}

void load(Linear& linear, const OpContext& ctx, const Checkpoint& checkpoint) {
  for (Parameter* parameter : linear.parameters()) {
    EXPECT_EQ(parameter->num_parts, static_cast<int>(checkpoint.weights.size()));
    for (int part = 0; part < parameter->num_parts; ++part) {
      EXPECT_FALSE(parameter->is_loaded());
      const bool weight = parameter->name.ends_with(".weight");
      parameter->load((weight ? checkpoint.weights : checkpoint.biases)[static_cast<size_t>(part)], part);
    }
    EXPECT_TRUE(parameter->is_loaded());
  }
  linear.process_after_load(ctx);
}

// Rows [begin, begin + size) of x times one full part, in double.
std::vector<double> reference(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto a = testing::to_double(x), b = testing::to_double(weight), c = testing::to_double(bias);
  const int64_t k = x.dim(1), n = weight.dim(0);
  std::vector<double> out(static_cast<size_t>(x.dim(0) * n));
  for (int64_t i = 0; i < x.dim(0); ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = c[static_cast<size_t>(j)];
      for (int64_t t = 0; t < k; ++t)
        sum += a[static_cast<size_t>(i * k + t)] * b[static_cast<size_t>(j * k + t)];
      out[static_cast<size_t>(i * n + j)] = sum;
    }
  return out;
}

constexpr int64_t kRows = 5;

// Runs a layer on 1, 2 and 4 ranks; check(rank, ranks, layer, out) compares this rank's rows.
void on_ranks(const std::function<void(const OpContext& ctx, int rank, int ranks)>& fn) {
  for (int ranks : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
      Arena arena;
      OpContext ctx;
      ctx.arena = &arena;
      ctx.parallel = &parallel;
      fn(ctx, rank, ranks);
    });
  }
}

// Columns [begin, begin + size) of a rank's output equal columns [from, from + size) of the full result.
void expect_columns(const Tensor& out, int64_t begin, int64_t size, const std::vector<double>& full,
                    int64_t full_width, int64_t from) {
  const auto values = testing::to_double(out.narrow(1, begin, size));
  for (int64_t row = 0; row < out.dim(0); ++row)
    for (int64_t j = 0; j < size; ++j)
      ASSERT_EQ(values[static_cast<size_t>(row * size + j)],
                full[static_cast<size_t>(row * full_width + from + j)])
          << "row " << row << " column " << begin + j;
}

TEST(Task1_4_Linear, ColumnParallelOwnsAShareOfTheOutputs) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Checkpoint checkpoint = make_checkpoint(random, 24, {20}, DType::f32);
    const Tensor x = random.exact({kRows, 24}, dtype);
    const auto expected = reference(x, checkpoint.weights[0], checkpoint.biases[0]);
    on_ranks([&](const OpContext& ctx, int rank, int ranks) {
      ColumnParallelLinear linear(ctx, "up", 24, 20, {.dtype = dtype, .bias = true});
      load(linear, ctx, checkpoint);  // converts from f32
      EXPECT_EQ(linear.out_features(), 20 / ranks);
      Tensor out = testing::poisoned({kRows, 20 / ranks}, DType::f32);
      linear.forward(ctx, x, out);
      expect_columns(out, 0, 20 / ranks, expected, 20, rank * (20 / ranks));
    });
  }
}

TEST(Task1_4_Linear, MergedColumnsLieSideBySideOnEveryRank) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Checkpoint checkpoint = make_checkpoint(random, 16, {12, 28}, DType::bf16);
  const Tensor x = random.exact({kRows, 16}, DType::bf16);
  on_ranks([&](const OpContext& ctx, int rank, int ranks) {
    MergedColumnParallelLinear linear(ctx, "gate_up", 16, {12, 28}, {.dtype = DType::bf16, .bias = true});
    load(linear, ctx, checkpoint);
    Tensor out = testing::poisoned({kRows, 40 / ranks}, DType::bf16);
    linear.forward(ctx, x, out);
    expect_columns(out, 0, 12 / ranks, reference(x, checkpoint.weights[0], checkpoint.biases[0]), 12,
                   rank * 12 / ranks);
    const std::vector<double> second = reference(x, checkpoint.weights[1], checkpoint.biases[1]);
    expect_columns(out, 12 / ranks, 28 / ranks, second, 28, rank * 28 / ranks);
    Tensor alone = testing::poisoned({kRows, 28 / ranks}, DType::bf16);
    linear.forward_parts(ctx, 1, 1, x, alone);
    expect_columns(alone, 0, 28 / ranks, second, 28, rank * 28 / ranks);
  });
}

TEST(Task1_4_Linear, QkvGivesEveryRankWholeHeadsAndTheKvHeadThatTheyUse) {
  Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kIn = 20, kHeads = 8, kHeadDim = 6;
  for (int64_t kv_heads : {8, 4, 2, 1}) {
    SCOPED_TRACE(fmt::format("{} KV heads", kv_heads));
    const Checkpoint checkpoint = make_checkpoint(
        random, kIn, {kHeads * kHeadDim, kv_heads * kHeadDim, kv_heads * kHeadDim}, DType::f32);
    const Tensor x = random.exact({kRows, kIn}, DType::f32);
    on_ranks([&](const OpContext& ctx, int rank, int ranks) {
      QkvParallelLinear linear(ctx, "qkv", kIn, kHeads, kv_heads, kHeadDim, {.bias = true});
      load(linear, ctx, checkpoint);
      const int64_t heads = kHeads / ranks, kv = std::max<int64_t>(kv_heads / ranks, 1);
      ASSERT_EQ(linear.num_heads(), heads);
      ASSERT_EQ(linear.num_kv_heads(), kv);
      Tensor out = testing::poisoned({kRows, linear.out_features()}, DType::f32);
      linear.forward(ctx, x, out);
      // The KV head of this rank's first query head.
      const int64_t first_kv = rank * heads / (kHeads / kv_heads);
      const int64_t first[] = {rank * heads, first_kv, first_kv}, count[] = {heads, kv, kv};
      const int64_t full[] = {kHeads, kv_heads, kv_heads};
      int64_t column = 0;
      for (size_t part = 0; part < 3; ++part) {
        expect_columns(out, column, count[part] * kHeadDim,
                       reference(x, checkpoint.weights[part], checkpoint.biases[part]), full[part] * kHeadDim,
                       first[part] * kHeadDim);
        column += count[part] * kHeadDim;
      }
    });
  }
}

TEST(Task1_4_Linear, RowParallelSumsOverTheRanksAndAddsTheBiasOnce) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Checkpoint checkpoint = make_checkpoint(random, 24, {7}, dtype);
    const Tensor x = random.exact({kRows, 24}, dtype);
    const auto expected = reference(x, checkpoint.weights[0], checkpoint.biases[0]);
    on_ranks([&](const OpContext& ctx, int rank, int ranks) {
      RowParallelLinear linear(ctx, "down", 24, 7, {.dtype = dtype, .bias = true});
      load(linear, ctx, checkpoint);
      EXPECT_EQ(linear.in_features(), 24 / ranks);
      Tensor out = testing::poisoned({kRows, 7}, dtype);
      // A window of the full rows: strided x.
      linear.forward(ctx, x.narrow(1, rank * (24 / ranks), 24 / ranks), out);
      EXPECT_EQ(testing::to_double(out), expected);
    });
  }
}

TEST(Task1_4_Linear, ColumnThenRowNeedsOneAllReduce) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Checkpoint up = make_checkpoint(random, 12, {16}, DType::f32);
  const Checkpoint down = make_checkpoint(random, 16, {12}, DType::f32);
  const Tensor x = random.exact({kRows, 12}, DType::f32, 1);
  const auto middle = reference(x, up.weights[0], up.biases[0]);
  std::vector<float> floats(middle.begin(), middle.end());
  const auto expected = reference(Tensor::from<float>(floats, {kRows, 16}), down.weights[0], down.biases[0]);
  on_ranks([&](const OpContext& ctx, int, int ranks) {
    ColumnParallelLinear first(ctx, "up", 12, 16, {.bias = true});
    RowParallelLinear second(ctx, "down", 16, 12, {.bias = true});
    load(first, ctx, up);
    load(second, ctx, down);
    Tensor hidden = testing::poisoned({kRows, 16 / ranks}, DType::f32);
    Tensor out = testing::poisoned({kRows, 12}, DType::f32);
    first.forward(ctx, x, hidden);
    second.forward(ctx, hidden, out);
    EXPECT_EQ(testing::to_double(out), expected);
  });
}

// A rank of a larger group, for what happens before any communication.
struct FakeRank {
  LocalGroup group;
  ParallelContext parallel;
  OpContext ctx;
  FakeRank(int rank, int size) : group(size) {
    parallel.tp = &group.rank(rank);
    ctx.parallel = &parallel;
  }
};

TEST(Task1_4_Linear, WhatTheRanksDoNotDivideIsRefusedByName) {
  FakeRank two(0, 2), three(1, 3), four(0, 4);
  EXPECT_THAT(error_of([&] { ColumnParallelLinear(two.ctx, "layers.0.up", 8, 7, {}); }),
              AllOf(HasSubstr("layers.0.up"), HasSubstr("7"), HasSubstr("2")));
  EXPECT_THAT(error_of([&] { RowParallelLinear(two.ctx, "layers.0.down", 9, 8, {}); }),
              AllOf(HasSubstr("layers.0.down"), HasSubstr("9")));
  EXPECT_THAT(error_of([&] {
                MergedColumnParallelLinear(two.ctx, "gate_up", 8, {6, 5}, {});
              }),
              HasSubstr("gate_up"));
  EXPECT_THAT(error_of([&] { QkvParallelLinear(three.ctx, "qkv", 8, 8, 8, 4, {}); }),
              HasSubstr("query heads"));
  EXPECT_THAT(error_of([&] { QkvParallelLinear(four.ctx, "qkv", 8, 12, 3, 4, {}); }), HasSubstr("copies"));
  EXPECT_THAT(error_of([&] { QkvParallelLinear(two.ctx, "qkv", 8, 12, 3, 4, {}); }),
              HasSubstr("key and value heads"));
  EXPECT_THAT(error_of([&] { QkvParallelLinear(two.ctx, "qkv", 8, 12, 5, 4, {}); }), HasSubstr("share"));
}

TEST(Task1_4_Linear, LoadingNamesTheParameterAndBothShapes) {
  FakeRank rank(1, 2);
  MergedColumnParallelLinear linear(rank.ctx, "layers.3.gate_up", 8, {6, 10}, {.bias = true});
  auto parameters = linear.parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0]->name, "layers.3.gate_up.weight");
  EXPECT_EQ(parameters[1]->name, "layers.3.gate_up.bias");
  const auto zeros = [](const Shape& shape, DType dtype = DType::f32) { return Tensor::zeros(shape, dtype); };
  EXPECT_THAT(error_of([&] {
                parameters[0]->load(zeros({6, 9}), 0);
              }),
              AllOf(HasSubstr("layers.3.gate_up.weight"), HasSubstr("[6, 8]"), HasSubstr("[6, 9]")));
  // The shard's own shape is not the full tensor's.
  EXPECT_THAT(error_of([&] { parameters[0]->load(zeros({5, 8}), 1); }), HasSubstr("[10, 8]"));
  EXPECT_THAT(error_of([&] { parameters[1]->load(zeros({6, 1}), 0); }), HasSubstr("[6]"));
  EXPECT_THAT(error_of([&] { parameters[0]->load(zeros({6, 8}, DType::i32), 0); }), HasSubstr("i32"));
  // After a refusal the part can still be loaded, but only once.
  parameters[0]->load(zeros({6, 8}), 0);
  EXPECT_FALSE(parameters[0]->is_loaded());
  EXPECT_THAT(error_of([&] { parameters[0]->load(zeros({6, 8}), 0); }), HasSubstr("twice"));
  EXPECT_THAT(error_of([&] { parameters[0]->load(zeros({6, 8}), 2); }), HasSubstr("no part 2"));
  parameters[0]->load(zeros({10, 8}), 1);
  EXPECT_TRUE(parameters[0]->is_loaded());
}

TEST(Task1_4_Linear, AWindowIsCutOutAndConverted) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor checkpoint = random.normal({5, 9}, DType::bf16);
  const ShardWindow window{.full = {5, 9}, .begin = {1, 2}, .size = {3, 4}};
  for (DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    const Tensor wide = testing::poisoned({3, 6}, dtype), destination = wide.narrow(1, 1, 4);
    load_shard("w", checkpoint, window, destination);
    EXPECT_TRUE(testing::bitwise_equal(destination, checkpoint.narrow(0, 1, 3).narrow(1, 2, 4).to(dtype)));
    for (int64_t column : {0, 5})
      EXPECT_TRUE(testing::bitwise_equal(wide.narrow(1, column, 1), testing::poisoned({3, 1}, dtype)))
          << column;
  }
}

TEST(Task1_4_Linear, LoadsFromMappedBytesAtAnyAddress) {
  // Checkpoint data need not be aligned to its element type.
  std::vector<char> bytes(1 + 6 * 4 * sizeof(float));
  for (int i = 0; i < 24; ++i) {
    const float value = static_cast<float>(i);
    std::memcpy(bytes.data() + 1 + i * sizeof(float), &value, sizeof value);
  }
  OpContext ctx;
  for (DType dtype : {DType::f32, DType::bf16}) {
    ColumnParallelLinear linear(ctx, "l", 4, 6, {.dtype = dtype});
    Parameter* weight = linear.parameters()[0];
    weight->load(Tensor::wrap(bytes.data() + 1, {6, 4}, DType::f32));
    std::vector<double> expected(24);
    std::iota(expected.begin(), expected.end(), 0.0);
    EXPECT_EQ(testing::to_double(weight->tensor), expected);
  }
}

TEST(Task1_4_Linear, ParametersStayValidWhenTheLayerMoves) {
  OpContext ctx;
  std::vector<ColumnParallelLinear> layers;
  layers.emplace_back(ctx, "a", 3, 2, LinearOptions{});
  Parameter* parameter = layers[0].parameters()[0];
  for (int i = 0; i < 10; ++i) layers.emplace_back(ctx, "b", 3, 2, LinearOptions{});
  EXPECT_EQ(layers[0].parameters()[0], parameter);
  EXPECT_EQ(parameter->name, "a.weight");
}

// A method that packs its weight, as quantized ones do: two inputs to an element, one scale per output.
class PackedMethod final : public LinearMethod {
 public:
  std::vector<LinearParameterSpec> parameters(const LinearShape&) const override {
    return {{"packed", DType::u8, {LinearDimension::along_out(), LinearDimension::along_in(2)}},
            {"scale", DType::f32, {LinearDimension::along_out()}}};
  }
  void process_after_load(const OpContext&, const LinearShape& shape,
                          std::vector<Tensor>& parameters) const override {
    Tensor weight = Tensor::empty({shape.out_features(), shape.in_features()}, DType::f32);
    for (int64_t j = 0; j < shape.out_features(); ++j)
      for (int64_t k = 0; k < shape.in_features(); ++k) {
        const int byte = parameters[0].at<uint8_t>({j, k / 2});
        weight.at<float>({j, k}) =
            static_cast<float>(k % 2 ? byte >> 4 : byte & 15) * parameters[1].at<float>({j});
      }
    parameters = {weight};
  }
  void apply(const OpContext& ctx, const LinearShape& shape, const std::vector<Tensor>& parameters,
             const Tensor& x, const Tensor& out) const override {
    unquantized_linear_method()->apply(ctx, shape, parameters, x, out);
  }
};

TEST(Task1_4_Linear, AMethodMayPackAndReplaceItsParameters) {
  Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kOut = 8, kIn = 16;
  Tensor packed = Tensor::empty({kOut, kIn / 2}, DType::u8), scale = random.exact({kOut}, DType::f32);
  Tensor weight = Tensor::empty({kOut, kIn}, DType::f32);
  for (int64_t j = 0; j < kOut; ++j)
    for (int64_t k = 0; k < kIn / 2; ++k) {
      const auto byte = static_cast<uint8_t>(random.integer(0, 255));
      packed.at<uint8_t>({j, k}) = byte;
      weight.at<float>({j, 2 * k}) = static_cast<float>(byte & 15) * scale.at<float>({j});
      weight.at<float>({j, 2 * k + 1}) = static_cast<float>(byte >> 4) * scale.at<float>({j});
    }
  const Tensor x = random.exact({kRows, kIn}, DType::f32);
  const auto expected = reference(x, weight, Tensor::zeros({kOut}, DType::f32));
  on_ranks([&](const OpContext& ctx, int rank, int ranks) {
    const LinearOptions options{.method = std::make_shared<PackedMethod>()};
    RowParallelLinear row(ctx, "row", kIn, kOut, options);
    row.parameters()[0]->load(packed);
    row.parameters()[1]->load(scale);
    row.process_after_load(ctx);
    Tensor out = testing::poisoned({kRows, kOut}, DType::f32);
    row.forward(ctx, x.narrow(1, rank * kIn / ranks, kIn / ranks), out);
    EXPECT_EQ(testing::to_double(out), expected);
    EXPECT_EQ(row.nbytes(), kOut * (kIn / ranks) * 4);
    EXPECT_THROW(row.parameters()[0]->load(packed), Error);
  });
}

// Only declares what it is told to.
class Declared final : public LinearMethod {
 public:
  explicit Declared(LinearParameterSpec spec) : spec_(std::move(spec)) {}
  std::vector<LinearParameterSpec> parameters(const LinearShape&) const override { return {spec_}; }
  void apply(const OpContext&, const LinearShape&, const std::vector<Tensor>&, const Tensor&,
             const Tensor&) const override {}

 private:
  LinearParameterSpec spec_;
};

LinearOptions declares(std::vector<LinearDimension> dims, DType dtype = DType::i32) {
  return {.method = std::make_shared<Declared>(LinearParameterSpec{"p", dtype, std::move(dims)})};
}

std::vector<int32_t> counted(int64_t begin, int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), static_cast<int32_t>(begin));
  return numbers;
}

Tensor counted_tensor(const Shape& shape, int64_t begin = 0) {
  return Tensor::from<int32_t>(counted(begin, shape.numel()), shape);
}

std::vector<int32_t> numbers_of(const Tensor& tensor) {
  const Tensor all = tensor.clone();
  return {all.data<int32_t>(), all.data<int32_t>() + all.numel()};
}

TEST(Task1_4_Linear, ARankHasTheElementsThatItsFeaturesTouch) {
  struct Case {
    int64_t features, elements;  // so many features in so many elements
    int64_t all, ranks, rank;
    int64_t begin, count;  // of the elements
    int64_t full;
  };
  for (const Case& c :
       {Case{128, 1, 640, 2, 0, 0, 3, 5}, Case{128, 1, 640, 2, 1, 2, 3, 5},  // 2.5 groups each
        Case{128, 1, 640, 4, 1, 1, 2, 5}, Case{128, 1, 200, 2, 1, 0, 2, 2},  // a short last one
        Case{8, 1, 24, 2, 0, 0, 2, 3}, Case{8, 1, 24, 2, 1, 1, 2, 3}, Case{32, 3, 40, 1, 0, 0, 4, 4},
        Case{32, 3, 64, 2, 1, 3, 3, 6},
        Case{32, 3, 40, 2, 1, 0, 4, 4},  // three words are one group, whose codes cross words
        Case{1, 1, 6, 3, 2, 4, 2, 6}}) {
    SCOPED_TRACE(fmt::format("{} features in {}, rank {} of {}", c.features, c.elements, c.rank, c.ranks));
    FakeRank rank(static_cast<int>(c.rank), static_cast<int>(c.ranks));
    RowParallelLinear row(rank.ctx, "row", c.all, 4,
                          declares({LinearDimension::along_in(c.features, c.elements)}));
    row.parameters()[0]->load(counted_tensor({c.full}));
    EXPECT_EQ(numbers_of(row.parameters()[0]->tensor), counted(c.begin, c.count));
    ColumnParallelLinear column(rank.ctx, "column", 4, c.all,
                                declares({LinearDimension::along_out(c.features, c.elements)}));
    column.parameters()[0]->load(counted_tensor({c.full}));
    EXPECT_EQ(numbers_of(column.parameters()[0]->tensor), counted(c.begin, c.count));
    EXPECT_THAT(error_of([&] {
                  RowParallelLinear again(rank.ctx, "row", c.all, 4,
                                          declares({LinearDimension::along_in(c.features, c.elements)}));
                  again.parameters()[0]->load(counted_tensor({c.full + 1}));
                }),
                AllOf(HasSubstr("row.p"), HasSubstr(fmt::format("[{}]", c.full))));
  }
}

TEST(Task1_4_Linear, EachMergedPartHasWholeElementsOfItsOwn) {
  FakeRank rank(1, 2);
  // Blocks of 8 by 8 of 20 and 40 rows: rows 10 to 19 and 20 to 39 lie in blocks 1, 2 and in blocks 2, 3, 4.
  MergedColumnParallelLinear linear(rank.ctx, "gate_up", 12, {20, 40},
                                    declares({LinearDimension::along_out(8), LinearDimension::along_in(8)}));
  Parameter* blocks = linear.parameters()[0];
  ASSERT_EQ(blocks->num_parts, 2);
  EXPECT_EQ(blocks->tensor.shape(), (Shape{5, 2}));
  blocks->load(counted_tensor({5, 2}, 100), 1);
  blocks->load(counted_tensor({3, 2}), 0);
  EXPECT_EQ(numbers_of(blocks->tensor), (std::vector<int32_t>{2, 3, 4, 5, 104, 105, 106, 107, 108, 109}));
}

TEST(Task1_4_Linear, AParameterMayHaveOneEntryPerPart) {
  OpContext ctx;
  const std::vector<int64_t> parts = {4, 8};
  MergedColumnParallelLinear scales(ctx, "l", 6, parts, declares({LinearDimension::per_part()}, DType::f32));
  Parameter* scale = scales.parameters()[0];
  ASSERT_EQ(scale->num_parts, 2);
  const float values[] = {0.5f, 0.25f};
  scale->load(Tensor::wrap(const_cast<float*>(&values[0]), {1}, DType::f32), 0);
  scale->load(Tensor::wrap(const_cast<float*>(&values[1]), {}, DType::f32), 1);  // without dimensions
  EXPECT_EQ(testing::to_double(scale->tensor), (std::vector<double>{0.5, 0.25}));

  MergedColumnParallelLinear shapes(ctx, "l", 6, parts,
                                    declares({LinearDimension::per_part(), LinearDimension::of_size(2)}));
  Parameter* shape = shapes.parameters()[0];
  shape->load(counted_tensor({2}, 7), 1);
  shape->load(counted_tensor({2}, 3), 0);
  EXPECT_EQ(numbers_of(shape->tensor), (std::vector<int32_t>{3, 4, 7, 8}));

  // One for each input feature and part, cut like the features.
  FakeRank rank(1, 2);
  RowParallelLinear order(rank.ctx, "l", 6, 4,
                          declares({LinearDimension::per_part(), LinearDimension::along_in()}));
  order.parameters()[0]->load(counted_tensor({6}));
  EXPECT_EQ(numbers_of(order.parameters()[0]->tensor), counted(3, 3));
  EXPECT_THAT(error_of([&] {
                RowParallelLinear again(rank.ctx, "l", 6, 4,
                                        declares({LinearDimension::per_part(), LinearDimension::along_in()}));
                again.parameters()[0]->load(counted_tensor({5}));
              }),
              AllOf(HasSubstr("l.p"), HasSubstr("[1, 6]")));
}

TEST(Task1_4_Linear, WhatFollowsNoFeaturesIsWholeOnEveryRankAndOneForAllParts) {
  FakeRank rank(1, 2);
  MergedColumnParallelLinear linear(rank.ctx, "l", 6, {4, 8}, declares({LinearDimension::of_size(3)}));
  Parameter* whole = linear.parameters()[0];
  EXPECT_EQ(whole->num_parts, 1);
  whole->load(counted_tensor({3}));
  EXPECT_EQ(numbers_of(whole->tensor), counted(0, 3));
}

}  // namespace
}  // namespace ladder
