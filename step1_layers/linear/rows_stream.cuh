#pragma once
// The pieces of rows_stream (rows_stream_cuda.cu) in the order in which a block uses them: its share of the
// weight, the ring that the weights come through, the rows of x, the product of a segment, the sums of the
// warps, the epilogue. rows_stream_shape.cuh draws unit, group, segment and slot.
//
// Lane 4 g + t of a warp has rows g, g + 8, ... of x and row g of every unit, at 8 columns (16 bytes) from
// column 8 t of every chunk: as the order of the sum over k is free, these are its operands of two mma as
// they come.
#include "step1_layers/core/packs.cuh"
#include "step1_layers/core/tensor_core.cuh"
#include "step1_layers/linear/fused_epilogue.cuh"
#include "step1_layers/linear/rows_stream.h"
#include "step1_layers/linear/rows_stream_shape.cuh"

namespace ladder {

struct StreamLayout {  // where things begin in shared memory, bytes; the norm's weight is at 0
  int x, sums, ring;
};

template <class T>
struct StreamProduct {
  const T *x, *weight, *bias, *norm_weight;  // bias and norm_weight: nullptr where there is none
  void* out;
  bool float_out;
  Epilogue epilogue;
  int m, n, k;
  int64_t x_stride, weight_stride, out_stride;
  float eps;
  StreamLayout layout;
  int units, one_more;  // of a block, and how many blocks have one more
  bool sums_in_ring;    // which is empty when they are written
};

// Units are dealt out evenly. silu_and_mul needs the gate and the up columns of an output in one group, so
// there a block owns pairs: unit u of the gate half of the weight and unit u of the up half, next to each
// other in a group.
template <class T, StreamShape shape>
struct BlockShare {
  static constexpr int kPairs = shape.units > 1 ? shape.units / 2 : 1;

  bool paired;
  int width;       // columns of out
  int begin, end;  // units, or pairs of them, of this block
  int units_per_group, groups, segments;

  __device__ explicit BlockShare(const StreamProduct<T>& p) {
    segments = shape.x_in_registers ? kChunksInRegisters / shape.chunks : ceil_div(p.k, shape.segment());
    paired = p.epilogue == Epilogue::silu_and_mul;
    width = paired ? p.n / 2 : p.n;
    const int block = static_cast<int>(blockIdx.x);
    begin = block * p.units + min(block, p.one_more), end = begin + p.units + (block < p.one_more);
    units_per_group = paired ? kPairs : shape.units;
    groups = paired ? ceil_div(end - begin, kPairs) : ceil_div(end - begin, shape.units);
  }
};

// The ring of slots that the weights come through. A thread copies the bytes that it will multiply itself, so
// no thread waits for another's copies: no barrier. Rows and columns past the end become zeros.
template <class T, StreamShape shape>
struct WeightRing {
  // The next slot to ask for.
  int row, column, slot, remaining;
  const T* from;
  uint32_t to;
  int first_column, last_row;
  int64_t unit_stride, odd_unit,
      two_units;  // from a unit to the next of its half; of a group's units 1 and 2

  __device__ WeightRing(const StreamProduct<T>& p, const BlockShare<T, shape>& share, unsigned char* shared,
                        int lane_column) {
    to = shared_address(shared) + p.layout.ring + threadIdx.x * 16;
    unit_stride = kUnit * p.weight_stride;
    odd_unit = share.paired ? share.width * p.weight_stride : unit_stride;
    two_units = share.paired ? unit_stride : 2 * unit_stride;
    first_column = lane_column;
    row = share.begin * kUnit + threadIdx.x % kWarp / 4, column = lane_column, slot = 0;
    remaining = share.groups * share.segments;
    last_row = min(share.end * kUnit, share.width);
    from = p.weight + row * p.weight_stride + lane_column;
  }

