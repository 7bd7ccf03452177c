// Task 8.2: linears as checkpoints store them, in every format.
#include "step8_advanced/quantization/linear/quantized_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/linear/linear.h"
#include "step8_advanced/quantization/numbers/grid.h"
#include "tests/step8_advanced/quantization/stored_parts.h"
#include "tests/support/devices.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using testing::describe;
using ::testing::HasSubstr;
using testing::Random;
using testing::random_part;
using testing::StoredPart;

void load(Linear& linear, const OpContext& ctx, const std::vector<StoredPart>& parts) {
  for (Parameter* parameter : linear.parameters()) {
    const std::string name = parameter->name.substr(parameter->name.rfind('.') + 1);
    ASSERT_EQ(parameter->num_parts, std::ssize(parts)) << name;
    for (int part = 0; part < parameter->num_parts; ++part) {
      const auto found = parts[static_cast<size_t>(part)].tensors.find(name);
      ASSERT_TRUE(found != parts[static_cast<size_t>(part)].tensors.end()) << name << " was declared";
      parameter->load(found->second, part);
    }
  }
  EXPECT_EQ(linear.parameters().size(), parts[0].tensors.size());
  linear.process_after_load(ctx);
}

void on_ranks(int ranks, const std::function<void(const OpContext& ctx, int rank)>& fn) {
  SCOPED_TRACE(fmt::format("{} ranks", ranks));
  run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
    Arena arena;
    OpContext ctx;
    ctx.arena = &arena;
    ctx.parallel = &parallel;
    fn(ctx, rank);
  });
}

// Times this, a linear gives its weight, transposed.
Tensor identity(int64_t k) {
  const Tensor x = Tensor::zeros({k, k}, DType::f32);
  for (int64_t i = 0; i < k; ++i) x.at<float>({i, i}) = 1;
  return x;
}

// Columns [begin, begin + count) of out [k, n] are rows [from, from + count) of the part.
void expect_weight(const Tensor& out, int64_t begin, int64_t count, const StoredPart& part, int64_t from) {
  for (int64_t row = 0; row < count; ++row)
    for (int64_t column = 0; column < part.k; ++column) {
      const float seen = out.data<float>()[column * out.stride(0) + begin + row];
      const float expected = part.dense[static_cast<size_t>((from + row) * part.k + column)];
      ASSERT_EQ(seen, expected) << "row " << from + row << ", column " << column;
    }
}

std::vector<int32_t> order_of(Random& random, const StoredLinear& stored, int64_t k) {
  const QuantizationArgs& args = stored.scheme.weights;
  if (args.actorder != ActivationOrder::group) return {};
  return testing::random_order(random, k, args.group_size);
}

// Widths of heads, groups, words and blocks that ranks cut: 160 = 2.5 groups of 64; a quarter, 40 = 1.25 words of 3 bits.
constexpr int64_t kFeatures = 160;

TEST(Task8_2_Formats, EveryFormatIsReadExactlyOnEveryNumberOfRanks) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    SCOPED_TRACE(describe(stored));
    const auto method = quantized_linear_method(stored);
    const std::vector<int32_t> order = order_of(random, stored, kFeatures);
    std::vector<StoredPart> parts;
    for (const int64_t n : {32, 64}) parts.push_back(random_part(random, stored, n, kFeatures, order));
    const std::vector<StoredPart> one = {parts[0]};
    const Tensor x = identity(kFeatures);
    for (const int ranks : {1, 2, 4})
      on_ranks(ranks, [&](const OpContext& ctx, int rank) {
        MergedColumnParallelLinear columns(ctx, "up", kFeatures, {32, 64}, {.method = method});
        load(columns, ctx, parts);
        Tensor out = testing::poisoned({kFeatures, 96 / ranks}, DType::f32);
        columns.forward(ctx, x, out);
        expect_weight(out, 0, 32 / ranks, parts[0], rank * 32 / ranks);
        expect_weight(out, 32 / ranks, 64 / ranks, parts[1], rank * 64 / ranks);

        RowParallelLinear rows(ctx, "down", kFeatures, 32, {.method = method});
        load(rows, ctx, one);
        out = testing::poisoned({kFeatures, 32}, DType::f32);
        rows.forward(ctx, x.narrow(1, rank * kFeatures / ranks, kFeatures / ranks), out);
        expect_weight(out, 0, 32, one[0], 0);
      });
    if (HasFatalFailure()) return;
  }
}

