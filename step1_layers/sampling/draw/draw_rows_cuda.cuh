#pragma once
// The arguments of draw's kernels, by row.
#include "step1_layers/sampling/draw/draw.h"
#include "step1_layers/sampling/noise_cuda.cuh"

namespace ladder {

struct DrawRows {
  const float* logits;
  int64_t stride, vocab;
  const float *temperature, *min_p, *top_p;
  const int32_t* top_k;
  const int64_t *seeds, *output_index;
  int32_t* ids;
};

// What a row asks for; filters that are off keep everything.
struct Request {
  float temperature, min_p, top_p;
  int64_t top_k;
  NoiseSource noise;

  __device__ Request(const DrawRows& rows, int64_t row)
      : temperature(rows.temperature[row]),
        min_p(rows.min_p == nullptr ? 0.0f : rows.min_p[row]),
        top_p(rows.top_p == nullptr ? 1.0f : rows.top_p[row]),
        top_k(rows.top_k == nullptr ? 0 : rows.top_k[row]),
        noise{static_cast<uint64_t>(rows.seeds[row]), static_cast<uint64_t>(rows.output_index[row])} {
    if (is_greedy()) min_p = 0.0f;
    if (is_greedy()) top_p = 1.0f;
    if (is_greedy() || top_k >= rows.vocab) top_k = 0;
  }
  __device__ bool is_greedy() const { return temperature < kMinTemperature; }
  __device__ float floor(float largest) const { return min_p > 0.0f ? largest + logf(min_p) : -INFINITY; }
  // A largest logit of +inf has all of the mass.
  __device__ bool cuts_mass(float largest) const { return top_p < 1.0f && largest < INFINITY; }
  // The weight that the tokens kept by top-p reach, of `total`.
  __device__ uint64_t wanted(uint64_t total) const {
    const double mass = ceil(static_cast<double>(top_p) * static_cast<double>(total));
    const uint64_t wanted = mass < 1.0 ? 1 : static_cast<uint64_t>(mass);
    return wanted < total ? wanted : total;
  }
};

// e^(logit - largest) in units of 2^-40. Integers: a sum does not depend on the order of its terms.
__device__ inline uint64_t weight_of(float logit, float largest) {
  return static_cast<uint64_t>(__fmul_rn(expf(logit - largest), 0x1p40f));
}

inline DrawRows draw_rows(const DrawArgs& args) {
  auto data = [](const Tensor& tensor, auto tag) {
    return tensor.defined() ? cuda_data<decltype(tag)>(tensor) : nullptr;
  };
  return {.logits = cuda_data<float>(args.logits),
          .stride = args.logits.stride(0),
          .vocab = args.logits.dim(1),
          .temperature = cuda_data<float>(args.temperature),
          .min_p = data(args.min_p, float{}),
          .top_p = data(args.top_p, float{}),
          .top_k = data(args.top_k, int32_t{}),
          .seeds = cuda_data<int64_t>(args.seeds),
          .output_index = cuda_data<int64_t>(args.output_index),
          .ids = cuda_data<int32_t>(args.ids)};
}

}  // namespace ladder
