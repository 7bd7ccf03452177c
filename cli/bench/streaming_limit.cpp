#include "cli/bench/streaming_limit.h"

#include <algorithm>
#include <array>
#include <chrono>

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

int64_t streamed_weight_bytes(const DecoderSpec& spec, DType dtype) {
  const int64_t table = spec.tie_word_embeddings ? 0 : spec.vocab_size * spec.hidden_size;
  return (spec.num_parameters() - table) * dtype_size(dtype);
}

double streamed_bytes(const std::vector<Request>& requests, const DecoderSpec& spec,
                      const RunnerConfig& config) {
  int64_t longest = 0;
  double kv_tokens = 0.0;
  for (const Request& request : requests) {
    const int64_t output = *request.sampling.max_tokens;
    const auto prompt = static_cast<double>(request.prompt_token_ids.size());
    longest = std::max(longest, output);
    // The first token comes with the prompt; token t (from 1) follows prompt + t others.
    const auto decoded = static_cast<double>(output - 1);
    kv_tokens += decoded * prompt + decoded * (decoded + 1.0) / 2.0;
  }
  return static_cast<double>(longest) * static_cast<double>(streamed_weight_bytes(spec, config.dtype)) +
         kv_tokens * static_cast<double>(kv_bytes_per_token(spec, config));
}

}  // namespace ladder