// Experts, whose inputs are their own: each two parts (gate and up), or each part (down), in another order; or all but the last as the
// features are, so that a rank has features of fewer groups of these than of the last's.
TEST(Task8_2_Formats, PartsOfAnExpertHaveAnOrderOfTheirOwn) {
  Random random;
  SCOPED_TRACE(random.describe());
  constexpr int64_t kExperts = 3, kRows = 32;
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    if (stored.scheme.weights.actorder != ActivationOrder::group) continue;
    SCOPED_TRACE(describe(stored));
    for (const int64_t parts_per_order : {1, 2})
      for (const bool only_last : {false, true}) {
        const auto method = quantized_linear_method(stored, LoadFormat::automatic, parts_per_order);
        std::vector<StoredPart> parts;
        std::vector<int32_t> order;
        for (int64_t part = 0; part < kExperts * parts_per_order; ++part) {
          const bool is_last = part >= (kExperts - 1) * parts_per_order;
          if (part % parts_per_order == 0) order = order_of(random, stored, kFeatures);
          if (only_last && !is_last) std::ranges::sort(order);
          parts.push_back(random_part(random, stored, kRows, kFeatures, order));
        }
        for (const int ranks : {1, 2, 4})
          on_ranks(ranks, [&](const OpContext& ctx, int rank) {
            const int64_t begin = rank * kFeatures / ranks, count = kFeatures / ranks,
                          all = std::ssize(parts) * kRows;
            // As the experts' down: all rows, a share of the features.
            const std::vector<FeatureRange> out_parts(parts.size(), FeatureRange{kRows, 0, kRows});
            Linear linear(ctx, "experts.down", {.in = {kFeatures, begin, count}, .out = out_parts},
                          {.method = method});
            load(linear, ctx, parts);
            const Tensor out = testing::poisoned({kFeatures, all}, DType::f32);
            linear.forward(ctx, identity(kFeatures).narrow(1, begin, count).clone(), out);
            for (size_t part = 0; part < parts.size(); ++part)
              for (int64_t row = 0; row < kRows; ++row)
                for (int64_t column = 0; column < kFeatures; ++column) {
                  const bool here = column >= begin && column < begin + count;
                  ASSERT_EQ(out.at<float>({column, static_cast<int64_t>(part) * kRows + row}),
                            here ? parts[part].dense[static_cast<size_t>(row * kFeatures + column)] : 0.0f)
                      << "part " << part << ", row " << row << ", column " << column;
                }
          });
        if (HasFatalFailure()) return;
      }
  }
}

// Many rows of x in f32 are served by the weight written out, a few in bf16 by the stream of records where there are any.
TEST(Task8_2_Formats, EveryFormatIsReadExactlyOnAGpu) {
  if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  const OpContext& ctx = *testing::cuda_context();
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    SCOPED_TRACE(describe(stored));
    const std::vector<int32_t> order = order_of(random, stored, kFeatures);
    std::vector<StoredPart> parts;
    for (const int64_t n : {32, 64}) parts.push_back(random_part(random, stored, n, kFeatures, order));
    MergedColumnParallelLinear linear(ctx, "up", kFeatures, {32, 64},
                                      {.method = quantized_linear_method(stored)});
    load(linear, ctx, parts);
    const auto forward = [&](const Tensor& x) {
      const Tensor out = Tensor::empty({x.dim(0), 96}, x.dtype(), ctx.device);
      out.fill_bytes(0xff);
      linear.forward(ctx, x.to(ctx.device), out);
      device_synchronize(ctx.device, ctx.stream);
      return out.to(Device{});
    };
    const Tensor all = forward(identity(kFeatures));
    expect_weight(all, 0, 32, parts[0], 0);
    expect_weight(all, 32, 64, parts[1], 0);
    const Tensor few = identity(kFeatures).to(DType::bf16).rows(16);
    const Tensor of_few = forward(few).to(DType::f32), of_all = all.rows(16).to(DType::bf16).to(DType::f32);
    // The same numbers: a code of 0 with a scale below 0 is -0 or 0.
    for (int64_t i = 0; i < of_few.numel(); ++i)
      ASSERT_EQ(of_few.data<float>()[i], of_all.data<float>()[i]) << i;
    if (HasFatalFailure()) return;
  }
}

