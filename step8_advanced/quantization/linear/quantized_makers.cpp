#include "step8_advanced/quantization/linear/quantized_makers.h"

#include <mutex>
#include <string>
#include <utility>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/linear/experts_method.h"
#include "step8_advanced/quantization/linear/quantized_linear.h"
#include "step8_advanced/quantization/linear/two_of_four.h"

namespace ladder {
namespace {

// (Routers are asked for by nobody: the tools leave them as they are, whatever their config says, and codes of one are tensors
// that the loader has no place for.)
constexpr std::string_view kConfig = "config.json: quantization_config";

// The configuration that was asked about last: all linears of a model have the same.
class LastConfig {
 public:
  std::shared_ptr<const QuantizationConfig> of(const DecoderSpec& spec) {
    const std::lock_guard lock(mutex_);
    if (!config_ || text_ != spec.quantization_config) {
      config_ = std::make_shared<const QuantizationConfig>(
          QuantizationConfig::parse(spec.quantization_config, kConfig));
      text_ = spec.quantization_config;
    }
    return config_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
  std::shared_ptr<const QuantizationConfig> config_;
};

// Nothing says of a dense weight that two of four of its numbers are 0: it is looked at when it is loaded, where a GPU's kernels make
// something of it. The head and experts stay as they are: they have kernels of their own, for dense matrices.
std::shared_ptr<const LinearMethod> dense_linear_method(const OpContext& ctx, const NamedLinear& linear) {
  if (!keeps_two_of_four(ctx)) return nullptr;
  if (!linear.name.starts_with("layers.") || linear.name.find(".experts.") != std::string::npos)
    return nullptr;
  return two_of_four_linear_method(TwoOfFourSource::whole);
}

}  // namespace

std::function<std::shared_ptr<const LinearMethod>(const OpContext& ctx, const NamedLinear& linear)>
make_quantized_linear_methods(LoadFormat load_format) {
  return [load_format, last = std::make_shared<LastConfig>()](
             const OpContext& ctx, const NamedLinear& linear) -> std::shared_ptr<const LinearMethod> {
    if (linear.spec.quantization_config.empty()) return dense_linear_method(ctx, linear);
    LADDER_CHECK(ctx.device.type != DeviceType::fake, "{}: no quantized weights on {}", kConfig,
                 device_name(ctx.device));
    const std::optional<StoredLinear> stored = last->of(linear.spec)->linear(linear.part_names);
    if (!stored) return dense_linear_method(ctx, linear);
    LADDER_CHECK(ctx.device.is_cpu() || !stored->scheme.input_activations ||
                     are_rounded_on_a_gpu(*stored->scheme.input_activations),
                 "{}: {}: such activations are rounded on the CPU only, expected --device cpu", kConfig,
                 linear.name);
    try {
      const int64_t parts_per_expert = linear.name.ends_with(".experts.gate_up") ? 2
                                       : linear.name.ends_with(".experts.down")  ? 1
                                                                                 : 0;
      auto method = quantized_linear_method(*stored, load_format, parts_per_expert);
      return parts_per_expert > 0 && !ctx.device.is_cpu()
                 ? experts_linear_method(std::move(method), parts_per_expert)
                 : method;
    } catch (const Error& error) {
      fail("{}: {}: {}", kConfig, linear.name, error.what());
    }
  };
}

}  // namespace ladder
