// Tasks 8.2: random configurations against a reader of their rules, and linears of random shapes in every format.
#include "step8_advanced/quantization/linear/quantized_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <regex>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/local_group.h"
#include "step1_layers/linear/linear.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "tests/step8_advanced/quantization/stored_parts.h"

namespace ladder {
namespace {

using testing::Random;
using testing::random_part;
using testing::StoredPart;

std::string random_name(Random& random) {
  const auto linear = random.one_of<std::string>({"self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj",
                                                  "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
  return "model.layers." + std::to_string(random.integer(0, 12)) + "." + linear;
}

std::string random_target(Random& random) {
  switch (random.integer(0, 5)) {
    case 0:
      return "Linear";
    case 1:
      return "re:.*" + random.one_of<std::string>({"proj", "down_proj", "mlp", "self_attn\\.q"});
    case 2:
      return "re:model\\.layers\\.1\\..*";
    case 3:
      return "re:model\\.layers\\.1";  // of 1, 10, 11 and 12
    case 4:
      return "model.layers.1";  // of nobody
    default:
      return random_name(random);
  }
}

// 0: does not name it; 1: all; 2: a pattern; 3: its name.
int specific(const std::string& target, const std::string& name) {
  if (target == name) return 3;
  if (target == "Linear") return 1;
  if (!target.starts_with("re:")) return 0;
  return std::regex_search(name, std::regex(target.substr(3)), std::regex_constants::match_continuous) ? 2
                                                                                                       : 0;
}

struct Group {
  int bits = 0;
  std::vector<std::string> targets;
};

// The bits of a linear's scheme, 0 where it is dense, or nothing where the rules contradict each other.
std::optional<int> expected_bits(const std::vector<Group>& groups, const std::vector<std::string>& ignored,
                                 const std::string& name) {
  for (const std::string& target : ignored)
    if (specific(target, name) > 0) return 0;
  int best = 0;
  std::vector<int> found;
  for (const Group& group : groups)
    for (const std::string& target : group.targets) {
      const int how = specific(target, name);
      if (how == 0 || how < best) continue;
      if (how > best) found.clear();
      best = how;
      found.push_back(group.bits);
    }
  if (found.empty()) return 0;
  if (std::ranges::any_of(found, [&](int bits) { return bits != found[0]; })) return std::nullopt;
  return found[0];
}

TEST(Hidden8_2_Config, RandomTargetsAndNames) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 300 && !HasFailure(); ++round) {
    std::vector<Group> groups;
    Json all = Json::object();
    for (int64_t i = random.integer(1, 4); i > 0; --i) {
      Group group{static_cast<int>(random.integer(2, 8)), {}};
      for (int64_t t = random.integer(1, 3); t > 0; --t) group.targets.push_back(random_target(random));
      all["group_" + std::to_string(groups.size())] = {
          {"targets", group.targets},
          {"weights", {{"num_bits", group.bits}, {"type", "int"}, {"strategy", "channel"}}}};
      groups.push_back(std::move(group));
    }
    std::vector<std::string> ignored;
    for (int64_t i = random.integer(0, 2); i > 0; --i) {
      const std::string target = random_target(random);
      if (target != "Linear") ignored.push_back(target);
    }
    const Json json = {{"quant_method", "compressed-tensors"},
                       {"format", "pack-quantized"},
                       {"config_groups", all},
                       {"ignore", ignored}};
    const QuantizationConfig config = QuantizationConfig::parse(json.dump(), "config");
    const auto bits_of = [&](const std::vector<std::string>& names) -> std::optional<int> {
      try {
        const std::optional<StoredLinear> stored = config.linear(names);
        return stored ? stored->scheme.weights.num_bits : 0;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(names[0]), std::string::npos) << error.what();
        return std::nullopt;
      }
    };
    for (int i = 0; i < 20; ++i) {
      const std::string name = random_name(random);
      EXPECT_EQ(bits_of({name}), expected_bits(groups, ignored, name)) << name << " in " << json.dump();
      // Merged: all parts alike, or an error.
      const std::vector<std::string> parts = {name, random_name(random), random_name(random)};
      std::vector<std::optional<int>> each;
      for (const std::string& part : parts) each.push_back(expected_bits(groups, ignored, part));
      if (std::ranges::any_of(each, [](const auto& one) { return !one; }))
        continue;  // which of them is named is free
      const bool alike = each[0] == each[1] && each[0] == each[2];
      EXPECT_EQ(bits_of(parts), alike ? each[0] : std::nullopt) << json.dump();
    }
  }
}

void fill(Linear& linear, const OpContext& ctx, const std::vector<StoredPart>& parts) {
  for (Parameter* parameter : linear.parameters()) {
    const std::string name = parameter->name.substr(parameter->name.rfind('.') + 1);
    for (int part = 0; part < parameter->num_parts; ++part)
      parameter->load(parts[static_cast<size_t>(part)].tensors.at(name), part);
  }
  linear.process_after_load(ctx);
}

std::vector<int32_t> order_of(Random& random, const StoredLinear& stored, int64_t k) {
  const QuantizationArgs& args = stored.scheme.weights;
  return args.actorder == ActivationOrder::group ? testing::random_order(random, k, args.group_size)
                                                 : std::vector<int32_t>();
}

TEST(Hidden8_2_Formats, RandomShapesOnRandomNumbersOfRanks) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::vector<StoredLinear> formats = testing::all_stored_linears();
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    const StoredLinear& stored = random.one_of<StoredLinear>(formats);
    const auto method = quantized_linear_method(stored);
    const int ranks = random.one_of<int>({1, 2, 4});
    const int64_t k = 32 * random.integer(3, 9);
    SCOPED_TRACE(testing::describe(stored) + fmt::format(", {} ranks, {} features", ranks, k));
    const std::vector<int32_t> order = order_of(random, stored, k);
    std::vector<int64_t> sizes;
    std::vector<StoredPart> parts;
    for (int64_t i = random.integer(1, 4); i > 0; --i) {
      sizes.push_back(32 * random.integer(1, 3));
      parts.push_back(random_part(random, stored, sizes.back(), k, order));
    }
    const Tensor x = Tensor::zeros({k, k}, DType::f32);
    for (int64_t i = 0; i < k; ++i) x.at<float>({i, i}) = 1;
    run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
      Arena arena;
      OpContext ctx;
      ctx.arena = &arena;
      ctx.parallel = &parallel;
      MergedColumnParallelLinear columns(ctx, "up", k, sizes, {.method = method});
      fill(columns, ctx, parts);
      const Tensor out = testing::poisoned({k, columns.out_features()}, DType::f32);
      columns.forward(ctx, x, out);
      int64_t begin = 0;
      for (size_t part = 0; part < parts.size(); ++part) {
        const int64_t rows = sizes[part] / ranks;
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t column = 0; column < k; ++column)
            ASSERT_EQ(out.at<float>({column, begin + row}),
                      parts[part].dense[static_cast<size_t>((rank * rows + row) * k + column)])
                << "part " << part << ", row " << rank * rows + row << ", column " << column;
        begin += rows;
      }
      RowParallelLinear rows(ctx, "down", k, sizes[0], {.method = method});
      fill(rows, ctx, {parts[0]});
      const Tensor sum = testing::poisoned({k, sizes[0]}, DType::f32);
      rows.forward(ctx, x.narrow(1, rank * k / ranks, k / ranks), sum);
      for (int64_t row = 0; row < sizes[0]; ++row)
        for (int64_t column = 0; column < k; ++column)
          ASSERT_EQ(sum.at<float>({column, row}), parts[0].dense[static_cast<size_t>(row * k + column)])
              << "down, row " << row << ", column " << column;
    });
  }
}