// What was counted before loading (weight_bytes.h), but for scales in f32 of each row.
TEST(Task8_2_Formats, CodesOfEightBitsAreKeptOnceOnAGpu) {
  if (testing::cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
  const OpContext& ctx = *testing::cuda_context();
  Random random;
  SCOPED_TRACE(random.describe());
  for (const bool floats : {false, true}) {
    const StoredLinear stored{
        .scheme = {.weights = {.is_float = floats, .strategy = ScaleStrategy::channel},
                   .input_activations = QuantizationArgs{
                       .is_float = floats, .strategy = ScaleStrategy::token, .dynamic = true}}};
    const LinearShape shape{{512, 0, 512}, {{96, 0, 96}}, false, DType::bf16};
    const auto method = quantized_linear_method(stored);
    const StoredPart part = random_part(random, stored, 96, 512);
    std::vector<Tensor> tensors;
    for (const LinearParameterSpec& spec : method->parameters(shape))
      tensors.push_back(part.tensors.at(spec.name).to(spec.dtype));
    method->process_after_load(ctx, shape, tensors);
    int64_t bytes = 0;
    for (const Tensor& tensor : tensors)
      if (tensor.defined() && !tensor.device().is_cpu()) bytes += tensor.nbytes();
    EXPECT_EQ(bytes, 96 * 512 + 96 * 4) << describe(stored);
  }
}

TEST(Task8_2_Formats, OddSizesEndInsideOfGroupsWordsAndBytes) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    if (stored.format == StoredFormat::gptq || stored.format == StoredFormat::awq) continue;  // whole words
    for (const int64_t k : {int64_t{1}, int64_t{37}, random.integer(2, 100)}) {
      SCOPED_TRACE(fmt::format("{}, {} input features", describe(stored), k));
      const std::vector<StoredPart> parts = {
          random_part(random, stored, 13, k, order_of(random, stored, k)),
      };
      on_ranks(1, [&](const OpContext& ctx, int) {
        ColumnParallelLinear linear(ctx, "l", k, 13, {.method = quantized_linear_method(stored)});
        load(linear, ctx, parts);
        const Tensor out = testing::poisoned({k, 13}, DType::f32);
        linear.forward(ctx, identity(k), out);
        expect_weight(out, 0, 13, parts[0], 0);
      });
      if (HasFatalFailure()) return;
    }
  }
}

// A rank whose features begin inside of a byte, and KV heads that two ranks have a copy of.
TEST(Task8_2_Formats, RanksMayCutBytesAndShareHeads) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    if (stored.format == StoredFormat::gptq || stored.format == StoredFormat::awq) continue;
    SCOPED_TRACE(describe(stored));
    const auto method = quantized_linear_method(stored);
    constexpr int64_t kOdd = 6 * 5, kHeadDim = 5;
    const std::vector<int32_t> order = order_of(random, stored, kOdd);
    const std::vector<StoredPart> down = {random_part(random, stored, 7, kOdd, order)};
    std::vector<StoredPart> qkv;
    for (const int64_t heads : {4, 1, 1})
      qkv.push_back(random_part(random, stored, heads * kHeadDim, kOdd, order));
    on_ranks(2, [&](const OpContext& ctx, int rank) {
      RowParallelLinear rows(ctx, "down", kOdd, 7, {.method = method});
      load(rows, ctx, down);
      const Tensor out = testing::poisoned({kOdd, 7}, DType::f32);
      rows.forward(ctx, identity(kOdd).narrow(1, rank * kOdd / 2, kOdd / 2), out);
      expect_weight(out, 0, 7, down[0], 0);

      QkvParallelLinear heads(ctx, "qkv", kOdd, 4, 1, kHeadDim, {.method = method});
      load(heads, ctx, qkv);
      const Tensor all = testing::poisoned({kOdd, 4 * kHeadDim}, DType::f32);
      heads.forward(ctx, identity(kOdd), all);
      expect_weight(all, 0, 2 * kHeadDim, qkv[0], rank * 2 * kHeadDim);
      expect_weight(all, 2 * kHeadDim, kHeadDim, qkv[1], 0);
      expect_weight(all, 3 * kHeadDim, kHeadDim, qkv[2], 0);
    });
    if (HasFatalFailure()) return;
  }
}

