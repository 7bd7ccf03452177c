// Task 8.2: sparse-24-bitmask, weights of which two of every four neighbours are kept.
#include "step8_advanced/quantization/linear/two_of_four.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/linear/linear.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/linear/quantized_linear.h"
#include "tests/step8_advanced/quantization/stored_parts.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Random;
using testing::StoredPart;

// Two of each four of the part's weight, drawn anew, in the three tensors instead of it; the others are 0 in `dense`.
void keep_two_of_four(Random& random, StoredPart& part) {
  const Tensor weight = part.tensors.at("weight");
  const int64_t size = dtype_size(weight.dtype());
  const Tensor compressed = Tensor::empty({part.n, part.k / 2}, weight.dtype());
  const Tensor bitmask = Tensor::zeros({part.n, (part.k + 7) / 8}, DType::u8);
  auto* to = static_cast<char*>(compressed.raw());
  for (int64_t row = 0; row < part.n; ++row)
    for (int64_t four = 0; four < part.k; four += 4) {
      const int64_t first = random.integer(0, 3), second = (first + random.integer(1, 3)) % 4;
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t column = four + i, at = row * part.k + column;
        if (i != first && i != second) {
          part.dense[static_cast<size_t>(at)] = 0;
          continue;
        }
        std::memcpy(to, static_cast<const char*>(weight.raw()) + at * size, static_cast<size_t>(size));
        to += size;
        bitmask.data<uint8_t>()[row * bitmask.dim(1) + column / 8] |= static_cast<uint8_t>(1 << column % 8);
      }
    }
  part.tensors.erase("weight");
  part.tensors["compressed"] = compressed;
  part.tensors["bitmask"] = bitmask;
  part.tensors["shape"] = Tensor::from<int64_t>(std::vector<int64_t>{part.n, part.k}, {2, 1});
}

StoredPart sparse_part(Random& random, const StoredLinear& stored, int64_t n, int64_t k) {
  StoredPart part{.tensors = {}, .n = n, .k = k, .dense = {}};
  if (stored.format == StoredFormat::dense) {
    const Tensor weight = Tensor::empty({n, k}, DType::f32);
    for (int64_t i = 0; i < n * k; ++i) {
      weight.data<float>()[i] = static_cast<float>(random.uniform(-1, 1));
      part.dense.push_back(weight.data<float>()[i]);
    }
    part.tensors["weight"] = weight;
  } else {
    part = random_part(random, stored, n, k);
  }
  keep_two_of_four(random, part);
  return part;
}

// Not quantized, as codes of floats, and of integers in groups.
std::vector<StoredLinear> sparse_linears() {
  std::vector<StoredLinear> all(3);
  for (StoredLinear& stored : all) stored.two_of_four = true;
  all[0].format = StoredFormat::dense;
  all[1].scheme.weights.is_float = true;
  all[1].scheme.weights.strategy = ScaleStrategy::channel;
  all[2].scheme.weights.strategy = ScaleStrategy::group;
  all[2].scheme.weights.group_size = 32;
  return all;
}