// One number anywhere that cannot be.
TEST(Hidden8_2_Formats, WhatCannotBeIsRefused) {
  Random random;
  SCOPED_TRACE(random.describe());
  const OpContext ctx;
  const auto is_refused = [&](const StoredLinear& stored, int64_t k, const StoredPart& part) {
    ColumnParallelLinear linear(ctx, "up", k, part.n, {.method = quantized_linear_method(stored)});
    EXPECT_THROW(fill(linear, ctx, {part}), Error) << testing::describe(stored);
  };
  for (const StoredLinear& stored : testing::all_stored_linears()) {
    const int64_t k = 160, n = 64;
    const std::vector<int32_t> order = order_of(random, stored, k);
    for (const char* name : {"weight_scale", "weight_scale_inv", "scales"}) {
      StoredPart part = random_part(random, stored, n, k, order);
      const auto found = part.tensors.find(name);
      if (found == part.tensors.end() ||
          (found->second.dtype() != DType::bf16 && found->second.dtype() != DType::f16))
        continue;
      const Tensor scales = found->second.to(DType::f32);
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      scales.data<float>()[random.integer(0, scales.numel() - 1)] =
          random.one_of<float>({0.0f, stored.scheme.weights.is_float ? -0.5f : 0.0f, kInfinity, -kInfinity,
                                std::numeric_limits<float>::quiet_NaN()});
      found->second = scales.to(found->second.dtype());
      is_refused(stored, k, part);
    }
    if (stored.format == StoredFormat::plain && stored.scheme.weights.is_float) {
      StoredPart part = random_part(random, stored, n, k, order);
      static_cast<uint8_t*>(part.tensors.at("weight").raw())[random.integer(0, n * k - 1)] =
          random.one_of<uint8_t>({0x7f, 0xff});
      is_refused(stored, k, part);
    }
    if (!order.empty()) {
      const char* name = stored.format == StoredFormat::gptq ? "g_idx" : "weight_g_idx";
      StoredPart part = random_part(random, stored, n, k, order);
      int32_t* groups = part.tensors.at(name).data<int32_t>();
      const int64_t at = random.integer(0, k - 1);
      groups[at] = random.one_of<int32_t>({-1, 1000, groups[at] == 0 ? 1 : 0});  // nowhere, or one too many
      is_refused(stored, k, part);
    }
  }
}

}  // namespace
}  // namespace ladder
