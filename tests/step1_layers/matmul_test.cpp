// Task 1.4: the matrix product, every row of its ladder.
#include "step1_layers/linear/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "tests/support/devices.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using testing::bitwise_equal;
using testing::close_to;
using testing::poisoned;
using testing::Random;

struct Problem {
  int64_t m, n, k;
};
// Odd sizes, ones, and sizes around the tiles (6 x 4, 3 x 4, 2 x 2), panels (48) and chunks (1024); more rows
// of the weight than a GPU has multiprocessors, in units of eight, and so many that one block has two groups
// of them (8600).
constexpr Problem kProblems[] = {
    {1, 1, 1},        {1, 5, 3},       {2, 3, 17},     {3, 49, 31},   {5, 7, 64},      {6, 4, 1024},
    {7, 50, 33},      {13, 97, 40},    {16, 48, 1025}, {17, 33, 100}, {1, 131, 96},    {40, 19, 257},
    {4, 8, 3000},     {65, 12, 2049},  {2, 1100, 264}, {9, 3203, 72}, {17, 2200, 520}, {32, 4300, 40},
    {27, 1056, 3096}, {9, 4501, 1024}, {5, 8600, 264}};

std::vector<double> reference(const MatmulArgs& args) {
  const auto x = testing::to_double(args.x), weight = testing::to_double(args.weight);
  const auto bias = args.bias.defined() ? testing::to_double(args.bias) : std::vector<double>();
  const int64_t m = args.x.dim(0), n = args.weight.dim(0), k = args.x.dim(1);
  std::vector<double> out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(j)];
      for (int64_t a = 0; a < k; ++a)
        sum += x[static_cast<size_t>(i * k + a)] * weight[static_cast<size_t>(j * k + a)];
      out[static_cast<size_t>(i * n + j)] = sum;
    }
  return out;
}

// The arguments of every problem and type and what they give in double precision, made once for all rungs.
struct Case {
  MatmulArgs args;  // out: in x's type
  std::vector<double> expected;
};
struct Cases {
  Random random;
  std::vector<Case> cases;

  // make(random, problem, dtype): the arguments without out.
  explicit Cases(MatmulArgs (*make)(Random&, const Problem&, DType)) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const Problem& problem : kProblems) {
        if (testing::emulated() && problem.m * problem.n * problem.k > 1 << 20) continue;
        Case one{make(random, problem, dtype), {}};
        one.expected = reference(one.args);
        cases.push_back(std::move(one));
      }
  }
};

// Runs the rung on every case, out in f32 (and in x's type too), and calls check(args, expected).
template <class Check>
void for_each_case(const OpContext& ctx, const Variant<MatmulArgs>& rung, const Cases& test,
                   bool also_in_the_type_of_x, Check&& check) {
  SCOPED_TRACE(test.random.describe());
  for (const auto& [given, expected] : test.cases)
    for (DType out : {DType::f32, given.x.dtype()}) {
      MatmulArgs args = given;
      args.out = poisoned({args.x.dim(0), args.weight.dim(0)}, out);
      if ((out != DType::f32 && !also_in_the_type_of_x) || !testing::can_run_rung(rung, ctx, args)) continue;
      SCOPED_TRACE(fmt::format("{} times {} to {}", args.x.str(), args.weight.str(), dtype_name(out)));
      testing::run_rung(rung, ctx, args);
      check(args, expected);
      if (::testing::Test::HasFailure()) return;
    }
}
RUNG_TEST(Task1_4_Matmul, IsWithinTheBoundOfDoublePrecision, "matmul", matmul_variants()) {
  static const Cases cases([](Random& random, const Problem& p, DType dtype) {
    MatmulArgs args{random.normal({p.m, p.k}, dtype), random.normal({p.n, p.k}, dtype),
                    p.n % 2 ? random.normal({p.n}, dtype) : Tensor(), Tensor()};
    if (p.n < 8)  // a sum whose terms nearly cancel has no relative bound
      for (const Tensor& terms : {args.x, args.weight, args.bias})
        if (terms.defined()) testing::take_magnitudes(terms);
    return args;
  });
  for_each_case(ctx, rung, cases, true, [](const MatmulArgs& args, const std::vector<double>& expected) {
    EXPECT_TRUE(close_to(args.out, expected, args.x.dim(1)));
  });
}