void load(Linear& linear, const OpContext& ctx, const std::vector<StoredPart>& parts) {
  for (Parameter* parameter : linear.parameters()) {
    const std::string name = parameter->name.substr(parameter->name.rfind('.') + 1);
    for (size_t part = 0; part < parts.size(); ++part)
      parameter->load(parts[part].tensors.at(name), static_cast<int>(part));
  }
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

void expect_weight(const Tensor& out, int64_t begin, int64_t count, const StoredPart& part, int64_t from) {
  for (int64_t row = 0; row < count; ++row)
    for (int64_t column = 0; column < part.k; ++column)
      ASSERT_EQ(out.data<float>()[column * out.stride(0) + begin + row],
                part.dense[static_cast<size_t>((from + row) * part.k + column)])
          << "row " << from + row << ", column " << column;
}

// 160 features: a quarter, 40, is whole fours and bytes; an eighth, 20, whole fours; 10 and 5 cut both.
TEST(Task8_2_TwoOfFour, IsReadExactlyOnEveryNumberOfRanks) {
  constexpr int64_t kFeatures = 160;
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : sparse_linears()) {
    SCOPED_TRACE(testing::describe(stored));
    const auto method = quantized_linear_method(stored);
    std::vector<StoredPart> parts;
    for (const int64_t n : {32, 64}) parts.push_back(sparse_part(random, stored, n, kFeatures));
    const Tensor x = identity(kFeatures);
    for (const int ranks : {1, 4, 8, 16, 32})
      on_ranks(ranks, [&](const OpContext& ctx, int rank) {
        MergedColumnParallelLinear columns(ctx, "up", kFeatures, {32, 64}, {.method = method});
        load(columns, ctx, parts);
        Tensor out = testing::poisoned({kFeatures, 96 / ranks}, DType::f32);
        columns.forward(ctx, x, out);
        expect_weight(out, 0, 32 / ranks, parts[0], rank * 32 / ranks);
        expect_weight(out, 32 / ranks, 64 / ranks, parts[1], rank * 64 / ranks);

        RowParallelLinear rows(ctx, "down", kFeatures, 32, {.method = method});
        load(rows, ctx, {parts[0]});
        out = testing::poisoned({kFeatures, 32}, DType::f32);
        rows.forward(ctx, x.narrow(1, rank * kFeatures / ranks, kFeatures / ranks), out);
        expect_weight(out, 0, 32, parts[0], 0);
      });
    if (HasFatalFailure()) return;
  }
}

// A byte of the bitmask that is only half used, and a bias.
TEST(Task8_2_TwoOfFour, ColumnsNeedNotFillTheLastByteAndABiasIsAdded) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : sparse_linears()) {
    if (stored.scheme.weights.strategy == ScaleStrategy::group) continue;
    StoredPart part = sparse_part(random, stored, 5, 12);
    part.tensors["bias"] = Tensor::from<float>(std::vector<float>{1, 2, 3, 4, 5}, {5});
    RowParallelLinear linear({}, "o", 12, 5, {.bias = true, .method = quantized_linear_method(stored)});
    load(linear, {}, {part});
    const Tensor out = testing::poisoned({1, 5}, DType::f32);
    linear.forward({}, Tensor::zeros({1, 12}, DType::f32), out);
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(out.data<float>()[i], static_cast<float>(i + 1));
    const Tensor weight = testing::poisoned({12, 5}, DType::f32);
    part.tensors["bias"].fill_bytes(0);
    RowParallelLinear without({}, "o", 12, 5, {.bias = true, .method = quantized_linear_method(stored)});
    load(without, {}, {part});
    without.forward({}, identity(12), weight);
    expect_weight(weight, 0, 5, part, 0);
  }
}

// Fused kernels find a dense matrix, as they do of a linear that never was sparse.
TEST(Task8_2_TwoOfFour, WhatIsNotQuantizedIsADenseMatrixOnceLoaded) {
  Random random;
  SCOPED_TRACE(random.describe());
  const StoredLinear stored = sparse_linears()[0];
  const StoredPart part = sparse_part(random, stored, 6, 8);
  RowParallelLinear linear({}, "o", 8, 6, {.method = quantized_linear_method(stored)});
  load(linear, {}, {part});
  const Tensor weight = linear.dense_weight();
  ASSERT_TRUE(weight.defined());
  EXPECT_EQ(weight.shape(), (Shape{6, 8}));
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(weight.data<float>()[i], part.dense[static_cast<size_t>(i)]);
}

