#include "step8_advanced/quantization/kernels/dequantize_simd.h"

#include "step1_layers/core/simd.h"
#include "step8_advanced/quantization/kernels/code_words.h"

namespace ladder::LADDER_ISA {

namespace {

template <WeightCodes kType>
void rows_of(const QuantizedRows& weight, int64_t begin, int64_t end, float* out) {
  const Decoder<kType> decode;
  for (int64_t j = begin; j < end; ++j)
    for (int64_t block = 0; block < weight.blocks; ++block) {
      const Words words = block_words(weight, j, block);
      const LaneGroups groups(weight, block);
      const Vec scale = groups.scales(j);
      const Vec zero_point = weight.zeros != nullptr ? groups.zeros<kType>(j) : zero();
      for (int a = 0; a < codes_per_lane(kType); ++a, out += kLanes)
        store(out, (decode(words, a) - zero_point) * scale);
    }
}

}  // namespace

int64_t code_lanes() {
  return kLanes;
}

void dequantize_rows(const QuantizedRows& weight, int64_t begin, int64_t end, float* out) {
  switch (weight.type) {
    case WeightCodes::int4:
      return rows_of<WeightCodes::int4>(weight, begin, end, out);
    case WeightCodes::int8:
      return rows_of<WeightCodes::int8>(weight, begin, end, out);
    case WeightCodes::fp8_e4m3:
      return rows_of<WeightCodes::fp8_e4m3>(weight, begin, end, out);
    case WeightCodes::fp4_e2m1:
      return rows_of<WeightCodes::fp4_e2m1>(weight, begin, end, out);
  }
}

}  // namespace ladder::LADDER_ISA
