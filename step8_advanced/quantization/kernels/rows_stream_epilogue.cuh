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
  // Of four neighbouring columns, over the warps, in their order.
  __device__ float4 total(int row, int column) const {
    float4 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 of_warp = *reinterpret_cast<const float4*>(&sums[(w * m + row) * kStride + column]);
      sum.x += of_warp.x, sum.y += of_warp.y, sum.z += of_warp.z, sum.w += of_warp.w;
    }
    return sum;
  }
};

// The sums of rank 1 of a cluster of two, in the shared memory of rank 0, whose barrier counts their bytes as they arrive.
struct PartnerSums {
  float* sums;
  uint32_t in_place;  // a barrier
};

// Four neighbouring outputs of a row.
constexpr int kFour = 4;

template <class T>
struct alignas(kFour * sizeof(T)) Four {
  T value[kFour];
};

// Thread i takes the i-th four outputs, the i + kThreads-th, ... of its block's rows of x, row after row; those of the next group begin
// with the next warp. One output at a time 16 rows of 4096 x 4096 took 6.4 us, so 5.9: a thread waits for shared memory, not for what it
// gets. The code is short, as it runs once: instructions come from L2. Where the thread's first outputs of a group are is found out before
// the product is: a chain of some seventy instructions behind the last sum otherwise, and few threads have any.
template <class K>
struct GroupEpilogue {
  using T = typename K::T;
  static constexpr int kRows = WarpSums<K>::kRows, kPairedRows = K::tiles / 2 * kTileRows;

  struct Outputs {
    int row, column, j;  // of x; the first, of the group's outputs; of out
    int count;           // how many of the four there are
    T* out;              // where they go, unless in f32

    Outputs() = default;
    __device__ Outputs(const GroupEpilogue& epilogue, int group, int i) {
      const Product<T>& p = epilogue.p;
      const Share& share = epilogue.share;
      row = p.paired() ? i / (kPairedRows / kFour) : i / (kRows / kFour);
      column = (i - row * epilogue.fours_per_row()) * kFour;
      j = share.first_unit(group) * kTileRows + column;
      const bool exists = row < p.m && column < share.units(group) * kTileRows;
      count = exists ? min(p.width() - j, kFour) : 0;
      out = static_cast<T*>(p.out) + row * p.out_stride + j;
    }
  };

  const Product<T>& p;
  const Share& share;
  float* sums;
  PartnerSums partner;
  Outputs first;  // of the thread, of a group
  // What they are added to, in words: elements would be taken out of them as soon as they come.
  uint2 residual;
  static_assert(sizeof(Four<T>) == sizeof(uint2));

  // Before the previous kernel has ended.
  __device__ GroupEpilogue(const Product<T>& p, const Share& share, float* sums, const PartnerSums& partner)
      : p(p), share(share), sums(sums), partner(partner) {
    go_to_group(0);
    // It was written some kernels ago, and their weights have passed through L2 since.
    if (adds()) asm volatile("prefetch.global.L2 [%0];" ::"l"(first.out));
  }

  __device__ WarpSums<K> sums_of(int group) const {
    return {sums + group % K::sums_places * WarpSums<K>::size(p.m), p.m};
  }

  __device__ void go_to_group(int group) {
    first = Outputs(*this, group, first_outputs(group));
    pin(first.row), pin(first.column), pin(first.j), pin(first.count);
  }
  // Asks for what the thread's first outputs of the group will be added to: it comes from L2 while the product is computed.
  __device__ void load_residual() {
    if (!adds()) return;
    if (p.in_fours)
      residual = *reinterpret_cast<const uint2*>(first.out);
    else
      reinterpret_cast<Four<T>&>(residual) = load(first);
  }

