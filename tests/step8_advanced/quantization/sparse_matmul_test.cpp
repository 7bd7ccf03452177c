// Task 8.4: the product with a weight of which two of four are kept, every row of its ladder, and the linear that has one on a GPU.
#include "step8_advanced/quantization/kernels/sparse_matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/linear/linear.h"
#include "step8_advanced/quantization/linear/two_of_four.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using testing::close_to;
using testing::poisoned;
using testing::Random;
using testing::to_double;

struct Problem {
  int64_t m, n, k;
};

// [n, k] with two or fewer numbers in each four. `exact`: small whole numbers.
Tensor random_weight(Random& random, int64_t n, int64_t k, DType dtype, bool exact = false) {
  const Tensor weight = exact ? random.exact({n, k}, DType::f32) : random.normal({n, k}, DType::f32);
  for (int64_t four = 0; four < n * k; four += 4) {
    const int64_t first = random.integer(0, 3), second = (first + random.integer(1, 3)) % 4;
    for (int64_t i = 0; i < 4; ++i)
      if ((i != first && i != second) || random.integer(0, 15) == 0) weight.data<float>()[four + i] = 0;
  }
  return weight.to(dtype);
}

std::vector<double> product(const std::vector<double>& x, const Tensor& weight, const Tensor& bias) {
  const auto weights = to_double(weight);
  const auto biases =
      bias.defined() ? to_double(bias) : std::vector<double>(static_cast<size_t>(weight.dim(0)));
  const auto k = static_cast<size_t>(weight.dim(1));
  std::vector<double> out;
  for (size_t row = 0; row < x.size() / k; ++row)
    for (size_t j = 0; j < biases.size(); ++j) {
      double sum = biases[j];
      for (size_t i = 0; i < k; ++i) sum += x[row * k + i] * weights[j * k + i];
      out.push_back(sum);
    }
  return out;
}

TEST(Task8_4_SparseWeight, HasTheNumbersOfTheDenseOne) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, 4}, {5, 12}, {64, 64}, {65, 68}, {130, 200}, {16, 320}}) {
      const Tensor weight = random_weight(random, n, k, dtype);
      const SparseWeight sparse = in_sparse_records(weight);
      EXPECT_TRUE(is_two_of_four(weight));
      EXPECT_EQ(sparse.records.nbytes(), (n + 63) / 64 * ((k + 63) / 64) * 64 * 72);
      EXPECT_EQ(to_double(dense_of(sparse)), to_double(weight)) << "[" << n << ", " << k << "]";
    }
}

// What mma.sp.m16n8k32 makes of its operands (PTX ISA, "Matrix fragments for sparse mma.m16n8k32"), one lane after the other, from the
// bytes that the kernels give it.
TEST(Task8_4_SparseWeight, IsWhatTheInstructionTakes) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t n = 128, k = 192;
  const Tensor weight = random_weight(random, n, k, DType::bf16);
  const SparseWeight sparse = in_sparse_records(weight);
  for (int64_t tile = 0; tile < n / 16; ++tile)
    for (int64_t step = 0; step < k / 32; ++step) {  // an instruction: 16 rows and 32 columns
      const uint8_t* record =
          sparse.records.data<uint8_t>() + (tile / 4 * sparse.records.dim(1) + step / 2) * kSparseRecordBytes;
      const int64_t selector = step % 2;
      std::vector<double> rows(16 * 32);
      for (int64_t lane = 0; lane < 32; ++lane)
        for (int64_t i = 0; i < 8; ++i) {  // the lane's elements of A: registers of two
          const int64_t reg = i / 2, row = lane / 4 + reg % 2 * 8, kept = lane % 4 * 2 + i % 2 + reg / 2 * 8;
          // ldmatrix: eight rows of 16 bytes for each register.
          bf16 value;
          std::memcpy(&value,
                      record + tile % 4 * 1024 + reg % 2 * 512 + (selector * 2 + reg / 2) * 128 +
                          lane / 4 * 16 + lane % 4 * 4 + i % 2 * 2,
                      2);
          // Of this row and half of the columns the metadata is that of lane `half` of the quad that the selector names.
          const int64_t half = kept / 8, with_metadata = lane / 4 * 4 + 2 * selector + half;
          uint32_t word;
          std::memcpy(&word, record + 4096 + tile % 4 * 128 + with_metadata * 4, 4);
          const uint32_t index = word >> (row / 8 * 16 + kept % 8 * 2) & 3;
          rows[static_cast<size_t>(row * 32 + kept / 2 * 4 + index)] +=
              static_cast<double>(static_cast<float>(value));
        }
      for (int64_t row = 0; row < 16; ++row)
        for (int64_t column = 0; column < 32; ++column)
          ASSERT_EQ(
              rows[static_cast<size_t>(row * 32 + column)],
              static_cast<double>(static_cast<float>(weight.at<bf16>({tile * 16 + row, step * 32 + column}))))
              << "tile " << tile << ", step " << step << ", row " << row << ", column " << column;
    }
}

