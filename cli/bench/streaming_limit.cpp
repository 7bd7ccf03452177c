#include "cli/bench/streaming_limit.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "step1_layers/core/tensor.h"
#include "step4_runner/memory.h"

namespace ladder {

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

double streamed_weight_bytes(const DecoderSpec& spec, DType dtype, int64_t tokens) {
  const int64_t table = spec.tie_word_embeddings ? 0 : spec.vocab_size * spec.embedding_width();
  auto parameters = static_cast<double>(spec.num_parameters() - table);
  if (const ExpertsSpec& experts = spec.experts; experts.num_experts > 0) {
    const auto all = static_cast<double>(experts.num_experts);
    const double untouched =
        all * std::pow(1.0 - static_cast<double>(experts.rule.top_k) / all, static_cast<double>(tokens));
    parameters -= untouched * static_cast<double>(spec.num_expert_layers() * 3 * spec.hidden_size *
                                                  experts.intermediate_size);
  }
  return parameters * static_cast<double>(dtype_size(dtype));
}

double streamed_bytes(const std::vector<Request>& requests, const DecoderSpec& spec,
                      const RunnerConfig& config) {
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
  double weights = 0.0;
  int64_t steps = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int64_t left = std::min(static_cast<int64_t>(outputs.size() - i), config.batch.max_num_seqs);
    weights += static_cast<double>(outputs[i] - steps) * streamed_weight_bytes(spec, config.dtype, left);
    steps = outputs[i];
  }
  return weights + kv_tokens * static_cast<double>(kv_bytes_per_token(spec, config));
}

}  // namespace ladder
