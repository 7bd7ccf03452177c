#pragma once
// Task 8.2: a model whose config.json has a quantization_config: the linear methods that it asks for.
#include <functional>
#include <memory>

#include "step2_model/model.h"

namespace ladder {

// For ModelMakers::linear_method; safe from any thread. Without a quantization_config every linear is dense, with one each is as
// it says (config/quantization_config.h).
// Error naming the config or the linear: a quantization_config that is not understood; merged parts that are stored
// differently; a format that is refused (quantized_linear.h); on a GPU, activations that are rounded in groups or to floats of
// four bits.
std::function<std::shared_ptr<const LinearMethod>(const OpContext& ctx, const NamedLinear& linear)>
make_quantized_linear_methods(LoadFormat load_format = LoadFormat::automatic);

}  // namespace ladder