// desc_act is set, and yet the groups are neighbours: as they are, cut like any others.
TEST(Task8_2_Formats, AnOrderThatIsNoneIsRead) {
  Random random;
  SCOPED_TRACE(random.describe());
  StoredLinear stored{.format = StoredFormat::gptq};
  QuantizationArgs& args = stored.scheme.weights;
  args.num_bits = 4;
  args.symmetric = false;
  args.strategy = ScaleStrategy::group;
  args.group_size = 64;
  args.actorder = ActivationOrder::group;
  std::vector<int32_t> order = order_of(random, stored, kFeatures);
  std::sort(order.begin(), order.end());
  const std::vector<StoredPart> parts = {random_part(random, stored, 32, kFeatures, order)};
  for (const int ranks : {1, 2, 4})
    on_ranks(ranks, [&](const OpContext& ctx, int rank) {
      RowParallelLinear rows(ctx, "down", kFeatures, 32, {.method = quantized_linear_method(stored)});
      load(rows, ctx, parts);
      const Tensor out = testing::poisoned({kFeatures, 32}, DType::f32);
      rows.forward(ctx, identity(kFeatures).narrow(1, rank * kFeatures / ranks, kFeatures / ranks), out);
      expect_weight(out, 0, 32, parts[0], 0);
    });
}

StoredLinear static_int8() {
  StoredLinear stored;
  stored.scheme.weights.strategy = ScaleStrategy::channel;
  stored.scheme.input_activations = QuantizationArgs{};
  return stored;
}

// q, k and v whose inputs are rounded by scales of their own.
TEST(Task8_2_Formats, EveryPartsInputIsRoundedByItsOwnScale) {
  Random random;
  SCOPED_TRACE(random.describe());
  const StoredLinear stored = static_int8();
  const std::vector<int64_t> sizes = {6, 4, 4};
  for (const std::vector<float>& scales :
       {std::vector<float>{0.02f, 0.02f, 0.02f}, {0.02f, 0.05f, 0.05f}, {0.02f, 0.03f, 0.02f}}) {
    std::vector<StoredPart> parts;
    for (size_t i = 0; i < sizes.size(); ++i) {
      parts.push_back(random_part(random, stored, sizes[i], 24));
      parts[i].tensors["input_scale"] = Tensor::from<float>(std::vector<float>{scales[i]}, {1});
    }
    const Tensor x = random.normal({5, 24}, DType::f32), bias = random.normal({14}, DType::f32);
    std::vector<double> expected;
    for (int64_t row = 0; row < 5; ++row)
      for (size_t i = 0; i < sizes.size(); ++i)
        for (int64_t j = 0; j < sizes[i]; ++j) {
          double sum = bias.at<float>({std::ssize(expected) % 14});
          for (int64_t k = 0; k < 24; ++k)
            sum += static_cast<double>(round_to_grid(x.at<float>({row, k}), {scales[i], 0},
                                                     *stored.scheme.input_activations)) *
                   static_cast<double>(parts[i].dense[static_cast<size_t>(j * 24 + k)]);
          expected.push_back(sum);
        }
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      parts[i].tensors["bias"] = bias.narrow(0, begin, sizes[i]).clone();
      begin += sizes[i];
    }
    on_ranks(1, [&](const OpContext& ctx, int) {
      MergedColumnParallelLinear linear(ctx, "qkv", 24, sizes,
                                        {.bias = true, .method = quantized_linear_method(stored)});
      load(linear, ctx, parts);
      const Tensor out = testing::poisoned({5, 14}, DType::f32);
      linear.forward(ctx, x, out);
      EXPECT_TRUE(testing::close_to(out, expected));
      // And some of them alone: the same numbers.
      for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 1}, {1, 1}, {2, 1}, {0, 2}, {1, 2}}) {
        const int64_t from = first == 0 ? 0 : first == 1 ? 6 : 10;
        const int64_t columns =
            std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(first),
                            sizes.begin() + static_cast<std::ptrdiff_t>(first + count), int64_t{0});
        const Tensor of_parts = testing::poisoned({5, columns}, DType::f32);
        linear.forward_parts(ctx, first, count, x, of_parts);
        EXPECT_TRUE(testing::bitwise_equal(of_parts, out.narrow(1, from, columns).clone()))
            << first << " and " << count;
      }
    });
  }
}