// Two equal indices are no metadata, wherever it stands.
TEST(Task8_4_SparseWeight, IndicesAscendInEveryFour) {
  Random random;
  SCOPED_TRACE(random.describe());
  const SparseWeight sparse = in_sparse_records(random_weight(random, 70, 100, DType::bf16));
  for (int64_t i = 0; i < sparse.records.numel() / kSparseRecordBytes; ++i)
    for (int64_t byte = kSparseValueBytes; byte < kSparseRecordBytes; ++byte) {
      const uint8_t two = sparse.records.data<uint8_t>()[i * kSparseRecordBytes + byte];
      ASSERT_LT(two & 3, two >> 2 & 3);
      ASSERT_LT(two >> 4 & 3, two >> 6);
    }
}

TEST(Task8_4_SparseWeight, ThreeOfFourAreRefused) {
  const Tensor weight = Tensor::zeros({3, 8}, DType::bf16);
  for (const int64_t column : {4, 5}) weight.at<bf16>({1, column}) = bf16(1);
  EXPECT_TRUE(is_two_of_four(weight));
  weight.at<bf16>({1, 7}) = bf16(-0.0f);
  EXPECT_TRUE(is_two_of_four(weight));
  weight.at<bf16>({1, 7}) = bf16(NAN);
  EXPECT_FALSE(is_two_of_four(weight));
  try {
    in_sparse_records(weight);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("row 1"));
  }
}

// A call of a rung, of operands in the CPU's memory; false where the rung does not take them.
bool run(const OpContext& ctx, const Variant<SparseMatmulArgs>& rung, SparseMatmulArgs args) {
  SparseWeight weight = *args.weight;
  testing::Mirror mirror(ctx);
  if (rung.device != DeviceType::cpu) {
    for (Tensor* tensor : {&weight.records, &args.x, &args.bias, &args.out}) *tensor = mirror(*tensor);
    args.weight = &weight;
  }
  if (!can_run(rung, ctx, args)) return false;
  rung.run(ctx, args);
  if (rung.device != DeviceType::cpu) mirror.copy_back();
  return true;
}

// Rows: one, of an octet, of several, more than a launch of few rows takes, more than a tile of tokens. Rows of the weight: less than a
// tile, more than a group of them in a block. Columns: less than a record, no whole records, more than a warp has at once.
constexpr Problem kProblems[] = {
    {1, 5, 8},      {1, 64, 64},   {1, 2200, 1032}, {2, 40, 136},    {3, 130, 520},  {7, 33, 2056},
    {8, 8600, 72},  {9, 100, 640}, {16, 300, 256},  {17, 48, 1096},  {31, 64, 200},  {33, 77, 320},
    {64, 136, 128}, {65, 264, 72}, {200, 96, 264},  {257, 128, 192}, {300, 520, 64}, {40, 8, 12}};

