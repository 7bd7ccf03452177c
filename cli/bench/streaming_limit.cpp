#include "cli/bench/streaming_limit.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "step1_layers/core/tensor.h"
#include "step4_runner/memory.h"
#include "step4_runner/weight_bytes.h"

namespace ladder {
namespace {

// Of the whole model, on one rank.
WeightBytes model_weights(const DecoderSpec& spec, const RunnerConfig& config) {
  RunnerConfig one_rank;
  one_rank.device = config.device;
  one_rank.dtype = config.dtype;
  one_rank.linear_method = config.linear_method;
  return weight_bytes(spec, one_rank, {});
}

double streamed(const WeightBytes& weights, const TouchedShare& touched, int64_t tokens) {
  return static_cast<double>(weights.whole) +
         (weights.experts > 0 ? touched(tokens) * static_cast<double>(weights.experts) : 0.0);
}

}  // namespace

double copy_bandwidth(Device device) {
  if (device.is_cpu()) return 0.0;
  const int64_t bytes = std::min(int64_t{4} << 30, cuda_device_info(device.index).free_bytes / 4);
  const Tensor from = Tensor::zeros({bytes}, DType::u8, device);
  const Tensor to = Tensor::zeros({bytes}, DType::u8, device);
  std::array<double, 11> seconds{};
  for (double& each : seconds) {
    const auto begin = std::chrono::steady_clock::now();
    to.copy_from(from);  // done when it returns
    each = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::nth_element(seconds.begin(), seconds.begin() + 5, seconds.end());
  return 2.0 * static_cast<double>(bytes) / seconds[5];
}

TouchedShare expected_share(const ExpertsSpec& experts) {
  return [experts](int64_t tokens) {
    const double chosen = static_cast<double>(experts.rule.top_k) / static_cast<double>(experts.num_experts);
    return 1.0 - std::pow(1.0 - chosen, static_cast<double>(tokens));
  };
}

double streamed_weight_bytes(const DecoderSpec& spec, const RunnerConfig& config, const TouchedShare& touched,
                             int64_t tokens) {
  return streamed(model_weights(spec, config), touched, tokens);
}

double streamed_bytes(const std::vector<Request>& requests, const DecoderSpec& spec,
                      const RunnerConfig& config, const TouchedShare& touched) {
  std::vector<int64_t> outputs;
  double kv_tokens = 0.0;
  for (const Request& request : requests) {
    const int64_t output = *request.sampling.max_tokens;
    const auto prompt = static_cast<double>(request.prompt_token_ids.size());
    outputs.push_back(output);
    // The first token comes with the prompt; token t (from 1) follows prompt + t others.
    const auto decoded = static_cast<double>(output - 1);
    kv_tokens += decoded * prompt + decoded * (decoded + 1.0) / 2.0;
  }
  // From the shortest output on: that many steps more than the one before had as many tokens as requests are left.
  std::sort(outputs.begin(), outputs.end());
  const WeightBytes stored = model_weights(spec, config);
  double weights = 0.0;
  int64_t steps = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t left = std::min(static_cast<int64_t>(outputs.size() - i), config.batch.max_num_seqs);
    weights += static_cast<double>(outputs[i] - steps) * streamed(stored, touched, left);
    steps = outputs[i];
  }
  return weights + kv_tokens * static_cast<double>(kv_bytes_per_token(spec, config));
}

}  // namespace ladder