void expect_equal(const MatmulArgs& args, const std::vector<double>& expected) {
  EXPECT_EQ(testing::to_double(args.out), expected);
}

RUNG_TEST(Task1_4_Matmul, IsExactOnSmallIntegers, "matmul", matmul_variants()) {
  static const Cases cases([](Random& random, const Problem& p, DType dtype) {
    return MatmulArgs{random.exact({p.m, p.k}, dtype), random.exact({p.n, p.k}, dtype),
                      p.n % 2 ? random.exact({p.n}, dtype) : Tensor(), Tensor()};
  });
  OpContext without_scratch_memory = ctx;
  without_scratch_memory.arena = nullptr;
  for_each_case(without_scratch_memory, rung, cases, false, expect_equal);
}

// 257 has no bf16 of its own: rounded first, it would be 256, and 255 with the bias.
RUNG_TEST(Task1_4_Matmul, TheBiasIsAddedBeforeTheRounding, "matmul", matmul_variants()) {
  const auto ones = [](const Shape& shape, float value = 1) {
    const Tensor result = Tensor::empty(shape, DType::f32);
    std::fill_n(result.data<float>(), result.numel(), value);
    return result.to(DType::bf16);
  };
  for (int64_t m : {1, 5, 40}) {
    const MatmulArgs args{ones({m, 264}).narrow(1, 0, 257), ones({48, 264}).narrow(1, 0, 257), ones({48}, -1),
                          poisoned({m, 48}, DType::bf16)};
    if (!testing::can_run_rung(rung, ctx, args)) continue;
    testing::run_rung(rung, ctx, args);
    EXPECT_EQ(testing::to_double(args.out), std::vector<double>(static_cast<size_t>(m * 48), 256.0))
        << m << " rows";
  }
}

RUNG_TEST(Task1_4_Matmul, RowsMayBeWindowsOfWiderTensors, "matmul", matmul_variants()) {
  static const Cases cases([](Random& random, const Problem& p, DType dtype) {
    return MatmulArgs{random.exact({p.m, p.k + 5}, dtype).narrow(1, 3, p.k),
                      random.exact({p.n, p.k + 2}, dtype).narrow(1, 1, p.k), Tensor(), Tensor()};
  });
  for_each_case(ctx, rung, cases, false, expect_equal);
  // Into the middle columns of a wider tensor, whose other columns stay as they are.
  Random random;
  SCOPED_TRACE(random.describe());
  Tensor wide = Tensor::zeros({20, 40}, DType::f32);
  MatmulArgs args{random.exact({20, 30}, DType::f32), random.exact({17, 30}, DType::f32), Tensor(),
                  wide.narrow(1, 11, 17)};
  if (!testing::can_run_rung(rung, ctx, args)) return;
  testing::run_rung(rung, ctx, args);
  EXPECT_EQ(testing::to_double(args.out), reference(args));
  for (int64_t row = 0; row < 20; ++row)
    for (int64_t column : {int64_t{0}, int64_t{10}, int64_t{28}, int64_t{39}})
      EXPECT_EQ(wide.at<float>({row, column}), 0.0f);
}

// What makes a request's logits the same alone and in any batch.
RUNG_TEST(Task1_4_Matmul, ABatchInvariantRungGivesEachRowTheBitsItHasAlone, "matmul",
          testing::rungs_where(matmul_variants(), [](const auto& rung) { return rung.batch_invariant; })) {
  Random random;
  SCOPED_TRACE(random.describe());
  int checked = 0;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{51, 1100}, {9, 77}, {64, 2048}, {1, 33}}) {
      if (testing::emulated() && n * k > 1000) continue;
      const Tensor weight = random.normal({n, k}, dtype), bias = random.normal({n}, dtype);
      const Tensor x = random.normal({40, k}, dtype);
      if (!testing::can_run_rung(rung, ctx, MatmulArgs{x, weight, bias, x})) continue;
      Tensor alone = poisoned({40, n}, DType::f32);
      for (int64_t row = 0; row < 40; ++row)
        testing::run_rung(rung, ctx, {x.narrow(0, row, 1), weight, bias, alone.narrow(0, row, 1)});
      for (int64_t m = 1; m <= 40; ++m) {
        const int64_t first = random.integer(0, 40 - m);
        Tensor out = poisoned({m, n}, DType::f32);
        testing::run_rung(rung, ctx, {x.narrow(0, first, m), weight, bias, out});
        ASSERT_TRUE(bitwise_equal(out, alone.narrow(0, first, m)))
            << dtype_name(dtype) << " m=" << m << " n=" << n << " k=" << k;
      }
      ++checked;
    }
  EXPECT_GT(checked, 0);
}

