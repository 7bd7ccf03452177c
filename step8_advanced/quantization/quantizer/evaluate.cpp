#include "step8_advanced/quantization/quantizer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/quantizer/text_pass.h"

namespace ladder {
namespace {

constexpr int64_t kRowsAtOnce = 64;  // of logits: 64 rows of 150,000 floats are 38 MB

}  // namespace

// >>> task 8.5.eval: negative log-likelihood and KL divergence of a row, their means and standard errors
Estimate estimate(std::span<const ClusterSums> clusters,
                  const std::function<double(const ClusterSums&)>& sum) {
  double total = 0, tokens = 0;
  for (const ClusterSums& cluster : clusters) {
    total += sum(cluster);
    tokens += static_cast<double>(cluster.tokens);
  }
  Estimate result{total / tokens, std::numeric_limits<double>::quiet_NaN()};
  const auto count = static_cast<double>(clusters.size());
  if (clusters.size() < 2) return result;
  double squares = 0;
  for (const ClusterSums& cluster : clusters) {
    const double off = sum(cluster) - result.mean * static_cast<double>(cluster.tokens);
    squares += off * off;
  }
  result.standard_error = std::sqrt(count / (count - 1) * squares) / tokens;
  return result;
}

// With m the largest logit, Z = sum of e^(l - m): log p = l - m - log Z. One exponential per element serves Z and, in
//
//   KL = sum of e^(b - m_b) (b - l) / Z_b - (log-sum-exp of b - log-sum-exp of l)
//
// the base's probabilities too. A difference of two logits is exact in double, so that the KL of a row to itself is 0.
RowScore score_row(std::span<const float> logits, std::span<const float> base, int32_t token) {
  const auto log_sum_exp = [](std::span<const float> row, float largest) {
    double sum = 0;
    for (const float logit : row) sum += std::exp(logit - largest);
    return largest + std::log(sum);
  };
  const auto at = static_cast<size_t>(token);
  const auto top = std::max_element(logits.begin(), logits.end());
  const double log_z = log_sum_exp(logits, *top);
  RowScore score;
  score.nll = log_z - logits[at];
  if (base.empty()) return score;

  const auto base_top = std::max_element(base.begin(), base.end());
  double sum = 0, weighted = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double e = std::exp(base[i] - *base_top);
    sum += e;
    weighted += e * (static_cast<double>(base[i]) - static_cast<double>(logits[i]));
  }
  const double base_log_z = *base_top + std::log(sum);
  score.base_nll = base_log_z - base[at];
  score.kl = weighted / sum - (base_log_z - log_z);
  score.same_top = top - logits.begin() == base_top - base.begin();
  return score;
}
// <<< task 8.5.eval

std::vector<ClusterSums> evaluate(const OpContext& ctx, Model& model, Model* base,
                                  std::span<const TextWindow> windows,
                                  const std::function<void(int64_t done, int64_t total)>& progress) {
  int64_t longest = 0;
  for (const TextWindow& window : windows) longest = std::max<int64_t>(longest, std::ssize(window.ids));
  TextPass pass(model, ctx, longest);
  std::optional<TextPass> base_pass;
  if (base != nullptr) {
    LADDER_CHECK(base->spec().vocab_size == model.spec().vocab_size,
                 "a vocabulary of {} against one of {}: expected the same tokens", model.spec().vocab_size,
                 base->spec().vocab_size);
    base_pass.emplace(*base, ctx, longest);
  }

  std::vector<ClusterSums> clusters;
  for (size_t w = 0; w < windows.size(); ++w) {
    const TextWindow& window = windows[w];
    const int64_t predicted = std::ssize(window.ids) - 1;
    std::vector<RowScore> scores(static_cast<size_t>(predicted));
    const auto score_rows = [&](int64_t begin, const Tensor& logits, const Tensor& base_logits) {
      const auto row_of = [](const Tensor& rows, int64_t row) {
        return rows.defined() ? std::span<const float>(rows.data<float>() + row * rows.stride(0), rows.dim(1))
                              : std::span<const float>();
      };
      parallel_for(logits.dim(0), 1, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
          scores[begin + row] =
              score_row(row_of(logits, row), row_of(base_logits, row), window.ids[begin + row + 1]);
      });
    };
    pass.forward(window.ids, {}, [&](const Tensor& hidden) {
      const auto with_rows = [&](const Tensor& base_hidden) {
        for (int64_t begin = 0; begin < predicted; begin += kRowsAtOnce) {
          const int64_t rows = std::min(kRowsAtOnce, predicted - begin);
          pass.logits(hidden.narrow(0, begin, rows), [&](const Tensor& logits) {
            if (!base_pass) return score_rows(begin, logits, {});
            base_pass->logits(base_hidden.narrow(0, begin, rows),
                              [&](const Tensor& base_logits) { score_rows(begin, logits, base_logits); });
          });
        }
      };
      if (base_pass)
        base_pass->forward(window.ids, {}, with_rows);
      else
        with_rows({});
    });

    if (clusters.empty() || clusters.back().cluster != window.cluster)
      clusters.push_back({.cluster = window.cluster});
    ClusterSums& sums = clusters.back();
    sums.tokens += predicted;
    for (const RowScore& score : scores) {
      LADDER_CHECK(!std::isnan(score.nll), "the model's logits hold NaN or infinity: it has no perplexity");
      LADDER_CHECK(!std::isnan(score.base_nll),
                   "the base's logits hold NaN or infinity: there is no distance from it");
      LADDER_CHECK(!std::isnan(score.kl), "logits hold infinity: they have no distance from the base's");
      sums.nll += score.nll;
      sums.base_nll += score.base_nll;
      sums.kl += score.kl;
      sums.same_top += score.same_top ? 1 : 0;
    }
    if (progress) progress(static_cast<int64_t>(w) + 1, std::ssize(windows));
  }
  return clusters;
}

}  // namespace ladder