RUNG_TEST(Task8_4_SparseMatmul, IsWithinTheBoundOfDoublePrecision, "sparse_matmul",
          sparse_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const Problem& p : kProblems) {
    const DType dtype = random.one_of<DType>({DType::bf16, DType::f16});
    const Tensor weight = random_weight(random, p.n, p.k, dtype), x = random.normal({p.m, p.k}, dtype);
    if (p.n < 8) testing::take_magnitudes(x), testing::take_magnitudes(weight);
    const Tensor bias = p.n % 3 == 0 ? random.normal({p.n}, dtype) : Tensor();
    const SparseWeight sparse = in_sparse_records(weight);
    const auto expected = product(to_double(x), weight, bias);
    for (const DType out_dtype : {dtype, DType::f32}) {
      const Tensor out = poisoned({p.m, p.n}, out_dtype);
      if (!run(ctx, rung, {x, &sparse, bias, out})) continue;
      ++served;
      ASSERT_TRUE(close_to(out, expected, p.k)) << x.str() << " times [" << p.n << "]";
    }
  }
  EXPECT_GT(served, 0);
}

RUNG_TEST(Task8_4_SparseMatmul, WholeNumbersAreExact, "sparse_matmul", sparse_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const Problem& p : kProblems) {
    const Tensor weight = random_weight(random, p.n, p.k, DType::bf16, true),
                 x = random.exact({p.m, p.k}, DType::bf16);
    const SparseWeight sparse = in_sparse_records(weight);
    const Tensor out = poisoned({p.m, p.n}, DType::f32);
    if (!run(ctx, rung, {x, &sparse, {}, out})) continue;
    ++served;
    ASSERT_EQ(to_double(out), product(to_double(x), weight, {})) << x.str() << " times [" << p.n << "]";
  }
  EXPECT_GT(served, 0);
}

// The sizes of models, where tiles, groups and rings are full.
RUNG_TEST(Task8_4_SparseMatmul, LargeOnesAreExactToo, "sparse_matmul",
          testing::rungs_where(sparse_matmul_variants(),
                               [](const auto& rung) { return rung.device == DeviceType::cuda; })) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const Problem& p : {Problem{1, 8192, 1024},
                           {1, 2112, 4096},
                           {1, 256, 14336},
                           {4, 6144, 512},
                           {30, 4096, 1024},
                           {64, 512, 8192},  // two blocks to a tile
                           {100, 200, 6040},
                           {600, 1024, 2048},
                           {2048, 512, 512},
                           {2000, 2304, 256}}) {
    const Tensor weight = random_weight(random, p.n, p.k, DType::bf16, true),
                 x = random.exact({p.m, p.k}, DType::bf16);
    const SparseWeight sparse = in_sparse_records(weight);
    const Tensor out = poisoned({p.m, p.n}, DType::f32), rounded = poisoned({p.m, p.n}, DType::bf16);
    const Tensor expected = poisoned({p.m, p.n}, DType::f32);
    if (!run(ctx, rung, {x, &sparse, {}, out})) continue;
    ++served;
    const auto gather =
        testing::rungs_where(sparse_matmul_variants(), [](const auto& one) { return one.name == "gather"; });
    ASSERT_TRUE(run(ctx, gather[0], {x, &sparse, {}, expected}));
    ASSERT_TRUE(testing::bitwise_equal(out, expected)) << x.str() << " times [" << p.n << "]";
    ASSERT_TRUE(run(ctx, rung, {x, &sparse, {}, rounded}));
    ASSERT_TRUE(testing::bitwise_equal(rounded, expected.to(DType::bf16)))
        << x.str() << " times [" << p.n << "]";
  }
  EXPECT_GT(served, 0);
}

