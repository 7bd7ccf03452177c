#include "step8_advanced/quantization/quantizer/check_weights.h"

#include <map>
#include <memory>
#include <string>

#include "step1_layers/core/error.h"
#include "step2_model/decoder/decoder_model.h"
#include "step2_model/loading/weight_loader.h"

namespace ladder {
namespace {

// Dense, and says which shapes its linear has: of a merged parameter nothing else tells that of one part.
class ShapesOfLinear final : public LinearMethod {
 public:
  explicit ShapesOfLinear(LinearShape& shape) : shape_(shape) {}

  std::vector<LinearParameterSpec> parameters(const LinearShape& shape) const override {
    shape_ = shape;
    return unquantized_linear_method()->parameters(shape);
  }
  void apply(const OpContext&, const LinearShape&, const std::vector<Tensor>&, const Tensor&,
             const Tensor&) const override {
    fail("a model without weights does not run");
  }

 private:
  LinearShape& shape_;
};

// In place of a parameter's rule: looks at the tensor, and leaves it in its file.
void look_only(Parameter& parameter, const LinearShape* linear) {
  parameter.load_part = [name = parameter.name, whole = parameter.tensor.shape(), linear](
                            const Tensor& tensor, int part) {
    Shape expected = whole;
    if (linear != nullptr) {
      const int64_t rows = linear->out.at(static_cast<size_t>(part)).size;
      expected = whole.ndim() == 1 ? Shape{rows} : Shape{rows, linear->in_features()};
    }
    LADDER_CHECK(tensor.shape() == expected, "{}: expected shape {}, found {}", name, expected.str(),
                 tensor.str());
  };
}

}  // namespace

void check_weights(const Checkpoint& checkpoint, const DecoderSpec& spec) {
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    std::map<std::string, LinearShape> linears;
    ModelOptions options;
    options.dtype = spec.checkpoint_dtype;
    options.max_model_len = 1;  // a table of positions is not looked at
    options.layer_begin = layer;
    options.layer_end = layer + 1;
    options.makers.linear_method = [&](const OpContext&, const NamedLinear& linear) {
      return std::make_shared<const ShapesOfLinear>(linears[linear.name]);
    };
    DecoderModel model({}, spec, options);  // whose memory nobody touches
    const std::vector<Parameter*> parameters = model.parameters();
    for (Parameter* parameter : parameters) {
      const auto linear = linears.find(parameter->name.substr(0, parameter->name.rfind('.')));
      look_only(*parameter, linear == linears.end() ? nullptr : &linear->second);
    }
    load_weights(checkpoint, spec, parameters, {});
  }
}

}  // namespace ladder
