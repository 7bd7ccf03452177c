#pragma once
// The norm and rotation of one head in the registers of neighbouring lanes. Each lane holds one pack of the
// head's first half and the pack of partners in its second half, so the rotation needs no exchange and the
// norm's sum is a few shuffles.
#include "step1_layers/core/packs.cuh"

namespace ladder {

template <int head_dim, class T>
struct NormRotate {
  static constexpr int kSize = Pack<T>::kSize, kHalf = head_dim / 2, kLanes = kHalf / kSize;

  // y0 = scale (x0 straight[0] - x1 crossed[1]), y1 = scale (x1 straight[1] + x0 crossed[0]), where straight
  // is cosine times weight and crossed sine times weight.
  float straight[2][kSize], crossed[2][kSize];

  // `angles` of the token and `weight` (nullptr: no norm) of the head, both at this lane's first element.
  __device__ void load(const float* angles, const T* weight) {
#pragma unroll
    for (int i = 0; i < kSize; i += 4) {
      const Pack<float> cosine = load_pack(angles + i), sine = load_pack(angles + kHalf + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        straight[0][i + j] = straight[1][i + j] = cosine.value[j];
        crossed[0][i + j] = crossed[1][i + j] = sine.value[j];
      }
    }
    if (weight == nullptr) return;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      float w[kSize];
      to_floats(load_pack(weight + part * kHalf), w);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        straight[part][i] *= w[i];
        crossed[part][i] *= w[i];
      }
    }
  }

  // All lanes of the warp take part; the packs of those that are not to rotate stay as they are.
  __device__ void apply(Pack<T> (&packs)[2], bool rotates, bool norms, float eps) const {
    float x[2][kSize], y[kSize];
    float sum = 0;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      to_floats(packs[part], x[part]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum = fmaf(x[part][j], x[part][j], sum);
    }
    sum = warp_sum<kLanes>(sum);
    const float scale = norms ? rsqrtf(fmaf(sum, 1.0f / head_dim, eps)) : 1.0f;
    if (!rotates) return;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      x[0][j] *= scale;
      x[1][j] *= scale;
      y[j] = fmaf(x[0][j], straight[0][j], -(x[1][j] * crossed[1][j]));
    }
    packs[0] = from_floats<T>(y);
#pragma unroll
    for (int j = 0; j < kSize; ++j) y[j] = fmaf(x[1][j], straight[1][j], x[0][j] * crossed[0][j]);
    packs[1] = from_floats<T>(y);
  }
};

}  // namespace ladder
