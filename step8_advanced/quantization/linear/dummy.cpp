// Random codes of a scheme, so that a model's speed can be measured where there is nothing but its config.json
// (--load-format dummy).
#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step8_advanced/quantization/linear/formats.h"
#include "step8_advanced/quantization/linear/stored_method.h"
#include "step8_advanced/quantization/linear/stored_scales.h"

namespace ladder {
namespace {

WeightCodes codes_of(const QuantizationArgs& args) {
  if (args.is_float) return args.num_bits == 4 ? WeightCodes::fp4_e2m1 : WeightCodes::fp8_e4m3;
  return args.num_bits <= 4 ? WeightCodes::int4 : WeightCodes::int8;
}

// Random bits with these taken out and those put in, and the deviation of what they stand for.
struct RandomCodes {
  uint8_t kept = 0xff, set = 0;
  float deviation = 1;
};
RandomCodes random_codes(WeightCodes type) {
  switch (type) {
    case WeightCodes::int4:
      return {.deviation = 4.6f};
    case WeightCodes::int8:
      return {.deviation = 74};
    case WeightCodes::fp8_e4m3:
      return {.kept = 0x87,
              .set = 0x30,
              .deviation = 0.73f};  // 0.5 to 1, either sign: all bits would be NaN at times
    case WeightCodes::fp4_e2m1:
      return {.deviation = 2.9f};
  }
  fail("codes of an unknown type");
}

class DummyMethod final : public StoredMethod {
 public:
  explicit DummyMethod(const StoredLinear& stored) : StoredMethod(stored) {
    LADDER_CHECK(!stored.scheme.input_activations || stored.scheme.input_activations->dynamic,
                 "--load-format dummy: activations with a scale that is stored, expected dynamic ones");
  }

 private:
  std::vector<LinearParameterSpec> weight_tensors(const LinearShape&) const override { return {}; }

  QuantizedWeight unpack(const LinearShape& shape, const StoredTensors&) const override {
    const ColumnGroups groups = column_groups(weights(), shape);
    const int64_t n = shape.out_features(), k = shape.in_features();
    QuantizedWeight weight{.type = codes_of(weights()),
                           .n = n,
                           .k = k,
                           .scales = Tensor::empty({n, groups.count(k)}, DType::f32),
                           .group_size = groups.size,
                           .group_offset = groups.offset};
    const RandomCodes random = random_codes(weight.type);
    const DType dtype = weight.type == WeightCodes::int8 ? DType::i8 : DType::u8;
    weight.codes = Tensor::empty({n, is_nibble(weight.type) ? (k + 1) / 2 : k}, dtype);
    auto* bytes = static_cast<uint8_t*>(weight.codes.raw());
    parallel_for(weight.codes.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      uint64_t bits = static_cast<uint64_t>(begin) + 1;
      for (int64_t i = begin; i < end; ++i) {  // xorshift64* (Vigna, 2016)
        bits ^= bits >> 12, bits ^= bits << 25, bits ^= bits >> 27;
        bytes[i] = static_cast<uint8_t>((bits * 0x2545f4914f6cdd1du >> 56 & random.kept) | random.set);
      }
    });
    // Of a dtype that files keep scales in.
    const bf16 scale(1 / (random.deviation * std::sqrt(static_cast<float>(k))));
    std::fill_n(weight.scales.data<float>(), weight.scales.numel(), static_cast<float>(scale));
    if (!weights().symmetric) {
      weight.zeros = Tensor::empty(weight.scales.shape(), dtype);
      weight.zeros.fill_bytes(weight.type == WeightCodes::int4 ? 8 : 0);
    }
    return weight;
  }
};

}  // namespace

std::shared_ptr<const LinearMethod> dummy_linear_method(const StoredLinear& stored) {
  return std::make_shared<const DummyMethod>(stored);
}

}  // namespace ladder
