#pragma once
// Task 8.5.eval: how good a model is, and how far it is from the one that it was made of.
//
//   NLL          -log p(token | those before it), in nats; perplexity = e^(mean NLL)
//   KL           sum over v of p_base(v) log(p_base(v) / p(v)), per predicted token, over the whole vocabulary
//   same top     how often both find the same token likeliest
//   delta NLL    NLL - base's NLL of the same token
//
// Perplexity alone cannot tell good formats apart: its error is that of the text, which is larger than what four bits cost.
// The paired difference has a tenth of that error, and KL a tenth of it again, since it looks at every token that might
// have come.
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "step2_model/model.h"
#include "step8_advanced/quantization/quantizer/texts.h"

namespace ladder {

// Sums of one cluster of windows.
struct ClusterSums {
  int64_t cluster = 0;
  int64_t tokens = 0;  // predicted ones
  double nll = 0;
  // Against a base; 0 without one.
  double base_nll = 0, kl = 0;
  int64_t same_top = 0;
};

// A mean over tokens. Tokens of one text depend on one another, so its standard error is taken between clusters c with
// the sums s_c of n_c tokens: sqrt(C / (C - 1) * sum over c of (s_c - mean * n_c)^2) / N. NaN where there is one cluster.
struct Estimate {
  double mean = 0;
  double standard_error = 0;
};
Estimate estimate(std::span<const ClusterSums> clusters,
                  const std::function<double(const ClusterSums&)>& sum);

// What two rows of logits [vocab] say of each other and of the token that came. Products and sums in double.
struct RowScore {
  double nll = 0, base_nll = 0, kl = 0;
  bool same_top = false;
};
// `base` may be empty: then nll alone is set.
RowScore score_row(std::span<const float> logits, std::span<const float> base, int32_t token);

// Sums per cluster, in the order of the windows. `base` may be nullptr; both models take the same token ids. The LM head runs
// over a few rows at a time. `progress` may be empty: windows done, of all. Error: logits of one of them are NaN, or infinite and no
// probabilities.
std::vector<ClusterSums> evaluate(const OpContext& ctx, Model& model, Model* base,
                                  std::span<const TextWindow> windows,
                                  const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace ladder
