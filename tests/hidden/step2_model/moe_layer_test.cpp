// Task 2.7: layers of random shape on one and several ranks, against their definition in double precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>

#include "step1_layers/core/arena.h"
#include "step1_layers/distributed/local_group.h"
#include "step2_model/decoder/composites.h"
#include "step2_model/decoder/moe_mlp.h"
#include "tests/step1_layers/norm_rotate_reference.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace ladder::testing;
using ::testing::UnorderedElementsAreArray;

// A layer and the tokens that come to it, all in f32.
struct Layer {
  DecoderSpec spec;
  Tensor residual, pending, norm, router, gate_up, down, shared_gate_up, shared_down, shared_gate;

  Layer(Random& random, bool shared) {
    spec.architecture = "Qwen2MoeForCausalLM";
    spec.hidden_size = random.integer(20, 120);
    spec.norm_eps = 0.1;
    ExpertsSpec& experts = spec.experts;
    experts.num_experts = random.integer(4, 40);
    experts.rule.top_k = random.integer(1, std::min<int64_t>(experts.num_experts, 10));
    experts.rule.normalize = random.integer(0, 1) == 1;
    experts.rule.scaling_factor = random.uniform(0.5, 3);
    experts.intermediate_size = 12 * random.integer(1, 4);
    experts.shared_intermediate_size = shared ? 12 * random.integer(1, 8) : 0;
    experts.layers = {true};
    const int64_t hidden = spec.hidden_size, width = experts.intermediate_size,
                  tokens = random.integer(1, 25);
    const auto matrix = [&](const Shape& shape) {
      return random.normal(shape, DType::f32, 1.5 / std::sqrt(static_cast<double>(shape[shape.ndim() - 1])));
    };
    residual = random.normal({tokens, hidden}, DType::f32);
    pending = random.normal({tokens, hidden}, DType::f32);
    norm = random.normal({hidden}, DType::f32);
    router = matrix({experts.num_experts, hidden});
    gate_up = matrix({experts.num_experts, 2 * width, hidden});
    down = matrix({experts.num_experts, hidden, width});
    if (!shared) return;
    shared_gate_up = matrix({2 * experts.shared_intermediate_size, hidden});
    shared_down = matrix({hidden, experts.shared_intermediate_size});
    shared_gate = matrix({1, hidden});
  }