  // By all threads of the block, when the sums of the group are in place.
  __device__ void store(int group) const {
    const WarpSums<K> warps = sums_of(group);
    if (p.split > 1) {
      cluster_wait();
      if (share.rank != 0) return send_to_partner(warps, columns(group));
    }
    Outputs at = first;
    bool is_first = true;
#pragma unroll 1
    for (int i = first_outputs(group);;) {
      if (at.count > 0) store(warps, at, is_first);
      i += kThreads;
      if (i >= p.m * fours_per_row()) break;
      at = Outputs(*this, group, i), is_first = false;
    }
  }

 private:
  __device__ void store(const WarpSums<K>& warps, const Outputs& at, bool is_first) const {
    const auto y = [&](int column, int j) {
      const float4 sum = warps.total(at.row, column);
      Four<float> four = {sum.x, sum.y, sum.z, sum.w};
      if (p.split > 1) {
        wait_for_bytes(partner.in_place);  // behind its own sums
        const float4 other = *reinterpret_cast<const float4*>(&partner.sums[at.row * kRows + column]);
        four = {sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w};
      }
      if (p.bias == nullptr)
        for_four([&](int e) { four.value[e] *= p.unit; });
      else
        for_four([&](int e) {
          if (e < at.count) four.value[e] = fmaf(four.value[e], p.unit, to_float(p.bias[j + e]));
        });
      return four;
    };
    const bool gated = p.epilogue == Epilogue::silu_and_mul;
    const int column = gated ? at.column / kTileRows * 2 * kTileRows + at.column % kTileRows : at.column;
    const Four<float> values = y(column, at.j);
    Four<T> outputs;
    if (gated) {
      const Four<float> up = y(column + kTileRows, p.width() + at.j);
      for_four([&](int e) { outputs.value[e] = silu_and_mul_of<T>(values.value[e], up.value[e]); });
    } else if (p.epilogue == Epilogue::add) {
      const Four<T> before = is_first ? reinterpret_cast<const Four<T>&>(residual) : load(at);
      for_four([&](int e) { outputs.value[e] = sum_with_residual(before.value[e], values.value[e]); });
    } else if (p.float_out) {
      float* floats = static_cast<float*>(p.out) + at.row * p.out_stride + at.j;
      for_four([&](int e) {
        if (e < at.count) floats[e] = values.value[e];
      });
      return;
    } else {
      for_four([&](int e) { outputs.value[e] = from_float<T>(values.value[e]); });
    }
    if (p.in_fours)
      *reinterpret_cast<Four<T>*>(at.out) = outputs;
    else
      for_four([&](int e) {
        if (e < at.count) at.out[e] = outputs.value[e];
      });
  }
  __device__ bool adds() const {
    return p.epilogue == Epilogue::add && first.count > 0;
  }
  template <class Fn>
  __device__ static void for_four(Fn&& fn) {
#pragma unroll
    for (int e = 0; e < kFour; ++e) fn(e);
  }
  __device__ Four<T> load(const Outputs& at) const {
    if (p.in_fours) return *reinterpret_cast<const Four<T>*>(at.out);
    Four<T> four{};
    for_four([&](int e) {
      if (e < at.count) four.value[e] = at.out[e];
    });
    return four;
  }
  __device__ int fours_per_row() const {
    return (p.paired() ? kPairedRows : kRows) / kFour;
  }
  __device__ static int first_outputs(int group) {
    return static_cast<int>(threadIdx.x + group * kWarp) % kThreads;
  }
  __device__ int columns(int group) const {
    return share.units(group) * p.unit_tiles() * kTileRows;
  }
  __device__ void send_to_partner(const WarpSums<K>& warps, int columns) const {
    for (int i = threadIdx.x; i < p.m * (kRows / kFour); i += kThreads) {
      const int row = i / (kRows / kFour), column = i % (kRows / kFour) * kFour;
      if (column < columns)
        store_remote(reinterpret_cast<const float4*>(&partner.sums[row * kRows + column]), partner.in_place,
                     0, warps.total(row, column));
    }
  }
};

}  // namespace ladder::records