// Weights with their zeros in them are ordinary ones on a CPU, and so are made up ones.
TEST(Task8_2_TwoOfFour, OnACpuAWholeWeightStaysAsItIs) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const auto source : {TwoOfFourSource::whole, TwoOfFourSource::dummy}) {
    RowParallelLinear linear({}, "o", 8, 6, {.method = two_of_four_linear_method(source)});
    const Tensor weight = random.normal({6, 8}, DType::f32);
    ASSERT_EQ(linear.parameters().size(), 1u);
    linear.parameters()[0]->load(weight);
    linear.process_after_load({});
    EXPECT_TRUE(testing::bitwise_equal(linear.dense_weight(), weight));
  }
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TEST(Task8_2_TwoOfFour, TensorsThatCannotBeAreRefusedByName) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (const StoredLinear& stored : sparse_linears()) {
    if (stored.scheme.weights.strategy == ScaleStrategy::group) continue;
    SCOPED_TRACE(testing::describe(stored));
    const auto refusal = [&](const std::function<void(StoredPart&)>& change) {
      StoredPart part = sparse_part(random, stored, 3, 12);
      change(part);
      return error_of([&] {
        RowParallelLinear linear({}, "layers.7.o_proj", 12, 3, {.method = quantized_linear_method(stored)});
        load(linear, {}, {part});
      });
    };
    const auto byte = [](StoredPart& part, int64_t index) -> uint8_t& {
      return part.tensors.at("bitmask").data<uint8_t>()[index];
    };
    const std::string name = "layers.7.o_proj";
    EXPECT_EQ(refusal([](StoredPart&) {}), "no error");
    EXPECT_THAT(refusal([&](StoredPart& part) { byte(part, 2) = 0b01110011; }),
                AllOf(HasSubstr(name), HasSubstr("bitmask keeps 3 of columns 4 to 7 in row 1")));
    EXPECT_THAT(refusal([&](StoredPart& part) { byte(part, 3) = 0; }),
                AllOf(HasSubstr(name), HasSubstr("keeps 0 of columns 8 to 11 in row 1")));
    EXPECT_THAT(refusal([&](StoredPart& part) { byte(part, 5) |= 0b01000000; }),
                AllOf(HasSubstr(name), HasSubstr("behind the 12 columns in row 2")));
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 16}, {12, 3}, {-3, 12}, {3, 0}})
      EXPECT_THAT(refusal([&](StoredPart& part) {
                    part.tensors["shape"] = Tensor::from<int64_t>(shape, {2, 1});
                  }),
                  AllOf(HasSubstr(name), HasSubstr("shape of part 0"), HasSubstr("expected [3, 12]")));
    const auto with_shape = [&](const char* tensor, const Shape& shape, DType dtype) {
      return refusal([&](StoredPart& part) { part.tensors[tensor] = Tensor::zeros(shape, dtype); });
    };
    const DType dtype = stored.format == StoredFormat::dense ? DType::f32 : DType::f8_e4m3;
    EXPECT_THAT(with_shape("compressed", {3, 5}, dtype), HasSubstr(name + ".compressed"));
    EXPECT_THAT(with_shape("compressed", {3, 12}, dtype), HasSubstr(name + ".compressed"));
    EXPECT_THAT(with_shape("bitmask", {3, 1}, DType::u8), HasSubstr(name + ".bitmask"));
    EXPECT_THAT(with_shape("shape", {2}, DType::i64), HasSubstr(name + ".shape"));
    EXPECT_THAT(error_of([&] {
                  RowParallelLinear(OpContext{}, name, 10, 3, {.method = quantized_linear_method(stored)});
                }),
                HasSubstr("multiple of 4"));
  }
  // NaN among the codes that are kept.
  const StoredLinear floats = sparse_linears()[1];
  StoredPart part = sparse_part(random, floats, 3, 12);
  static_cast<uint8_t*>(part.tensors["compressed"].raw())[7] = 0x7f;
  EXPECT_THAT(error_of([&] {
                RowParallelLinear linear({}, "o", 12, 3, {.method = quantized_linear_method(floats)});
                load(linear, {}, {part});
              }),
              HasSubstr("NaN in row 1"));
  StoredLinear with_zeros = sparse_linears()[2];
  with_zeros.scheme.weights.symmetric = false;
  EXPECT_THAT(error_of([&] { quantized_linear_method(with_zeros); }), HasSubstr("zero points"));
}

const Json kSparsity = {{"format", "sparse-24-bitmask"}, {"sparsity_structure", "2:4"},
                        {"global_sparsity", 0.5},        {"registry_requires_subclass", false},
                        {"targets", {"Linear"}},         {"ignore", {"lm_head", "re:.*o_proj"}}};

Json with(Json json, const std::string& key, const Json& value) {
  json[key] = value;
  return json;
}