  // The layer's addition to the stream. None where two experts of a token are so near each other at the edge of the chosen
  // that float may see them the other way round.
  std::optional<std::vector<double>> expected() const {
    const RouterRule& rule = spec.experts.rule;
    const int64_t hidden = spec.hidden_size, experts = spec.experts.num_experts;
    const Tensor stream = sum();
    const std::vector<double> n = normed(stream, norm, spec.norm_eps);
    std::vector<double> result(n.size());
    for (int64_t t = 0; t < stream.dim(0); ++t) {
      const double* x = n.data() + t * hidden;
      double* out = result.data() + t * hidden;
      std::vector<double> scores = times(router, x);
      double total = 0;
      for (double& score : scores) total += score = std::exp(score);
      std::vector<size_t> order(scores.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::ranges::sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
      const auto k = static_cast<size_t>(rule.top_k);
      if (rule.top_k < experts && scores[order[k - 1]] < scores[order[k]] * 1.0001) return std::nullopt;
      if (rule.normalize) {
        total = 0;
        for (size_t j = 0; j < k; ++j) total += scores[order[j]];
      }
      for (size_t j = 0; j < k; ++j) {
        const auto expert = static_cast<int64_t>(order[j]);
        add_mlp(gate_up.select(0, expert), down.select(0, expert), x,
                scores[order[j]] / total * rule.scaling_factor, out);
      }
      if (spec.experts.shared_intermediate_size > 0)
        add_mlp(shared_gate_up, shared_down, x, 1 / (1 + std::exp(-times(shared_gate, x)[0])), out);
    }
    return result;
  }
  Tensor sum() const {
    const Tensor result = residual.clone();
    for (int64_t i = 0; i < result.numel(); ++i) result.data<float>()[i] += pending.data<float>()[i];
    return result;
  }

  // Fills the parameters by name; a part of a parameter is one of the matrices that lie in it one after the other.
  void load(MoeMlp& mlp) const {
    const std::vector<std::pair<std::string, Tensor>> values = {
        {"m.router.weight", router},
        {"m.experts.gate_up.weight", gate_up},
        {"m.experts.down.weight", down},
        {"m.shared_expert.gate_up_proj.weight", shared_gate_up},
        {"m.shared_expert.down_proj.weight", shared_down},
        {"m.shared_expert_gate.weight", shared_gate}};
    std::vector<std::string> names, expected_names;
    for (Parameter* parameter : mlp.parameters()) {
      names.push_back(parameter->name);
      for (const auto& [name, value] : values)
        if (name == parameter->name) {
          const Tensor rows =
              value.ndim() == 3 ? value.view({value.dim(0) * value.dim(1), value.dim(2)}) : value;
          const int64_t size = rows.dim(0) / parameter->num_parts;
          for (int part = 0; part < parameter->num_parts; ++part)
            parameter->load(rows.narrow(0, part * size, size), part);
        }
    }
    for (const auto& [name, value] : values)
      if (value.defined()) expected_names.push_back(name);
    EXPECT_THAT(names, UnorderedElementsAreArray(expected_names));
  }

 private:
  static std::vector<double> times(const Tensor& matrix, const double* x) {
    std::vector<double> result(static_cast<size_t>(matrix.dim(0)));
    for (int64_t row = 0; row < matrix.dim(0); ++row) {
      const float* values = matrix.data<float>() + row * matrix.stride(0);
      result[static_cast<size_t>(row)] = std::inner_product(values, values + matrix.dim(1), x, 0.0);
    }
    return result;
  }
  static void add_mlp(const Tensor& gate_up, const Tensor& down, const double* x, double weight,
                      double* out) {
    const std::vector<double> sums = times(gate_up, x);
    std::vector<double> activated(sums.size() / 2);
    for (size_t i = 0; i < activated.size(); ++i)
      activated[i] = sums[i] / (1 + std::exp(-sums[i])) * sums[activated.size() + i];
    const std::vector<double> made = times(down, activated.data());
    for (size_t i = 0; i < made.size(); ++i) out[i] += weight * made[i];
  }
};

// Of every expert the rank that has it whole and its number there, drawn at random; every rank has one at least.
std::vector<std::vector<int32_t>> random_places(Random& random, int64_t experts, int ranks) {
  std::vector<std::vector<int32_t>> places(static_cast<size_t>(ranks),
                                           std::vector<int32_t>(static_cast<size_t>(experts), -1));
  std::vector<int32_t> counts(places.size());
  for (size_t expert = 0; expert < static_cast<size_t>(experts); ++expert) {
    const size_t rank = expert < places.size() ? expert : static_cast<size_t>(random.integer(0, ranks - 1));
    places[rank][expert] = counts[rank]++;
  }
  return places;
}

void check(Random& random, int ranks, bool whole_experts, bool shared) {
  const Layer layer(random, shared);
  const std::optional<std::vector<double>> expected = layer.expected();
  if (!expected) return;
  const auto places = random_places(random, layer.spec.experts.num_experts, ranks);
  const bool has_pending = random.integer(0, 1) == 1;
  std::vector<double> total(expected->size());
  std::mutex mutex;
  run_ranks(ranks, [&](int rank, const ParallelContext& parallel) {
    Arena arena;
    OpContext ctx;
    ctx.arena = &arena;
    ctx.parallel = &parallel;
    MoeMlp mlp(ctx, "m", layer.spec, DType::f32, {},
               whole_experts ? std::span<const int32_t>(places[static_cast<size_t>(rank)])
                             : std::span<const int32_t>());
    layer.load(mlp);
    mlp.process_after_load(ctx);
    ResidualStream stream{.residual = has_pending ? layer.residual.clone() : layer.sum(),
                          .pending = layer.pending.clone(),
                          .has_pending = has_pending};
    mlp.forward(ctx, {layer.norm, {}, layer.spec.norm_eps}, stream);
    EXPECT_TRUE(stream.has_pending);
    EXPECT_EQ(stream.pending_is_partial, ranks > 1);
    EXPECT_TRUE(bitwise_equal(stream.residual, layer.sum())) << "the stream before the layer";
    const std::vector<double> part = to_double(stream.pending);
    const std::scoped_lock lock(mutex);
    for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  });
  EXPECT_TRUE(close_to(total, *expected, layer.spec.hidden_size, 2e-5))
      << ranks << " ranks, " << layer.spec.experts.num_experts << " experts, "
      << (whole_experts ? "whole on a rank" : "split");
}

void repeated(bool whole_experts, bool shared) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 12 && !::testing::Test::HasFailure(); ++round)
    check(random, static_cast<int>(random.integer(1, 4)), whole_experts, shared);
}

TEST(Hidden2_7_Layer, AddsUpItsExperts) {
  repeated(false, false);
}
TEST(Hidden2_7_Layer, AddsTheSharedExpertOnce) {
  repeated(false, true);
}
TEST(Hidden2_7_Layer, OfWholeExpertsOnRanks) {
  repeated(true, false);
}
TEST(Hidden2_7_Layer, OfWholeExpertsOnRanksAndASharedOne) {
  repeated(true, true);
}

}  // namespace
}  // namespace ladder