RUNG_TEST(Task8_4_SparseMatmul, RowsMayBeStrided, "sparse_matmul", sparse_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const int64_t m : {3, 50}) {
    const Tensor weight = random_weight(random, 72, 136, DType::bf16);
    const SparseWeight sparse = in_sparse_records(weight);
    const Tensor x = random.normal({m, 160}, DType::bf16).narrow(1, 8, 136);
    const Tensor wide = poisoned({m, 96}, DType::bf16), out = wide.narrow(1, 16, 72);
    if (!run(ctx, rung, {x, &sparse, {}, out})) continue;
    ++served;
    EXPECT_TRUE(close_to(out.clone(), product(to_double(x.clone()), weight, {}), 136));
    for (int64_t row = 0; row < m; ++row)
      for (const int64_t column : {0, 15, 88, 95})
        EXPECT_TRUE(std::isnan(static_cast<float>(wide.at<bf16>({row, column}))));
  }
  EXPECT_GT(served, 0);
}

RUNG_TEST(Task8_4_SparseMatmul, ARowHasTheSameBitsInAnyBatch, "sparse_matmul", sparse_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor weight = random_weight(random, 200, 1096, DType::bf16),
               x = random.normal({300, 1096}, DType::bf16);
  const SparseWeight sparse = in_sparse_records(weight);
  const Tensor alone = poisoned({300, 200}, DType::f32);
  ASSERT_TRUE(run(ctx, rung, {x.narrow(0, 17, 1), &sparse, {}, alone.narrow(0, 17, 1)}));
  for (const int64_t m : {2, 8, 9, 16, 17, 32, 33, 64, 65, 250}) {
    const Tensor out = poisoned({m, 200}, DType::f32);
    if (!run(ctx, rung, {x.narrow(0, 17, m), &sparse, {}, out})) {
      EXPECT_FALSE(rung.batch_invariant);
      break;
    }
    EXPECT_TRUE(testing::bitwise_equal(out.narrow(0, 0, 1), alone.narrow(0, 17, 1))) << m << " rows";
  }
}

RUNG_TEST(Task8_4_SparseMatmul, ANaNStaysInItsRow, "sparse_matmul", sparse_matmul_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  int served = 0;
  for (const int64_t m : {3, 70}) {
    const Tensor weight = Tensor::zeros({40, 64}, DType::bf16);
    for (int64_t row = 0; row < 40; ++row) weight.at<bf16>({row, 21}) = bf16(1);
    const SparseWeight sparse = in_sparse_records(weight);
    const Tensor x = random.normal({m, 64}, DType::bf16), out = poisoned({m, 40}, DType::f32);
    x.at<bf16>({1, 21}) = bf16(NAN);
    if (!run(ctx, rung, {x, &sparse, {}, out})) continue;
    ++served;
    for (int64_t row = 0; row < m; ++row)
      for (int64_t j = 0; j < 40; ++j) {
        const float y = out.at<float>({row, j});
        EXPECT_EQ(std::isnan(y), row == 1) << row << ", " << j;
      }
  }
  EXPECT_GT(served, 0);
}