QuantizationConfig parse(const Json& config) {
  return QuantizationConfig::parse(config.dump(), "q");
}

std::optional<StoredLinear> of(const QuantizationConfig& config, const std::string& name) {
  return config.linear({&name, 1});
}

TEST(Task8_2_TwoOfFour, ItsTargetsAreApartFromThoseOfGroups) {
  const std::string down = "model.layers.0.mlp.down_proj", o = "model.layers.0.self_attn.o_proj";
  const Json only = {{"quant_method", "compressed-tensors"}, {"sparsity_config", kSparsity}};
  for (const Json& groups : {Json(), Json::object()}) {
    const QuantizationConfig config = parse(with(only, "config_groups", groups));
    ASSERT_TRUE(of(config, down).has_value());
    EXPECT_EQ(of(config, down)->format, StoredFormat::dense);
    EXPECT_TRUE(of(config, down)->two_of_four);
    EXPECT_EQ(of(config, o), std::nullopt);
    EXPECT_EQ(of(config, "lm_head"), std::nullopt);
  }
  Json both = with(only, "config_groups", {{"FP8_DYNAMIC", {"Linear"}}});
  both["ignore"] = {"lm_head"};
  EXPECT_EQ(of(parse(both), down)->format, StoredFormat::plain);
  EXPECT_TRUE(of(parse(both), down)->two_of_four);
  EXPECT_EQ(of(parse(both), o)->format, StoredFormat::plain);
  EXPECT_FALSE(of(parse(both), o)->two_of_four);
  both["ignore"] = {"lm_head", down};
  EXPECT_EQ(of(parse(both), down)->format, StoredFormat::dense);
}

TEST(Task8_2_TwoOfFour, AConfigThatCannotBeIsRefusedByName) {
  const auto refusal = [](const Json& sparsity, const char* preset = "FP8_DYNAMIC") {
    const Json config = {{"quant_method", "compressed-tensors"},
                         {"sparsity_config", sparsity},
                         {"config_groups", {{preset, {"Linear"}}}}};
    return error_of([&] { of(parse(config), "model.layers.0.mlp.down_proj"); });
  };
  EXPECT_EQ(refusal(kSparsity), "no error");
  for (const char* format : {"sparse-bitmask", "marlin-24", "sparse-24", ""})
    EXPECT_THAT(refusal(with(kSparsity, "format", format)),
                AllOf(HasSubstr("sparsity_config"), HasSubstr(format)));
  EXPECT_THAT(refusal(with(kSparsity, "sparsity_structure", "unstructured")), HasSubstr("unstructured"));
  EXPECT_THAT(refusal(with(kSparsity, "sparsity_structure", "8:16")), HasSubstr("8:16"));
  for (const Json& targets : {Json(), Json::array(), Json("Linear"), Json({"LlamaMLP"}), Json({"re:(("})})
    EXPECT_THAT(refusal(with(kSparsity, "targets", targets)), HasSubstr("target")) << targets;
  EXPECT_THAT(refusal(with(kSparsity, "ignore", {"re:(("})), HasSubstr("(("));
  EXPECT_THAT(refusal(with(kSparsity, "blocks", 4)), HasSubstr("blocks"));
  // What is packed already has no sparse form.
  for (const char* preset : {"W4A16", "NVFP4A16", "MXFP4A16"})
    EXPECT_THAT(refusal(kSparsity, preset),
                AllOf(HasSubstr("down_proj"), HasSubstr("sparse-24-bitmask of"), HasSubstr("pack")));
}

TEST(Task8_2_TwoOfFour, PartsOfWhichSomeAreSparseAreRefusedByName) {
  const Json config = {{"quant_method", "compressed-tensors"},
                       {"sparsity_config", with(kSparsity, "ignore", {"lm_head", "re:.*k_proj"})}};
  const std::vector<std::string> qk = {"a.q_proj", "a.k_proj"};
  EXPECT_THAT(error_of([&] { parse(config).linear(qk); }),
              AllOf(HasSubstr("a.q_proj"), HasSubstr("a.k_proj"), HasSubstr("sparse-24-bitmask")));
}

}  // namespace
}  // namespace ladder