TEST(Task8_2_Formats, TheStoredTensorsAreLetGoOf) {
  Random random;
  StoredLinear stored{.format = StoredFormat::packed};
  stored.scheme.weights.num_bits = 4;
  stored.scheme.weights.strategy = ScaleStrategy::channel;
  const std::vector<StoredPart> parts = {random_part(random, stored, 64, 256)};
  OpContext ctx;
  ColumnParallelLinear linear(ctx, "l", 256, 64, {.method = quantized_linear_method(stored)});
  load(linear, ctx, parts);
  EXPECT_EQ(linear.nbytes(), 64 * 256 / 2 + 64 * 4 + 6 * 8);  // codes, scales, six numbers
  EXPECT_THROW(linear.parameters()[0]->load(parts[0].tensors.at("weight_packed")), Error);
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// What loading says when `spoil` has changed the first of two parts.
std::string error_with(const StoredLinear& stored, const std::function<void(StoredPart&)>& spoil) {
  Random random;
  const std::vector<int32_t> order = order_of(random, stored, 64);
  std::vector<StoredPart> parts;
  for (const int64_t n : {32, 32}) parts.push_back(random_part(random, stored, n, 64, order));
  if (stored.scheme.input_activations)
    for (StoredPart& part : parts)
      part.tensors["input_scale"] = Tensor::from<float>(std::vector<float>{0.1f}, {1});
  spoil(parts[0]);
  return error_of([&] {
    OpContext ctx;
    MergedColumnParallelLinear linear(ctx, "layers.3.up", 64, {32, 32},
                                      {.method = quantized_linear_method(stored)});
    for (Parameter* parameter : linear.parameters())
      for (int part = 0; part < 2; ++part)
        parameter->load(parts[static_cast<size_t>(part)].tensors.at(
                            parameter->name.substr(parameter->name.rfind('.') + 1)),
                        part);
    linear.process_after_load(ctx);
  });
}

// A copy of a tensor with one element set.
template <class T>
void set(StoredPart& part, const std::string& name, int64_t index, T value) {
  Tensor& tensor = part.tensors.at(name);
  tensor = tensor.clone();
  ASSERT_EQ(dtype_size(tensor.dtype()), static_cast<int64_t>(sizeof(T)));
  static_cast<T*>(tensor.raw())[index] = value;
}

TEST(Task8_2_Formats, ScalesThatCannotBeAreRefusedByName) {
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    SCOPED_TRACE(describe(stored));
    const bool of_columns = stored.format == StoredFormat::gptq || stored.format == StoredFormat::awq;
    const std::string name = of_columns                ? "scales"
                             : stored.scale_is_inverse ? "weight_scale_inv"
                                                       : "weight_scale";
    if (stored.format == StoredFormat::mx) {
      EXPECT_THAT(error_with(stored, [&](StoredPart& part) { set<uint8_t>(part, name, 0, 255); }),
                  AllOf(HasSubstr("layers.3.up"), HasSubstr(name)));
      continue;
    }
    if (stored.format == StoredFormat::nvfp4) {
      for (const int byte : {0x00, 0x7f, 0xff, 0x81})
        EXPECT_THAT(
            error_with(stored,
                       [&](StoredPart& part) { set<uint8_t>(part, name, 3, static_cast<uint8_t>(byte)); }),
            AllOf(HasSubstr("layers.3.up"), HasSubstr(name)))
            << byte;
      const std::string of_tensor = stored.scales_are_factors ? "weight_scale_2" : "weight_global_scale";
      for (const float global : {0.0f, -2.0f, std::numeric_limits<float>::infinity(), std::nanf("")})
        EXPECT_THAT(error_with(stored, [&](StoredPart& part) { set<float>(part, of_tensor, 0, global); }),
                    AllOf(HasSubstr("layers.3.up"), HasSubstr(of_tensor)))
            << global;
      continue;
    }
    std::vector<float> wrong = {0.0f, std::numeric_limits<float>::infinity(), std::nanf("")};
    if (stored.scheme.weights.is_float) wrong.push_back(-0.5f);
    for (const float scale : wrong)
      EXPECT_THAT(error_with(stored,
                             [&](StoredPart& part) {
                               Tensor& tensor = part.tensors.at(name);
                               tensor = tensor.ndim() == 0 ? tensor.view({1}) : tensor;
                               Tensor floats = tensor.to(DType::f32);
                               floats.data<float>()[0] = scale;
                               tensor = floats;
                             }),
                  AllOf(HasSubstr("layers.3.up"), HasSubstr(name)))
          << scale;
  }
}