  // Asks for one slot, or for nothing at the end of the block's weights.
  __device__ void copy_next(const StreamProduct<T>& p, const BlockShare<T, shape>& share) {
    if (remaining > 0) {
      const uint32_t place = to + slot * shape.slot_bytes();
#pragma unroll
      for (int unit = 0; unit < shape.units; ++unit) {
        const bool inside = row + (share.paired ? unit / 2 : unit) * kUnit < last_row;
        const T* unit_from = from + unit / 2 * two_units + unit % 2 * odd_unit;
#pragma unroll
        for (int c = 0; c < shape.chunks; ++c)
          copy_of_line_async(place + (unit * shape.chunks + c) * kThreads * 16, unit_from + c * kChunk,
                             inside && column + c * kChunk < p.k);
      }
      --remaining;
      column += shape.segment();
      from += shape.segment();
      if (column - first_column >= share.segments * shape.segment()) {  // the next group
        from += share.units_per_group * unit_stride - (column - first_column);
        row += share.units_per_group * kUnit;
        column = first_column;
      }
      slot = slot + 1 < shape.slots ? slot + 1 : 0;
    }
    commit_copies();
  }

  // All slots: few at a time where the ring holds all weights of the block (rows_stream_shape.cuh), and as
  // fast as they come where it does not.
  __device__ void fill(const StreamProduct<T>& p, const BlockShare<T, shape>& share) {
    const bool all_fit = remaining <= shape.slots;
#pragma unroll 1
    for (int s = 0; s < shape.slots; ++s) {
      if (all_fit) wait_copies<shape.slots_at_once - 1>();
      copy_next(p, share);
    }
  }
};

// x in shared memory, each pack where the warp that multiplies it reads sixteen bytes per lane without a
// conflict. A normed x is there as a whole; another one comes a segment at a time in slots of its own beside
// the weights', copied by the thread that multiplies it.
template <class T, StreamShape shape>
struct SharedX {
  static constexpr int kOctets = shape.rows / 8;  // groups of eight rows

  unsigned char* shared;
  int warp, g, t, lane_column;
  int slot_bytes;

  __device__ SharedX(const StreamProduct<T>& p, unsigned char* shared_memory, int column)
      : shared(shared_memory),
        warp(threadIdx.x / kWarp),
        g(threadIdx.x % kWarp / 4),
        t(threadIdx.x % 4),
        lane_column(column),
        slot_bytes(p.m * shape.segment() * static_cast<int>(sizeof(T))) {}

  // The place of pack t of chunk c of warp w, in a slot.
  __device__ int at(const StreamProduct<T>& p, int slot, int c, int w, int row, int pack) const {
    return p.layout.x + slot * slot_bytes + (((c * kWarps + w) * p.m + row) * 4 + pack) * 16;
  }

  __device__ void copy(const StreamProduct<T>& p, int segment, int slot) const {
#pragma unroll
    for (int c = 0; c < shape.chunks; ++c)
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        const int row = o * 8 + g, column = segment * shape.segment() + lane_column + c * kChunk;
        if (row < p.m)
          copy_of_line_async(shared_address(shared + at(p, slot, c, warp, row, t)),
                             p.x + row * p.x_stride + column, column < p.k);
      }
  }

  __device__ uint4 load(const StreamProduct<T>& p, int slot, int c, int o) const {
    const int row = o * 8 + g;
    return row < p.m ? *reinterpret_cast<const uint4*>(shared + at(p, slot, c, warp, row, t))
                     : uint4{0, 0, 0, 0};
  }
};

// The sums of a group in a thread: 16 rows of x by a unit are one mma, of which a lane has rows g and g + 8
// at columns 2 t and 2 t + 1. With few units two sums per output, so that an mma need not wait for the one
// before it.
template <StreamShape shape>
struct GroupSums {
  static constexpr int kOctets = shape.rows / 8, kMmaRows = (shape.rows + 15) / 16;
  static constexpr int kChains = shape.units <= 2 ? 2 : 1;

  float sum[kChains][kMmaRows][shape.units][4] = {};

  // One chunk of a segment: x(o) is the lane's pack of octet o, weights where its packs of the slot begin.
  template <class T, class LoadX>
  __device__ void multiply(int c, LoadX&& load_x, const unsigned char* weights) {
    uint4 x[2 * kMmaRows];
#pragma unroll
    for (int o = 0; o < 2 * kMmaRows; ++o) x[o] = o >= kOctets ? uint4{0, 0, 0, 0} : load_x(o);
    uint4 w[shape.units];
#pragma unroll
    for (int unit = 0; unit < shape.units; ++unit)
      w[unit] = *reinterpret_cast<const uint4*>(weights + (unit * shape.chunks + c) * kThreads * 16);
#pragma unroll
    for (int b = 0; b < kMmaRows; ++b) {
      const uint4 low = x[2 * b], high = x[2 * b + 1];
#pragma unroll
      for (int unit = 0; unit < shape.units; ++unit)
        mma_16x8x16<T>(sum[0][b][unit], {low.x, high.x, low.y, high.y}, {w[unit].x, w[unit].y});
#pragma unroll
      for (int unit = 0; unit < shape.units; ++unit)
        mma_16x8x16<T>(sum[kChains - 1][b][unit], {low.z, high.z, low.w, high.w}, {w[unit].z, w[unit].w});
    }
  }
};