TEST(Task8_4_SparseMatmul, RefusesWhatDoesNotFit) {
  Random random;
  const SparseWeight good = in_sparse_records(random_weight(random, 4, 48, DType::bf16));
  const auto refused = [&](std::string_view word, auto&& change) {
    SparseWeight weight = good;
    SparseMatmulArgs args{
        Tensor::zeros({2, 48}, DType::bf16), &weight, {}, Tensor::zeros({2, 4}, DType::bf16)};
    change(weight, args);
    try {
      sparse_matmul(OpContext{}, args);
      ADD_FAILURE() << "not refused: " << word;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(std::string(word)));
    }
  };
  using Args = SparseMatmulArgs;
  using Weight = SparseWeight;
  refused("no weight", [](Weight&, Args& args) { args.weight = nullptr; });
  refused("sparse_matmul: x", [](Weight&, Args& args) { args.x = Tensor::zeros({2, 44}, DType::bf16); });
  refused("sparse_matmul: x", [](Weight&, Args& args) { args.x = Tensor::zeros({2, 48}, DType::f16); });
  refused("sparse_matmul: out", [](Weight&, Args& args) { args.out = Tensor::zeros({2, 5}, DType::bf16); });
  refused("sparse_matmul: out", [](Weight&, Args& args) { args.out = Tensor::zeros({2, 4}, DType::f16); });
  refused("bias", [](Weight&, Args& args) { args.bias = Tensor::zeros({3}, DType::bf16); });
  refused("records", [](Weight& weight, Args&) { weight.records = Tensor::zeros({1, 2, 4608}, DType::u8); });
  refused("f32", [](Weight& weight, Args&) { weight.dtype = DType::f32; });
  EXPECT_NO_THROW(sparse_matmul(
      OpContext{}, {Tensor::empty({0, 48}, DType::bf16), &good, {}, Tensor::empty({0, 4}, DType::bf16)}));
}

// A linear on the GPU of two parts of the same width, of a checkpoint in sparse-24-bitmask or with all of its zeros.
struct Scene {
  const OpContext& ctx;
  Tensor weight, bias;
  std::unique_ptr<Linear> linear;

  Scene(const OpContext& context, Random& random, const Problem& p, DType dtype, bool has_bias,
        TwoOfFourSource source)
      : ctx(context), weight(random_weight(random, p.n, p.k, dtype)) {
    if (has_bias) bias = random.normal({p.n}, dtype);
    load(source);
  }

  void load(TwoOfFourSource source) {
    const int64_t n = weight.dim(0) / 2;
    linear = std::make_unique<MergedColumnParallelLinear>(
        ctx, "linear", weight.dim(1), std::vector<int64_t>{n, n},
        LinearOptions{weight.dtype(), bias.defined(), two_of_four_linear_method(source)});
    for (Parameter* parameter : linear->parameters())
      for (int part = 0; part < 2; ++part) parameter->load(stored_part(parameter->name, n, part), part);
    linear->process_after_load(ctx);
  }

  Tensor stored_part(const std::string& name, int64_t n, int part) const {
    const int64_t k = weight.dim(1);
    if (name.ends_with("bias")) return bias.narrow(0, part * n, n);
    if (name.ends_with("weight")) return weight.narrow(0, part * n, n);
    if (name.ends_with("shape")) return Tensor::from<int64_t>(std::vector<int64_t>{n, k}, {2, 1});
    const Tensor compressed = Tensor::zeros({n, k / 2}, weight.dtype()),
                 bitmask = Tensor::zeros({n, (k + 7) / 8}, DType::u8);
    const Tensor numbers = weight.to(DType::f32);
    for (int64_t row = 0; row < n; ++row)
      for (int64_t four = 0; four < k; four += 4) {
        int kept = 0;
        for (int pass = 0; pass < 2; ++pass)  // zeros are kept where there are not enough others
          for (int64_t column = four; column < four + 4; ++column) {
            const bool is_zero = numbers.data<float>()[(part * n + row) * k + column] == 0;
            if (kept < 2 && is_zero == (pass == 1)) {
              bitmask.data<uint8_t>()[row * bitmask.dim(1) + column / 8] |=
                  static_cast<uint8_t>(1 << column % 8);
              ++kept;
            }
          }
        int64_t value = four / 2;
        for (int64_t column = four; column < four + 4; ++column)
          if (bitmask.data<uint8_t>()[row * bitmask.dim(1) + column / 8] >> column % 8 & 1)
            std::memcpy(static_cast<uint16_t*>(compressed.raw()) + row * (k / 2) + value++,
                        static_cast<const uint16_t*>(weight.raw()) + (part * n + row) * k + column, 2);
      }
    return name.ends_with("bitmask") ? bitmask : compressed;
  }

