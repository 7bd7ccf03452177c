#pragma once
// A layer of experts, tokens that come to it, and what it makes of them in double precision.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "step1_layers/moe/experts.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder::testing {

struct MoeSizes {
  int64_t tokens, top_k, experts, hidden, width;
};

// A layer and the tokens that come to it.
struct MoeScene {
  Tensor x, expert_ids, weights, gate_up, down;
  // What an expert makes of its token, and of its activated values, before it multiplies them; empty: nothing.
  std::function<void(int64_t expert, std::vector<double>&row)> round_x, round_activated;

  MoeScene(Random& random, MoeSizes sizes, DType dtype, bool with_holes = false) {
    const auto [tokens, top_k, experts, hidden, width] = sizes;
    x = random.normal({tokens, hidden}, dtype);
    gate_up = random.normal({experts, 2 * width, hidden}, dtype, 1 / std::sqrt(static_cast<double>(hidden)));
    down = random.normal({experts, hidden, width}, dtype, 1 / std::sqrt(static_cast<double>(width)));
    expert_ids = Tensor::empty({tokens, top_k}, DType::i32);
    weights = Tensor::empty({tokens, top_k}, DType::f32);
    std::vector<int32_t> all(static_cast<size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all.begin(), all.end(), random.engine());
      for (int64_t j = 0; j < top_k; ++j) {
        expert_ids.at<int32_t>({t, j}) = with_holes && random.integer(0, 4) == 0 ? -1 : all[j];
        weights.at<float>({t, j}) = static_cast<float>(random.uniform(0.05, 1));
      }
    }
  }

  // In double precision, rounded where the contract rounds; what is rounded is larger by the share `nudge` before.
  std::vector<double> expected(double nudge = 0) const {
    const int64_t hidden = x.dim(1), width = down.dim(2), top_k = expert_ids.dim(1);
    const std::vector<double> rows = to_double(x), up_rows = to_double(gate_up), down_rows = to_double(down);
    auto dot = [](const double* a, const double* b, int64_t size) {
      return std::inner_product(a, a + size, b, 0.0);
    };
    std::vector<double> out(static_cast<size_t>(x.numel()), 0.0);
    for (int64_t t = 0; t < x.dim(0); ++t)
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t e = expert_ids.at<int32_t>({t, j});
        if (e < 0) continue;
        std::vector<double> from(rows.begin() + t * hidden, rows.begin() + (t + 1) * hidden);
        if (round_x) round_x(e, from);
        const double* gate_up_of = up_rows.data() + e * 2 * width * hidden;
        std::vector<double> sums(static_cast<size_t>(2 * width)), activated(static_cast<size_t>(width));
        for (int64_t i = 0; i < 2 * width; ++i) sums[i] = dot(from.data(), gate_up_of + i * hidden, hidden);
        sums = rounded(sums, nudge);
        for (int64_t i = 0; i < width; ++i)
          activated[i] = sums[i] / (1 + std::exp(-sums[i])) * sums[width + i];
        activated = rounded(activated, nudge);
        if (round_activated) round_activated(e, activated);
        for (int64_t i = 0; i < hidden; ++i)
          out[t * hidden + i] += weights.at<float>({t, j}) *
                                 dot(activated.data(), down_rows.data() + (e * hidden + i) * width, width);
      }
    return out;
  }
  // What `out` is compared with. Where a sum lies so near the middle of two numbers that its last bits decide how it is
  // rounded, the row has two right answers, and one large term shows which it is: the nearer one is taken.
  std::vector<double> expected_near(const Tensor& out) const {
    std::vector<double> lowest = expected(), highest = lowest, nearest = to_double(out);
    if (x.dtype() == DType::f32) return lowest;
    for (const double nudge : {-2e-6, 2e-6}) {
      const std::vector<double> other = expected(nudge);
      for (size_t i = 0; i < other.size(); ++i) {
        lowest[i] = std::min(lowest[i], other[i]);
        highest[i] = std::max(highest[i], other[i]);
      }
    }
    for (size_t i = 0; i < nearest.size(); ++i)
      nearest[i] = nearest[i] > highest[i] ? highest[i] : std::max(nearest[i], lowest[i]);
    return nearest;
  }
  std::vector<double> rounded(const std::vector<double>& values, double nudge = 0) const {
    std::vector<float> floats;
    for (const double value : values) floats.push_back(static_cast<float>(value * (1 + nudge)));
    return to_double(Tensor::from<float>(floats, {std::ssize(floats)}).to(x.dtype()));
  }

  Tensor run(const OpContext& ctx) const {
    const Tensor out = poisoned(x.shape(), x.dtype());
    call(moe_experts, ctx, MoeExpertsArgs{x, expert_ids, weights, gate_up, down, out});
    return out;
  }
};

}  // namespace ladder::testing