// The sums of all warps in shared memory, float [warp][row][column]: each has summed over its chunks of k.
template <StreamShape shape>
struct WarpSums {
  static constexpr int kColumns = shape.units * kUnit + 8;  // of a row; 8 more spread the rows over the banks

  float* sums;
  int m;

  __device__ float& at(int warp, int row, int column) const {
    return sums[(warp * m + row) * kColumns + column];
  }

  __device__ void store(const GroupSums<shape>& group) const {
    const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int o = 0; o < GroupSums<shape>::kOctets; ++o) {
      const int row = o * 8 + g;
      if (row >= m) continue;
#pragma unroll
      for (int unit = 0; unit < shape.units; ++unit) {
        const int low_at = o % 2 * 2;
        float low = group.sum[0][o / 2][unit][low_at], high = group.sum[0][o / 2][unit][low_at + 1];
        if constexpr (GroupSums<shape>::kChains == 2) {
          low += group.sum[1][o / 2][unit][low_at];
          high += group.sum[1][o / 2][unit][low_at + 1];
        }
        *reinterpret_cast<float2*>(&at(warp, row, unit * kUnit + 2 * t)) = float2{low, high};
      }
    }
  }

  // Over the warps, in their order.
  __device__ float total(int row, int column) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += at(w, row, column);
    return sum;
  }
};

// Writes the outputs of a group. Thread i takes outputs i, i + kThreads, ... of its rows of x, row after row.
template <class T, StreamShape shape>
struct StreamEpilogue {
  static constexpr int kOutputs = shape.units * kUnit, kPairedOutputs = shape.units > 1 ? kOutputs / 2 : 1;

  int outputs_per_row;
  bool paired;
  T residual;  // of the thread's first output

  __device__ explicit StreamEpilogue(bool is_paired)
      : outputs_per_row(is_paired ? kPairedOutputs : kOutputs), paired(is_paired) {}

  __device__ int row_of(int output) const { return paired ? output / kPairedOutputs : output / kOutputs; }

  // Asks for what the thread's first output will be added to: it comes from L2 while the product is computed.
  __device__ void load_residual(const StreamProduct<T>& p, int unit, int width) {
    const int row = row_of(threadIdx.x), column = unit * kUnit + threadIdx.x - row * outputs_per_row;
    residual = from_float<T>(0.0f);
    if (p.epilogue == Epilogue::add && row < p.m && column < width)
      residual = static_cast<const T*>(p.out)[row * p.out_stride + column];
  }

  __device__ void store(const StreamProduct<T>& p, const WarpSums<shape>& sums, int unit, int group_units,
                        int width) const {
#pragma unroll 1
    for (int o = threadIdx.x; o < p.m * outputs_per_row; o += kThreads) {
      const int row = row_of(o), column = o - row * outputs_per_row, j = unit * kUnit + column;
      if (column >= group_units * kUnit || j >= width) continue;
      auto y = [&](int at, int of) {
        const float sum = sums.total(row, at);
        return p.bias != nullptr ? sum + to_float(p.bias[of]) : sum;
      };
      const int64_t to = row * p.out_stride + j;
      T* out = static_cast<T*>(p.out) + to;
      if (p.epilogue == Epilogue::silu_and_mul) {
        const int at = column / kUnit * 2 * kUnit + column % kUnit;
        *out = silu_and_mul_of<T>(y(at, j), y(at + kUnit, width + j));
      } else if (p.epilogue == Epilogue::add) {
        const T before = o == static_cast<int>(threadIdx.x) ? residual : *out;
        *out = sum_with_residual(before, y(column, j));
      } else if (p.float_out) {
        static_cast<float*>(p.out)[to] = y(column, j);
      } else {
        *out = from_float<T>(y(column, j));
      }
    }
  }
};

}  // namespace ladder
