#pragma once
// x on its way from L2 to shared memory, normed or as it is, of rows_stream_kernel.cuh.
//
// x comes from the kernel before, and until it is in place no warp multiplies: what stands between that kernel's end and x is waited for
// in every product of a layer. So all that does not need x is done before: which packs a thread brings and where they go, the norm's
// weights, the zeros behind the last column. Then nothing stands before the loads.
#include "step8_advanced/quantization/kernels/rows_stream.cuh"

namespace ladder::records {

// Elements of a single row of x that go through a block's shared memory as they are. Several rows would come one after the other: four of
// 4096 x 4096 took 7.2 us, so 5.2.
inline constexpr int kMaxCopied = 8192;

template <class K>
class ArrivingX {
 public:
  using T = typename K::T;

  // At the kernel's beginning: the norm's weights come from memory, as a layer's records have passed through the cache since they were
  // read, and would come behind the records that are asked for next.
  __device__ explicit ArrivingX(const Product<T>& p) : normed(K::shared_x && p.norm_weight != nullptr) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      if (normed && column_of(i) < p.k)
        weight[i] = *reinterpret_cast<const uint4*>(p.norm_weight + column_of(i));
  }
  // Before the previous kernel has ended. The block's own columns go to rows of as many elements from there on.
  __device__ void set_up(const Product<T>& p, const Share& share, T* first_row) {
    to = first_row;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      int column;
      if (normed) {  // all of x, as the norm is that of a whole row
        column = column_of(i);
        place[i] = column < p.k ? share.place_of(column) : -1;
      } else {  // a warp brings what it multiplies: half of it has a block of k
        constexpr int kLanes = kBlockColumns / kSize;
        const int lane = threadIdx.x % kWarp, round = 2 * i + lane / kLanes;
        column = (share.first_r + round * share.stride) * kBlockColumns + lane % kLanes * kSize;
        place[i] = round < share.rounds ? share.place_of(column) : -1;
      }
      from[i] = column < p.k ? column : -1;
      pin(place[i]), pin(from[i]);
    }
    if (normed) {  // to the end of the last block of k
      const int behind = p.k + static_cast<int>(threadIdx.x) * kSize;
      const int at = behind < p.blocks_of_k * kBlockColumns ? share.place_of(behind) : -1;
#pragma unroll 1
      for (int i = 0; at >= 0 && i < p.m; ++i) store_pack(to + i * share.own_columns() + at, zero_pack<T>());
    }
  }

  // When it has ended: all rows, as operands beside codes. Calls `asked` when the first one has been asked for.
  template <class Asked>
  __device__ void bring(const Product<T>& p, const Share& share, Asked&& asked) {
    uint4 packs[kPacks];
    const T* x = p.x;
    ask(x, packs);
    asked();
#pragma unroll 1
    for (int row = 0;;) {
      if (normed) norm(p, row, packs);
#pragma unroll
      for (int i = 0; i < kPacks; ++i)
        if (place[i] >= 0) *reinterpret_cast<uint4*>(to + place[i]) = x_of_codes<typename K::C>(packs[i]);
      if (++row == p.m) break;
      to += share.own_columns(), x += p.x_stride;
      ask(x, packs);
    }
    if (normed)
      __syncthreads();
    else
      __syncwarp();
  }

 private:
  static constexpr int kSize = Pack<T>::kSize;
  static constexpr int kPacks = kMaxNormed / kSize / kThreads;  // of a row, of a thread
  static_assert(kMaxCopied <= kMaxNormed);
  T* to;
  bool normed;
  int from[kPacks], place[kPacks];  // of a row: columns of x and elements from `to`, or -1
  uint4 weight[kPacks];

  __device__ static int column_of(int i) {
    return static_cast<int>(threadIdx.x + i * kThreads) * kSize;
  }

  // In words, as elements would be put together one by one, when they have come.
  __device__ void ask(const T* x, uint4 (&packs)[kPacks]) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      packs[i] = uint4{0, 0, 0, 0};
      if (from[i] >= 0) packs[i] = *reinterpret_cast<const uint4*>(x + from[i]);
    }
  }
  // Every block norms all rows for itself (rows_stream_norm.cuh of step 1 says why). The warps' sums are added as block_sum does it, with
  // one barrier instead of two.
  __device__ void norm(const Product<T>& p, int row, uint4 (&packs)[kPacks]) const {
    // Of rows in turn: the next one's are written while these are read.
    __shared__ __align__(16) float sums[2][kWarps];
    static_assert(kWarps == 8);
    float x[kPacks][kSize], sum = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i * kThreads * kSize >= p.k) break;
      to_floats(reinterpret_cast<const Pack<T>&>(packs[i]), x[i]);
#pragma unroll
      for (int e = 0; e < kSize; ++e) sum = fmaf(x[i][e], x[i][e], sum);
    }
    sum = warp_sum(sum);
    float* const of_warps = sums[row % 2];
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = sum;
    __syncthreads();
    const float4 low = *reinterpret_cast<const float4*>(of_warps),
                 high = *reinterpret_cast<const float4*>(of_warps + 4);
    sum = ((low.x + high.x) + (low.z + high.z)) + ((low.y + high.y) + (low.w + high.w));
    const float scale = rsqrtf(__fdividef(sum, static_cast<float>(p.k)) + p.eps);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (i * kThreads * kSize >= p.k) break;
      float weights[kSize];
      to_floats(reinterpret_cast<const Pack<T>&>(weight[i]), weights);
#pragma unroll
      for (int e = 0; e < kSize; ++e) x[i][e] = x[i][e] * scale * weights[e];
      reinterpret_cast<Pack<T>&>(packs[i]) = from_floats<T>(x[i]);
    }
  }
};

}  // namespace ladder::records