  // The fused product's out, of what is in `out` before.
  Tensor run(FusedProduct product, const Tensor& out) const {
    product.x = product.x.to(ctx.device);
    if (product.norm_weight.defined()) product.norm_weight = product.norm_weight.to(ctx.device);
    product.out = out.clone().to(ctx.device);
    EXPECT_TRUE(linear->takes_fused(product));
    linear->forward_fused(ctx, product);
    device_synchronize(ctx.device, ctx.stream);
    return product.out.to(Device{});
  }
};

constexpr double kEps = 0.1;  // large enough to be seen
constexpr Problem kFusedProblems[] = {{1, 256, 128},  {1, 2816, 4096}, {2, 128, 1024}, {5, 4224, 192},
                                      {8, 384, 2048}, {16, 128, 1088}, {1, 128, 16384}};

class Task8_4_SparseLinear : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
    if (testing::cuda_context()->device_arch < 90) GTEST_SKIP() << "needs compute capability 9.0";
  }
  template <class Check>
  void for_each_case(Check&& check) {
    SCOPED_TRACE(random.describe());
    for (const Problem& p : kFusedProblems)
      for (const DType dtype : {DType::bf16, DType::f16}) {
        SCOPED_TRACE(fmt::format("{} rows, [{}, {}] in {}", p.m, p.n, p.k, dtype_name(dtype)));
        const auto source =
            random.one_of<TwoOfFourSource>({TwoOfFourSource::bitmask, TwoOfFourSource::whole});
        check(Scene(*testing::cuda_context(), random, p, dtype, p.m % 2 == 1, source), p, dtype);
        if (HasFatalFailure()) return;
      }
  }
  Random random;
};

TEST_F(Task8_4_SparseLinear, KeepsNoDenseMatrixIfItsKernelsTakeIt) {
  const auto keeps_dense = [&](const Problem& p, DType dtype, TwoOfFourSource source) {
    return Scene(*testing::cuda_context(), random, p, dtype, false, source).linear->dense_weight().defined();
  };
  for (const auto source : {TwoOfFourSource::bitmask, TwoOfFourSource::whole}) {
    EXPECT_FALSE(keeps_dense({1, 256, 128}, DType::bf16, source));
    EXPECT_FALSE(keeps_dense({1, 256, 128}, DType::f16, source));
    EXPECT_TRUE(keeps_dense({1, 256, 128}, DType::f32, source));
    EXPECT_TRUE(keeps_dense({1, 240, 128}, DType::bf16, source)) << "a part that ends within a record";
    EXPECT_TRUE(keeps_dense({1, 256, 132}, DType::bf16, source)) << "rows of x that are no whole packs";
  }
}

TEST_F(Task8_4_SparseLinear, AWeightThatIsNotTwoOfFourStaysDense) {
  Scene scene(*testing::cuda_context(), random, {1, 256, 128}, DType::bf16, true, TwoOfFourSource::whole);
  for (const int64_t row : {0, 201}) {
    const Tensor before = scene.weight.clone();
    for (const int64_t column : {64, 65, 67}) scene.weight.at<bf16>({row, column}) = bf16(1);
    scene.load(TwoOfFourSource::whole);
    EXPECT_TRUE(testing::bitwise_equal(scene.linear->dense_weight().to(Device{}), scene.weight)) << row;
    scene.weight = before;
  }
  scene.load(TwoOfFourSource::whole);
  EXPECT_FALSE(scene.linear->dense_weight().defined());
}