RUNG_TEST(Task1_4_Matmul, TheNumberOfThreadsDoesNotChangeTheBits, "matmul",
          testing::rungs_where(matmul_variants(), [](const auto& rung) { return rung.batch_invariant; })) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t n = testing::emulated() ? 33 : 331, k = testing::emulated() ? 150 : 1500;
  MatmulArgs args{random.normal({19, k}, DType::bf16), random.normal({n, k}, DType::bf16), Tensor(),
                  poisoned({19, n}, DType::f32)};
  if (!testing::can_run_rung(rung, ctx, args)) return;
  const auto run = [&] { testing::run_rung(rung, ctx, args); };
  testing::with_threads(1, run);
  const Tensor one = args.out.clone();
  for (int count : {2, 3, 8}) {
    args.out.fill_bytes(0xff);
    testing::with_threads(count, run);
    EXPECT_TRUE(bitwise_equal(args.out, one)) << "with " << count << " threads";
  }
}

std::vector<Variant<MatmulArgs>> cuda_rungs(std::string_view name) {
  return testing::rungs_where(matmul_variants(), [&](const auto& rung) {
    return rung.device == DeviceType::cuda && rung.name == name;
  });
}

// Also where every product underflows, so that a sum is -0: adding zeros for what lies beyond k would make it 0.
RUNG_TEST(Task1_4_Matmul, TilesGiveTheBitsOfTheRungBelow, "matmul", cuda_rungs("tiled")) {
  const Variant<MatmulArgs> below = cuda_rungs("naive").at(0);
  Random random;
  SCOPED_TRACE(random.describe());
  const auto tiny = [&](const Shape& shape, DType dtype, float sign) {
    const Tensor values = random.normal(shape, DType::f32, 1e-25);
    for (float& value : std::span(values.data<float>(), static_cast<size_t>(values.numel())))
      value = sign * std::abs(value);
    return values.to(dtype);
  };
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Problem& p : {Problem{5, 7, 19}, {65, 66, 33}, {3, 70, 16}, {1, 1, 1}, {66, 2, 47}})
      for (const bool underflow : {false, true}) {
        if (underflow && dtype == DType::f16) continue;  // the least product is 3.6e-15
        MatmulArgs args{underflow ? tiny({p.m, p.k}, dtype, -1) : random.normal({p.m, p.k}, dtype),
                        underflow ? tiny({p.n, p.k}, dtype, 1) : random.normal({p.n, p.k}, dtype), Tensor(),
                        poisoned({p.m, p.n}, DType::f32)};
        MatmulArgs other = args;
        other.out = poisoned({p.m, p.n}, DType::f32);
        testing::run_rung(rung, ctx, args);
        testing::run_rung(below, ctx, other);
        ASSERT_TRUE(bitwise_equal(args.out, other.out))
            << dtype_name(dtype) << " m=" << p.m << " n=" << p.n << " k=" << p.k
            << (underflow ? ", all products underflow" : "");
      }
}

RUNG_TEST(Task1_4_Matmul, TheDeclaredWorkspaceIsWhatARungTakes, "matmul", matmul_variants()) {
  for (int64_t m : {1, 6, 7, 100}) {
    MatmulArgs args{Tensor::zeros({m, 1030}, DType::bf16), Tensor::zeros({77, 1030}, DType::bf16), Tensor(),
                    Tensor::zeros({m, 77}, DType::bf16)};
    Arena arena;
    OpContext own = ctx;
    own.arena = &arena;
    if (!testing::can_run_rung(rung, own, args)) continue;
    testing::run_rung(rung, own, args);
    const int64_t declared = rung.workspace != nullptr ? rung.workspace(args) : 0;
    EXPECT_LE(declared, arena.peak_bytes());
    EXPECT_LE(arena.peak_bytes(), declared + 3 * 256);  // up to three aligned pieces
  }
}