StoredLinear find_stored(const std::function<bool(const StoredLinear&)>& fits) {
  for (const StoredLinear& stored : testing::all_stored_linears())
    if (fits(stored)) return stored;
  throw std::logic_error("no such format");
}

TEST(Task8_2_Formats, CodesThatCannotBeAreRefusedByName) {
  const auto is_fp8 = [](const StoredLinear& stored) {
    return stored.scheme.weights.is_float && stored.scheme.weights.num_bits == 8;
  };
  for (const StoredLinear& stored : testing::all_stored_linears())
    if (is_fp8(stored)) {
      for (const int nan : {0x7f, 0xff})
        EXPECT_THAT(
            error_with(stored,
                       [&](StoredPart& part) { set<uint8_t>(part, "weight", 5, static_cast<uint8_t>(nan)); }),
            AllOf(HasSubstr("layers.3.up: weight"), HasSubstr("NaN")));
    }
  const StoredLinear bytes = find_stored([](const StoredLinear& stored) {
    return stored.format == StoredFormat::plain && stored.scheme.weights.num_bits == 4 &&
           !stored.scheme.weights.symmetric;
  });
  for (const std::string name : {"weight", "weight_zero_point"})
    for (const int code : {-9, 8})
      EXPECT_THAT(
          error_with(bytes, [&](StoredPart& part) { set<int8_t>(part, name, 1, static_cast<int8_t>(code)); }),
          AllOf(HasSubstr("layers.3.up: " + name), HasSubstr(std::to_string(code))));
  const StoredLinear packed =
      find_stored([](const StoredLinear& stored) { return stored.format == StoredFormat::packed; });
  for (const int64_t index : {0, 1})
    EXPECT_THAT(error_with(packed, [&](StoredPart& part) { set<int64_t>(part, "weight_shape", index, 48); }),
                AllOf(HasSubstr("layers.3.up: weight_shape"), HasSubstr("48"), HasSubstr("[32, 64]")));
}

// "gptq_v2" on a file of "gptq", or the other way round: the zeros of a symmetric file give it away.
TEST(Task8_2_Formats, ALabelThatLiesAboutSymmetricZerosIsFound) {
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    if (stored.format != StoredFormat::gptq || !stored.scheme.weights.symmetric) continue;
    SCOPED_TRACE(describe(stored));
    const int bits = stored.scheme.weights.num_bits, middle = 1 << (bits - 1);
    StoredLinear other = stored;
    other.zeros_are_one_less = !stored.zeros_are_one_less;
    EXPECT_THAT(error_with(stored,
                           [&](StoredPart& part) {
                             Random random;
                             part =
                                 random_part(random, other, part.n, part.k, order_of(random, other, part.k));
                           }),
                AllOf(HasSubstr("layers.3.up"),
                      HasSubstr(std::to_string(middle + (stored.zeros_are_one_less ? 1 : -1)))));
  }
}

TEST(Task8_2_Formats, GroupIndicesThatCannotBeAreRefusedByName) {
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    const bool ordered = stored.scheme.weights.actorder == ActivationOrder::group;
    if (stored.format != StoredFormat::gptq && !ordered) continue;
    SCOPED_TRACE(describe(stored));
    const std::string name = stored.format == StoredFormat::gptq ? "g_idx" : "weight_g_idx";
    for (const int32_t group : {-1, 1, 2, 1 << 30})
      EXPECT_THAT(error_with(stored,
                             [&](StoredPart& part) {
                               for (int64_t i = 0; i < 40; ++i) set<int32_t>(part, name, i, group);
                             }),
                  AllOf(HasSubstr("layers.3.up"), HasSubstr("g_idx")))
          << group;
    // Parts that do not agree about the order of the input that they share.
    if (ordered) {
      EXPECT_THAT(error_with(stored,
                             [&](StoredPart& part) {
                               const auto* groups = part.tensors.at(name).data<int32_t>();
                               int64_t other = 1;
                               while (groups[other] == groups[0] && other < 63) ++other;
                               const int32_t first = groups[0], second = groups[other];
                               set<int32_t>(part, name, 0, second + 1);
                               set<int32_t>(part, name, other, first);
                             }),
                  AllOf(HasSubstr("layers.3.up"), HasSubstr("g_idx")));
    }
  }
}

