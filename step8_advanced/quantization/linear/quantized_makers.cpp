#include "step8_advanced/quantization/linear/quantized_makers.h"

#include <mutex>
#include <string>

#include "step1_layers/core/error.h"
#include "step2_model/families/family.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/kernels/round_activations.h"
#include "step8_advanced/quantization/linear/quantized_linear.h"

namespace ladder {
namespace {

constexpr std::string_view kConfig = "config.json: quantization_config";

// What a checkpoint calls a parameter's tensor, without ".weight"; empty: the family has none such.
std::string module_of(const ModelFamily& family, const std::string& parameter) {
  const std::string name = checkpoint_name_of(family, parameter, 0);
  constexpr std::string_view kWeight = ".weight";
  if (name == parameter && parameter != "lm_head.weight") return {};
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

// Matrices that are no Linear here, so nothing would read their codes.
void check_dense_modules(const QuantizationConfig& config, const DecoderSpec& spec) {
  std::vector<std::string> parameters;
  if (!spec.tie_word_embeddings) parameters.push_back("lm_head.weight");
  for (int64_t layer = 0; layer < spec.num_layers; ++layer)
    if (spec.has_experts(layer))
      for (const char* name :
           {"router.weight", "experts.gate_up", "experts.down", "shared_expert_gate.weight"})
        parameters.push_back(fmt::format("layers.{}.{}", layer, name));
  const ModelFamily& family = family_of(spec.architecture);
  for (const std::string& parameter : parameters) {
    const std::string module = module_of(family, parameter);
    LADDER_CHECK(
        module.empty() || !config.linear({&module, 1}),
        "{}: {} is quantized, expected it dense: of the quantized modules only attention, dense MLPs "
        "and shared experts are read",
        kConfig, module);
  }
}

// The configuration that was asked about last: all linears of a model have the same.
class LastConfig {
 public:
  std::shared_ptr<const QuantizationConfig> of(const DecoderSpec& spec) {
    const std::lock_guard lock(mutex_);
    if (!config_ || text_ != spec.quantization_config) {
      auto config = std::make_shared<const QuantizationConfig>(
          QuantizationConfig::parse(spec.quantization_config, kConfig));
      check_dense_modules(*config, spec);
      config_ = std::move(config);
      text_ = spec.quantization_config;
    }
    return config_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
  std::shared_ptr<const QuantizationConfig> config_;
};

}  // namespace

std::function<std::shared_ptr<const LinearMethod>(const OpContext& ctx, const NamedLinear& linear)>
make_quantized_linear_methods(LoadFormat load_format) {
  return [load_format, last = std::make_shared<LastConfig>()](
             const OpContext& ctx, const NamedLinear& linear) -> std::shared_ptr<const LinearMethod> {
    if (linear.spec.quantization_config.empty()) return nullptr;
    LADDER_CHECK(ctx.device.type != DeviceType::fake, "{}: no quantized weights on {}", kConfig,
                 device_name(ctx.device));
    const std::optional<StoredLinear> stored = last->of(linear.spec)->linear(linear.part_names);
    if (!stored) return nullptr;
    LADDER_CHECK(ctx.device.is_cpu() || !stored->scheme.input_activations ||
                     are_rounded_on_a_gpu(*stored->scheme.input_activations),
                 "{}: {}: such activations are rounded on the CPU only, expected --device cpu", kConfig,
                 linear.name);
    try {
      return quantized_linear_method(*stored, load_format);
    } catch (const Error& error) {
      fail("{}: {}: {}", kConfig, linear.name, error.what());
    }
  };
}

}  // namespace ladder