TEST(Task1_4_Matmul, AContextThatDemandsItIsServedByABatchInvariantRung) {
  OpContext ctx;
  ctx.batch_invariant = true;
  MatmulArgs args{Tensor::zeros({512, 64}, DType::f32), Tensor::zeros({64, 64}, DType::f32), Tensor(),
                  Tensor::zeros({512, 64}, DType::f32)};
  EXPECT_TRUE(select_variant("matmul", matmul_variants(), ctx, args).batch_invariant);
}

// A library's kernel serves a class of row counts: it is found for the largest of them, and must be as right,
// and write as little, for any other.
RUNG_TEST(Task1_4_Matmul, RowCountsOfAClassTakeTurns, "matmul", matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const int64_t m : {24, 17, 23, 24, 320, 257, 319, 1536, 1025, 1500}) {
    if (testing::emulated() && m > 1000) continue;
    MatmulArgs args{random.exact({m, 96}, DType::bf16), random.exact({48, 96}, DType::bf16),
                    random.exact({48}, DType::bf16), poisoned({m, 48}, DType::bf16)};
    if (!testing::can_run_rung(rung, ctx, args)) continue;
    testing::run_rung(rung, ctx, args);
    EXPECT_EQ(testing::to_double(args.out), reference(args)) << m << " rows";
  }
}

TEST(Task1_4_Matmul, ClassesOfRowCountsCoverAllAndWasteLittle) {
  for (int64_t rows = 1; rows < 20000; ++rows) {
    const int64_t last = last_of_row_class(rows);
    EXPECT_GE(last, rows);
    EXPECT_EQ(last_of_row_class(last), last);
    EXPECT_LT(2 * (last - rows), rows) << rows;
    if (rows <= 16) {
      EXPECT_EQ(last, rows);
    }
  }
  EXPECT_EQ(row_classes(20),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20}));
  const std::vector<int64_t> classes = row_classes(5000);
  EXPECT_EQ(classes.back(), 5000);
  for (int64_t rows = 1; rows <= 5000; ++rows) {
    const auto met = std::lower_bound(classes.begin(), classes.end(), rows);
    ASSERT_NE(met, classes.end());
    EXPECT_EQ(last_of_row_class(*met), last_of_row_class(rows)) << rows;
  }
  EXPECT_LT(classes.size(), 80);
}

TEST(Task1_4_Matmul, NothingToDo) {
  const Tensor weight = Tensor::zeros({4, 3}, DType::f32);
  EXPECT_NO_THROW(matmul(OpContext{}, Tensor::empty({0, 3}, DType::f32), weight, Tensor(),
                         Tensor::empty({0, 4}, DType::f32)));
}

// k = 0: an empty sum, so the bias alone.
RUNG_TEST(Task1_4_Matmul, NothingToSum, "matmul", matmul_variants()) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  MatmulArgs args{Tensor::empty({2, 0}, DType::f32), Tensor::empty({5, 0}, DType::f32),
                  Tensor::from<float>(values, {5}), poisoned({2, 5}, DType::f32)};
  if (!testing::can_run_rung(rung, ctx, args)) return;
  testing::run_rung(rung, ctx, args);
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(args.out.at<float>({row, j}), values[static_cast<size_t>(j)]);
}

TEST(Task1_4_Matmul, RefusesWhatDoesNotFit) {
  OpContext ctx;
  const auto make = [](int64_t rows, int64_t columns, DType dtype = DType::f32) {
    return Tensor::zeros({rows, columns}, dtype);
  };
  EXPECT_THROW(matmul(ctx, make(2, 3), make(4, 5), Tensor(), make(2, 4)), Error);
  EXPECT_THROW(matmul(ctx, make(2, 3), make(4, 3), Tensor(), make(4, 2)), Error);
  EXPECT_THROW(matmul(ctx, make(2, 3), make(4, 3, DType::bf16), Tensor(), make(2, 4)), Error);
  EXPECT_THROW(matmul(ctx, make(2, 3), make(4, 3), Tensor(), make(2, 4, DType::bf16)), Error);
  EXPECT_THROW(matmul(ctx, make(2, 3, DType::i32), make(4, 3, DType::i32), Tensor(), make(2, 4)), Error);
  EXPECT_THROW(matmul(ctx, make(2, 3), make(4, 3), Tensor::zeros({3}, DType::f32), make(2, 4)), Error);
  EXPECT_THROW(matmul(ctx, Tensor::zeros({3}, DType::f32), make(4, 3), Tensor(), make(1, 4)), Error);
}

}  // namespace
}  // namespace ladder