// Sizes that do not fill the words of a format.
TEST(Task8_2_Formats, SizesThatDoNotFillWordsAreRefusedByName) {
  const auto made = [](StoredFormat format, int64_t in, int64_t out) {
    StoredLinear stored{.format = format};
    stored.scheme.weights.num_bits = 4;
    stored.scheme.weights.strategy = ScaleStrategy::channel;
    return error_of([&] {
      ColumnParallelLinear(OpContext{}, "layers.3.up", in, out, {.method = quantized_linear_method(stored)});
    });
  };
  EXPECT_THAT(made(StoredFormat::gptq, 90, 32), AllOf(HasSubstr("layers.3.up"), HasSubstr("90 input")));
  EXPECT_THAT(made(StoredFormat::awq, 64, 36), AllOf(HasSubstr("layers.3.up"), HasSubstr("36 output")));
  EXPECT_EQ(made(StoredFormat::gptq, 88, 32), "no error");
}

// Both parts' g_idx have a group too many members: what the test above cannot see, as the parts differ there.
TEST(Task8_2_Formats, AGroupWithTooManyMembersIsRefused) {
  Random random;
  StoredLinear stored{.format = StoredFormat::packed};
  stored.scheme.weights.num_bits = 4;
  stored.scheme.weights.strategy = ScaleStrategy::group;
  stored.scheme.weights.group_size = 32;
  stored.scheme.weights.actorder = ActivationOrder::group;
  std::vector<int32_t> order = testing::random_order(random, 64, 32);
  const auto load_with = [&](const std::vector<int32_t>& group_of) {
    StoredPart part = random_part(random, stored, 8, 64, order);
    part.tensors["weight_g_idx"] = Tensor::from<int32_t>(group_of, {64});
    return error_of([&] {
      OpContext ctx;
      ColumnParallelLinear linear(ctx, "l", 64, 8, {.method = quantized_linear_method(stored)});
      for (Parameter* parameter : linear.parameters())
        parameter->load(part.tensors.at(parameter->name.substr(2)));
      linear.process_after_load(ctx);
    });
  };
  EXPECT_EQ(load_with(order), "no error");
  std::vector<int32_t> uneven = order;
  *std::find(uneven.begin(), uneven.end(), 0) = 1;
  EXPECT_THAT(load_with(uneven), AllOf(HasSubstr("l: g_idx"), HasSubstr("31"), HasSubstr("expected 32")));
  for (const int32_t outside : {-1, 2}) {
    std::vector<int32_t> wrong = order;
    wrong[17] = outside;
    EXPECT_THAT(load_with(wrong), AllOf(HasSubstr("l: g_idx"), HasSubstr("feature 17")));
  }
}

TEST(Task8_2_Formats, AnInputScaleThatCannotBeIsRefusedByName) {
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")})
    EXPECT_THAT(error_with(static_int8(),
                           [&](StoredPart& part) {
                             part.tensors["input_scale"] =
                                 Tensor::from<float>(std::vector<float>{scale}, {1});
                           }),
                HasSubstr("input_scale"));
}

