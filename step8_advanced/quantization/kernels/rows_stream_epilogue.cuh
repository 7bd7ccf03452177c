#pragma once
// What follows the sums of the warps of the quantized rows_stream: they are added, and go out as the product's epilogue says.
#include "step1_layers/core/cluster.cuh"
#include "step1_layers/core/cluster_bytes.cuh"
#include "step1_layers/core/wgmma.cuh"
#include "step1_layers/linear/fused_epilogue.cuh"
#include "step8_advanced/quantization/kernels/rows_stream.cuh"

namespace ladder::records {

// The totals of all warps in shared memory, float [warp][row of x][row of the weight].
template <class K>
struct WarpSums {
  static constexpr int kRows = K::tiles * kTileRows;
  static constexpr int kStride = kRows + 4;  // 4 more spread a warp's stores over the banks

  float* sums;
  int m;

  __host__ __device__ static constexpr int size(int rows) { return kWarps * rows * kStride; }

  __device__ void store(const float (&total)[K::tiles][K::octets][4]) const {
    const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int tile = 0; tile < K::tiles; ++tile)
#pragma unroll
      for (int o = 0; o < K::octets; ++o)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = o * 8 + 2 * t + i % 2, column = tile * kTileRows + g + i / 2 * 8;
          if (row < m) sums[(warp * m + row) * kStride + column] = total[tile][o][i];
        }
  }
  // Over the warps, in their order.
  __device__ float total(int row, int column) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[(w * m + row) * kStride + column];
    return sum;
  }
};

// The sums of rank 1 of a cluster of two, in the shared memory of rank 0, whose barrier counts their bytes as they arrive.
struct PartnerSums {
  float* sums;
  uint32_t in_place;  // a barrier
};

// Thread i takes outputs i, i + kThreads, ... of its block's rows of x, row after row; those of the next group begin with the next
// warp.
template <class K>
struct GroupEpilogue {
  using T = typename K::T;
  static constexpr int kRows = WarpSums<K>::kRows, kPairedRows = K::tiles / 2 * kTileRows;

  const Product<T>& p;
  const Share& share;
  float* sums;
  PartnerSums partner;
  T residual = T(0.0f);  // of the thread's first output of a group

  __device__ WarpSums<K> sums_of(int group) const {
    return {sums + group % K::sums_places * WarpSums<K>::size(p.m), p.m};
  }

  // Asks for what the thread's first output of the group will be added to: it comes from L2 while the product is computed.
  __device__ void load_residual(int group) {
    if (p.epilogue != Epilogue::add) return;
    const Output at(*this, group, first_output(group));
    if (at.exists) residual = static_cast<const T*>(p.out)[at.row * p.out_stride + at.j];
  }

  // By all threads of the block, when the sums of the group are in place.
  __device__ void store(int group) const {
    const WarpSums<K> warps = sums_of(group);
    if (p.split > 1) {
      cluster_wait();
      if (share.rank != 0) return send_to_partner(warps, columns(group));
      wait_for_bytes(partner.in_place);
    }
#pragma unroll 1
    for (int i = first_output(group); i < p.m * outputs_per_row(); i += kThreads) {
      const Output at(*this, group, i);
      if (!at.exists) continue;
      const auto y = [&](int column, int j) {
        float sum = warps.total(at.row, column);
        if (p.split > 1) sum += partner.sums[at.row * kRows + column];
        return p.bias != nullptr ? fmaf(sum, p.unit, to_float(p.bias[j])) : sum * p.unit;
      };
      const int64_t to = at.row * p.out_stride + at.j;
      T* out = static_cast<T*>(p.out) + to;
      if (p.epilogue == Epilogue::silu_and_mul) {
        const int column = at.column / kTileRows * 2 * kTileRows + at.column % kTileRows;
        *out = silu_and_mul_of<T>(y(column, at.j), y(column + kTileRows, p.width() + at.j));
      } else if (p.epilogue == Epilogue::add) {
        const T before = i == first_output(group) ? residual : *out;
        *out = sum_with_residual(before, y(at.column, at.j));
      } else if (p.float_out) {
        static_cast<float*>(p.out)[to] = y(at.column, at.j);
      } else {
        *out = from_float<T>(y(at.column, at.j));
      }
    }
  }

 private:
  struct Output {
    int row, column, j;  // of x; of the group's outputs; of out
    bool exists;

    __device__ Output(const GroupEpilogue& epilogue, int group, int i) {
      const Share& share = epilogue.share;
      row = epilogue.p.paired() ? i / kPairedRows : i / kRows;
      column = i - row * epilogue.outputs_per_row();
      j = share.first_unit(group) * kTileRows + column;
      exists = row < epilogue.p.m && column < share.units(group) * kTileRows && j < epilogue.p.width();
    }
  };

  __device__ int outputs_per_row() const {
    return p.paired() ? kPairedRows : kRows;
  }
  __device__ static int first_output(int group) {
    return static_cast<int>(threadIdx.x + group * kWarp) % kThreads;
  }
  __device__ int columns(int group) const {
    return share.units(group) * p.unit_tiles() * kTileRows;
  }
  __device__ void send_to_partner(const WarpSums<K>& warps, int columns) const {
    for (int i = threadIdx.x; i < p.m * kRows; i += kThreads) {
      const int row = i / kRows, column = i % kRows;
      if (column < columns) store_remote(&partner.sums[i], partner.in_place, 0, warps.total(row, column));
    }
  }
};

}  // namespace ladder::records