// --load-format dummy: any numbers, of which the smaller ones go.
TEST_F(Task8_4_SparseLinear, OfADummyTheTwoLargestOfFourAreLeft) {
  Scene scene(*testing::cuda_context(), random, {1, 128, 128}, DType::bf16, false, TwoOfFourSource::whole);
  for (int64_t i = 0; i < scene.weight.numel(); ++i)
    scene.weight.data<bf16>()[i] =
        bf16(static_cast<float>((i % 4 * 5 + i / 4) % 4 + 1));  // 1 to 4 in each four
  scene.load(TwoOfFourSource::dummy);
  ASSERT_FALSE(scene.linear->dense_weight().defined());
  const Tensor x = Tensor::zeros({1, 128}, DType::bf16),
               out = Tensor::zeros({1, 128}, DType::bf16, scene.ctx.device);
  for (int64_t i = 0; i < 4; ++i) x.data<bf16>()[i] = bf16(1);
  scene.linear->forward(scene.ctx, x.to(scene.ctx.device), out);
  device_synchronize(scene.ctx.device, scene.ctx.stream);
  EXPECT_EQ(to_double(out.to(Device{})), std::vector<double>(128, 7));
}

TEST_F(Task8_4_SparseLinear, GivesTheDenseProduct) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    for (const int64_t m : {p.m, int64_t{40}}) {
      const Tensor x = random.normal({m, p.k}, dtype);
      const Tensor out = Tensor::zeros({m, p.n}, dtype, scene.ctx.device);
      scene.linear->forward(scene.ctx, x.to(scene.ctx.device), out);
      device_synchronize(scene.ctx.device, scene.ctx.stream);
      EXPECT_TRUE(close_to(out.to(Device{}), product(to_double(x), scene.weight, scene.bias), p.k))
          << m << " rows";
    }
  });
}

TEST_F(Task8_4_SparseLinear, TheNormBeforeIsTheOperators) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    const Tensor x = random.normal({p.m, p.k}, dtype, 3), weight = random.normal({p.k}, dtype);
    std::vector<double> normed = to_double(x);
    const auto weights = to_double(weight);
    for (size_t row = 0; row < static_cast<size_t>(p.m); ++row) {
      double squares = 0;
      for (size_t i = 0; i < weights.size(); ++i) squares += std::pow(normed[row * weights.size() + i], 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(weights.size()) + kEps);
      for (size_t i = 0; i < weights.size(); ++i) normed[row * weights.size() + i] *= scale * weights[i];
    }
    const Tensor out = scene.run({.x = x, .norm_weight = weight, .eps = kEps}, poisoned({p.m, p.n}, dtype));
    EXPECT_TRUE(close_to(out, product(normed, scene.weight, scene.bias), p.k));
  });
}

TEST_F(Task8_4_SparseLinear, GateAndUpMeetInABlock) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    const Tensor x = random.normal({p.m, p.k}, dtype, 0.1);
    const auto gate_up = product(to_double(x), scene.weight, scene.bias);
    const auto width = static_cast<size_t>(p.n / 2);
    std::vector<double> expected(gate_up.size() / 2);
    for (size_t i = 0; i < expected.size(); ++i) {
      const double gate = gate_up[i / width * 2 * width + i % width];
      expected[i] = gate / (1 + std::exp(-gate)) * gate_up[(i / width * 2 + 1) * width + i % width];
    }
    const Tensor out =
        scene.run({.x = x, .epilogue = Epilogue::silu_and_mul}, poisoned({p.m, p.n / 2}, dtype));
    EXPECT_TRUE(close_to(to_double(out), expected, p.n / 2, 2 * testing::row_bound(dtype, p.k),
                         dtype == DType::f16 ? 0x1p-25 : 0));
  });
}

TEST_F(Task8_4_SparseLinear, TheResidualIsAdded) {
  for_each_case([&](const Scene& scene, const Problem& p, DType dtype) {
    const Tensor x = random.normal({p.m, p.k}, dtype), residual = random.normal({p.m, p.n}, dtype, 2);
    auto expected = product(to_double(x), scene.weight, scene.bias);
    const auto before = to_double(residual);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    const Tensor out = scene.run({.x = x, .epilogue = Epilogue::add}, residual);
    EXPECT_TRUE(close_to(to_double(out), expected, p.n, 2 * testing::row_bound(dtype, p.k)));
  });
}

}  // namespace
}  // namespace ladder