TEST(Task8_2_Formats, SchemesThatAFormatCannotHoldAreRefused) {
  const auto refused = [](StoredFormat format, const std::function<void(QuantizationScheme&)>& change) {
    StoredLinear stored{.format = format};
    stored.scheme.weights.num_bits = 4;
    stored.scheme.weights.strategy = ScaleStrategy::group;
    stored.scheme.weights.group_size = 32;
    stored.scheme.weights.is_float = format == StoredFormat::nvfp4 || format == StoredFormat::mx;
    EXPECT_EQ(error_of([&] { quantized_linear_method(stored); }), "no error");
    change(stored.scheme);
    EXPECT_NE(error_of([&] { quantized_linear_method(stored); }), "no error") << describe(stored);
  };
  using Scheme = QuantizationScheme;
  for (const StoredFormat format : {StoredFormat::packed, StoredFormat::gptq, StoredFormat::awq}) {
    refused(format, [](Scheme& scheme) { scheme.weights.num_bits = 9; });
    refused(format, [](Scheme& scheme) { scheme.weights.is_float = true; });
    refused(format, [](Scheme& scheme) { scheme.weights.group_size = 0; });
  }
  refused(StoredFormat::gptq, [](Scheme& scheme) { scheme.weights.num_bits = 5; });
  refused(StoredFormat::gptq, [](Scheme& scheme) { scheme.weights.strategy = ScaleStrategy::tensor; });
  refused(StoredFormat::awq, [](Scheme& scheme) { scheme.weights.num_bits = 8; });
  refused(StoredFormat::awq, [](Scheme& scheme) { scheme.weights.actorder = ActivationOrder::group; });
  refused(StoredFormat::plain, [](Scheme& scheme) { scheme.weights.actorder = ActivationOrder::group; });
  refused(StoredFormat::plain, [](Scheme& scheme) { scheme.weights.is_float = true; });  // of 4 bits
  refused(StoredFormat::nvfp4, [](Scheme& scheme) { scheme.weights.num_bits = 8; });
  refused(StoredFormat::mx, [](Scheme& scheme) { scheme.weights.is_float = false; });
  for (const StoredFormat format : {StoredFormat::plain, StoredFormat::mx})
    refused(format, [](Scheme& scheme) {  // a scale for all rows of x together, whatever else is in the batch
      scheme.input_activations = QuantizationArgs{};
      scheme.input_activations->dynamic = true;
    });
}

// Blocks of 8-bit floats with groups of activations, both cut in the middle between two ranks.
TEST(Task8_2_Formats, GroupsOfActivationsBeginWithTheRanksFeatures) {
  Random random;
  SCOPED_TRACE(random.describe());
  StoredLinear stored{.format = StoredFormat::plain};
  QuantizationArgs& weights = stored.scheme.weights;
  weights.is_float = true;
  QuantizationArgs inputs = weights;
  inputs.dynamic = true;
  inputs.strategy = ScaleStrategy::group;
  inputs.group_size = 32;
  weights.strategy = ScaleStrategy::block;
  weights.block_rows = weights.block_columns = 32;
  stored.scheme.input_activations = inputs;
  constexpr int64_t kIn = 160, kOut = 40, kRows = 3;  // 2.5 groups on each of two ranks
  const std::vector<StoredPart> parts = {random_part(random, stored, kOut, kIn)};
  const Tensor x = random.normal({kRows, kIn}, DType::f32);
  for (const int ranks : {1, 2}) {
    const int64_t share = kIn / ranks;
    std::vector<float> rounded(static_cast<size_t>(kRows * kIn));
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t begin = 0; begin < kIn; ++begin) {
        if (begin % share % 32 != 0) continue;
        const int64_t end = std::min(begin + 32, (begin / share + 1) * share);
        const float* numbers = x.data<float>() + row * kIn;
        const Grid grid = make_grid(std::span(numbers + begin, numbers + end), inputs);
        for (int64_t i = begin; i < end; ++i)
          rounded[static_cast<size_t>(row * kIn + i)] = round_to_grid(numbers[i], grid, inputs);
      }
    std::vector<double> expected;
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t j = 0; j < kOut; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < kIn; ++k)
          sum += static_cast<double>(rounded[static_cast<size_t>(row * kIn + k)]) *
                 static_cast<double>(parts[0].dense[static_cast<size_t>(j * kIn + k)]);
        expected.push_back(sum);
      }
    on_ranks(ranks, [&](const OpContext& ctx, int rank) {
      RowParallelLinear rows(ctx, "down", kIn, kOut, {.method = quantized_linear_method(stored)});
      load(rows, ctx, parts);
      const Tensor out = testing::poisoned({kRows, kOut}, DType::f32);
      rows.forward(ctx, x.narrow(1, rank * share, share), out);
      EXPECT_TRUE(testing::close_to(out, expected));
    });
  }
}

}  // namespace
}  // namespace ladder
