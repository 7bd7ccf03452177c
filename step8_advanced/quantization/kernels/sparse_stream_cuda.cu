// The product of few rows with a weight of which two of four are kept: a stream of its records (sm_90).
#include <algorithm>

#include "step1_layers/core/cluster.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/linear/rows_stream_norm.cuh"
#include "step8_advanced/quantization/kernels/cluster_launch.cuh"
#include "step8_advanced/quantization/kernels/pending_copies.cuh"
#include "step8_advanced/quantization/kernels/sparse_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/stream_tiles.cuh"

namespace ladder {

namespace sparse {
namespace {

using stream_tiles::kThreads;
using stream_tiles::kTileRows;
using stream_tiles::kTiles;
using stream_tiles::kWarps;
using stream_tiles::TileGroups;

constexpr int kMaxRows = 32;
// Of a normed x, which every block norms for itself and has in shared memory as a whole.
constexpr int kMaxNormedRows = 16, kMaxNormed = 32768;

constexpr int kColumns = static_cast<int>(kSparseColumns);  // that a warp multiplies at a time: a record's
constexpr int kTileValues = kTileRows * kColumns / 2 * 2,
              kTileIndices = kTileValues / 8;          // bytes of a record
constexpr int kWarpTile = kTileValues + kTileIndices;  // in a slot
constexpr int kTileBytes = kWarps * kWarpTile;
constexpr int kTilesOfRecord = static_cast<int>(kSparseRows) / kTileRows;
constexpr int kMaxSlots = 8;

template <class T>
struct Product {
  const T *x, *norm_weight, *bias;  // norm_weight and bias: nullptr where there is none
  const uint8_t* records;
  void* out;
  bool float_out;
  Epilogue epilogue;
  int m, n, k;
  int64_t x_stride, out_stride;
  float eps;
  int chunks;             // of a row of x: records along k
  int split;              // blocks that have the same tiles, as a cluster, and share out the chunks: 1 or 2
  int units, one_more;    // of a block or cluster, and how many of them have one more
  int slots, slot_bytes;  // of the ring
  int x_in_slot;          // where in a slot, behind its tiles, its part of x is, if x comes through the ring
  // In shared memory: x, if it is normed, the sums, which take the ring's place where it is empty when they come, the ring, and of
  // two blocks the other one's sums.
  int x_at, sums_at, ring_at, partner_at;

  __host__ __device__ bool paired() const { return epilogue == Epilogue::silu_and_mul; }
  __host__ __device__ int unit_tiles() const { return paired() ? 2 : 1; }
  __host__ __device__ int width() const { return paired() ? n / 2 : n; }  // columns of out

  // That has a tile's rows and a chunk of columns.
  __device__ const uint8_t* record(int tile, int chunk) const {
    return records + (static_cast<int64_t>(tile / kTilesOfRecord) * chunks + chunk) * kSparseRecordBytes;
  }
};

// The ring of slots that records come through: of each tile of a group 16 rows of a record per warp, and that part of x. What a warp
// copies it multiplies itself, so no warp waits for another.
template <class T>
struct RecordRing {
  const Product<T>& p;
  const TileGroups& groups;
  uint32_t to;                     // the warp's part of the first tile in slot 0
  int warp, lane, first, step;     // of its chunks
  int group = 0, chunk, slot = 0;  // to ask for next
  int tiles;                       // of the group
  // Where this lane's part of each tile is, in bytes, and that of its indices behind it.
  int64_t from[kTiles];
  int to_indices[kTiles];

  __device__ RecordRing(const Product<T>& product, const TileGroups& of_block, const unsigned char* shared,
                        int rank)
      : p(product),
        groups(of_block),
        to(shared_address(shared) + product.ring_at + threadIdx.x / kWarp * kWarpTile),
        warp(threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp),
        first(rank * kWarps + warp),
        step(product.split * kWarps),
        chunk(first) {
    if (first >= p.chunks) group = groups.count;  // no column for this warp
    if (!is_done()) start_group();
  }

  __device__ bool is_done() const { return group >= groups.count; }
  __device__ uint32_t x_of(int of_slot) const {  // the warp's rows of x
    return to + of_slot * p.slot_bytes + p.x_in_slot + warp * (p.m * kColumns * 2 - kWarpTile);
  }

  __device__ void start_group() {
    const int unit = groups.first_unit(group), up = p.width() / kTileRows;
    tiles = groups.units(group) * p.unit_tiles();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = p.paired() ? unit + i / 2 + i % 2 * up : unit + i, in_record = tile % kTilesOfRecord;
      from[i] = (static_cast<int64_t>(tile / kTilesOfRecord) * p.chunks + first) * kSparseRecordBytes +
                in_record * kTileValues + lane * 16;
      to_indices[i] = static_cast<int>(kSparseValueBytes) - in_record * (kTileValues - kTileIndices);
    }
  }

  // Of the weight's slot that is asked for next; not at the end.
  __device__ void copy_records() const {
    const uint32_t place = to + slot * p.slot_bytes + lane * 16;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i >= tiles) break;
      const uint8_t* tile = p.records + from[i];
#pragma unroll
      for (int part = 0; part < kTileValues; part += kWarp * 16)
        copy_of_line_async(place + i * kTileBytes + part, tile + part, true);
      if (lane < kTileIndices / 16)
        copy_of_line_async(place + i * kTileBytes + kTileValues, tile + to_indices[i], true);
    }
  }
  // Of x, for a slot and a chunk of columns.
  __device__ void copy_x(int of_slot, int of_chunk) const {
    for (int piece = lane; piece < p.m * 8; piece += kWarp) {
      const int row = piece / 8, column = of_chunk * kColumns + piece % 8 * 8;
      copy_async(x_of(of_slot) + swizzled(row, piece % 8), p.x + row * p.x_stride + min(column, p.k - 8),
                 column < p.k);
    }
  }
  __device__ void advance() {
    slot = slot + 1 < p.slots ? slot + 1 : 0;
    chunk += step;
    if (chunk < p.chunks) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) from[i] += step * kSparseRecordBytes;
    } else {
      chunk = first;
      ++group;
      if (!is_done()) start_group();
    }
  }
};

// D (16 x 8) += A (16 x 32, two of four) * B (32 x 8) over a warp (sm_80): a is the values as mma_16x8x16 takes numbers, b two of its
// operands; indices and `selector` as sparse_weight.h says.
template <int selector, class T>
__device__ void mma_sparse_16x8x32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                                   uint32_t indices) {
#define LADDER_MMA_SPARSE(type)                                                                             \
  LADDER_SM80_ASM("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." type "." type               \
                  ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, %13;"            \
                  : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                          \
                  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), \
                    "r"(indices), "n"(selector))
  if constexpr (std::is_same_v<T, __half>)
    LADDER_MMA_SPARSE("f16");
  else
    LADDER_MMA_SPARSE("bf16");
#undef LADDER_MMA_SPARSE
}

// What a warp multiplies of a slot, in registers: all that it waits for is asked for at once.
template <int octets>
struct SlotOperands {
  uint32_t values[kTiles][2][4], indices[kTiles], x[octets][2][4];

  // `tiles` of a slot, and the rows of x at x_at, whose 64 columns are swizzled.
  __device__ SlotOperands(uint32_t slot, int tiles, uint32_t x_at, int m) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int o = 0; o < octets; ++o)  // rows past the last one are copies of it, which nothing stores
#pragma unroll
      for (int step = 0; step < 2; ++step)
        load_matrices(x[o][step], x_at + swizzled(min(o * 8 + lane % 8, m - 1), step * 4 + lane / 8));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= tiles) break;
      const uint32_t from = slot + tile * kTileBytes;
#pragma unroll
      for (int step = 0; step < 2; ++step)
        load_matrices(values[tile][step],
                      from + lane / 8 % 2 * 512 + (step * 2 + lane / 16) * 128 + lane % 8 * 16);
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(indices[tile])
                   : "r"(from + kTileValues + lane * 4)
                   : "memory");
    }
  }
};

// A warp's sums of a group.
template <class T, int octets>
struct WarpSums : stream_tiles::TileSums<float, octets> {
  using stream_tiles::TileSums<float, octets>::sum;

  __device__ void add(const SlotOperands<octets>& slot, int tiles) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= tiles) break;
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        mma_sparse_16x8x32<0, T>(sum[tile][o], slot.values[tile][0], slot.x[o][0], slot.indices[tile]);
        mma_sparse_16x8x32<1, T>(sum[tile][o], slot.values[tile][1], slot.x[o][1], slot.indices[tile]);
      }
    }
  }
};

// sparse rows_stream (sm_90): x [m, k], up to 32 rows in whole packs of 16 bytes, records of a weight [n, k], out [m, n] in T or f32;
// silu_and_mul needs whole tiles in either half of the weight. As rows_stream (rows_stream_cuda.cu), whose sibling it is, a block per
// multiprocessor has an even share of the weight's tiles of 16 rows; its eight warps share the columns. The simple version:
//
//   for each group of up to four tiles of this block:
//     for each record of 64 columns of this warp:
//       for each tile:  sums += 16 x 32 values * x^T         two mma.sp, a record's 64 columns
//     add the warps' sums, write them as the epilogue says
//
// Of a weight with few rows two blocks have the same tiles, twice as many, and half of the columns each: the more tiles a warp has at a
// time, the less of its time goes by between them, and x is read by half as many blocks.
//
// What is read is 9/16 of the dense weight's bytes, and nothing is unpacked: values and indices of a record are the operands of mma.sp
// as they lie, which takes the columns of x that the indices name. The ring is full of records before x is there.
template <class T, int octets, bool normed>
__global__ void __launch_bounds__(kThreads, 1) sparse_stream_kernel(const __grid_constant__ Product<T> p) {
  using Sums = WarpSums<T, octets>;
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const int cluster = static_cast<int>(blockIdx.x) / p.split, rank = static_cast<int>(blockIdx.x) % p.split;
  if (p.split > 1) cluster_arrive();  // so that the other one's shared memory is there when it is written to
  const TileGroups groups(p, cluster);
  RecordRing<T> ring(p, groups, shared, rank);
#pragma unroll 1
  for (int s = 0; s < p.slots; ++s) {
    if (!ring.is_done()) {
      ring.copy_records();
      ring.advance();
    }
    commit_copies();
  }

  if constexpr (normed) {
    T* const norm_weight = reinterpret_cast<T*>(shared);
    for (int pack = threadIdx.x; pack < p.k / Pack<T>::kSize; pack += kThreads)
      store_pack(norm_weight + pack * Pack<T>::kSize, load_pack(p.norm_weight + pack * Pack<T>::kSize));
    __syncthreads();
    wait_for_previous_kernel();
    norm_rows(p, norm_weight, p.chunks * (kColumns / Pack<T>::kSize), [&](int pack, int row) {
      return reinterpret_cast<T*>(shared + p.x_at + pack / 8 * p.m * (kColumns * 2) +
                                  swizzled(row, pack % 8));
    });
  } else {
    wait_for_previous_kernel();
    int chunk = ring.first;
#pragma unroll 1
    for (int s = 0; s < p.slots; ++s) {
      if (ring.first < p.chunks) ring.copy_x(s, chunk);
      commit_copies();
      chunk = chunk + ring.step < p.chunks ? chunk + ring.step : ring.first;
    }
  }

  // A thread writes one column of a group, of every fourth row; of silu_and_mul those of gate tiles do.
  constexpr int kRowsAtOnce = kThreads / Sums::kColumns, kRounds = ceil_div(8 * octets, kRowsAtOnce);
  const int column = threadIdx.x % Sums::kColumns, first_row = threadIdx.x / Sums::kColumns;
  const int unit = column / kTileRows / p.unit_tiles(), tile = column / kTileRows % p.unit_tiles();
  float* const sums = reinterpret_cast<float*>(shared + p.sums_at);
  int slot = 0;
#pragma unroll 1
  for (int group = 0; group < groups.count; ++group) {
    const int units = groups.units(group), tiles = units * p.unit_tiles();
    const int j = (groups.first_unit(group) + unit) * kTileRows + column % kTileRows;
    const bool writes = unit < units && tile == 0 && j < p.width();
    T residual[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = first_row + i * kRowsAtOnce;
      residual[i] = writes && p.epilogue == Epilogue::add && row < p.m
                        ? static_cast<const T*>(p.out)[row * p.out_stride + j]
                        : from_float<T>(0.0f);
    }
    Sums product;
#pragma unroll 1
    for (int chunk = ring.first; chunk < p.chunks; chunk += ring.step) {
      wait_some_copies<0, kMaxSlots - 1>(p.slots - 1);
      __syncwarp();  // the other lanes' copies have come too
      const SlotOperands<octets> operands(
          ring.to + slot * p.slot_bytes, tiles,
          normed ? shared_address(shared) + p.x_at + chunk * p.m * (kColumns * 2) : ring.x_of(slot), p.m);
      __syncwarp();  // and have been read
      if (!ring.is_done()) {
        ring.copy_records();
        if constexpr (!normed) ring.copy_x(ring.slot, ring.chunk);
        ring.advance();
      }
      commit_copies();
      product.add(operands, tiles);
      slot = slot + 1 < p.slots ? slot + 1 : 0;
    }
    __syncthreads();  // the sums before have been read, and the ring, if they take its place
    product.store(sums, p.m);
    __syncthreads();
    float* const partner = reinterpret_cast<float*>(shared + p.partner_at);
    if (p.split > 1) {  // and one group
      cluster_wait();
      if (rank != 0)
        for (int i = threadIdx.x; i < p.m * Sums::kColumns; i += kThreads)
          *in_block(&partner[i], 0) = Sums::total(sums, p.m, i / Sums::kColumns, i % Sums::kColumns);
      cluster_sync();
      if (rank != 0) return;
    }
    if (!writes) continue;
    const auto total = [&](int row, int of_column) {
      const float sum = Sums::total(sums, p.m, row, of_column);
      return p.split > 1 ? sum + partner[row * Sums::kColumns + of_column] : sum;
    };
    const float bias = p.bias != nullptr ? to_float(p.bias[j]) : 0.0f;
    const float up_bias = p.bias != nullptr && p.paired() ? to_float(p.bias[p.width() + j]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int row = first_row + i * kRowsAtOnce;
      if (row >= p.m) break;
      const float y = total(row, column) + bias;
      const int64_t to = row * p.out_stride + j;
      T* out = static_cast<T*>(p.out) + to;
      if (p.epilogue == Epilogue::silu_and_mul)
        *out = silu_and_mul_of<T>(y, total(row, column + kTileRows) + up_bias);
      else if (p.epilogue == Epilogue::add)
        *out = sum_with_residual(residual[i], y);
      else if (p.float_out)
        static_cast<float*>(p.out)[to] = y;
      else
        *out = from_float<T>(y);
    }
  }
}

// Of a block, bytes. A ring that asks for much keeps memory busy between two kernels; a small weight, whose warps have few records each, is
// faster where a block of the next kernel finds room in the other half. In a layer, where products follow each other with what stands
// between them in their kernels, blocks that come early would crowd two on some multiprocessors and leave others idle, so there a
// block takes more than half, and leaves attention's room if a ring of three slots allows it.
constexpr int kShared = (226 << 10) - 512, kHalfOfShared = 112 << 10, kOverHalfOfShared = 148 << 10;
constexpr int kLeastShared = 77 << 10, kLeastSharedAlone = 115 << 10;
constexpr int kFewRecords = 12;

int round_up(int bytes) {
  return ceil_div(bytes, 128) * 128;
}

template <class T, int octets, bool normed>
void launch(const OpContext& ctx, Product<T> p) {
  constexpr int kRowBytes = kColumns * 2;
  const int all_units = ceil_div(p.width(), kTileRows), multiprocessors = ctx.cuda->num_multiprocessors();
  p.split = ceil_div(all_units, multiprocessors / 2) * p.unit_tiles() <= kTiles ? 2 : 1;
  const int clusters = std::min(multiprocessors / p.split, all_units);
  p.units = all_units / clusters;
  p.one_more = all_units % clusters;
  const int of_group = kTiles / p.unit_tiles();
  const auto largest_group = [&](int units) { return ceil_div(units, ceil_div(units, of_group)); };
  const int most_units = p.units + (p.one_more > 0), groups = ceil_div(most_units, of_group);
  const int tiles = std::max(largest_group(p.units), largest_group(most_units)) * p.unit_tiles();
  p.x_in_slot = tiles * kTileBytes;
  p.slot_bytes = p.x_in_slot + (normed ? 0 : kWarps * p.m * kRowBytes);
  const int sums_bytes = WarpSums<T, octets>::bytes(p.m);
  p.x_at = normed ? round_up(p.k * 2) : 0;
  p.sums_at = p.x_at + (normed ? p.chunks * p.m * kRowBytes : 0);
  p.ring_at = p.sums_at + (groups == 1 ? 0 : round_up(sums_bytes));
  const int partner_bytes = p.split > 1 ? p.m * WarpSums<T, octets>::kColumns * 4 : 0;
  const int records = groups * ceil_div(p.chunks, kWarps * p.split);  // of a warp
  const auto slots_in = [&](int room) { return (room - p.ring_at - partner_bytes) / p.slot_bytes; };
  const bool in_a_layer = normed || p.epilogue != Epilogue::store;
  const bool in_half = !in_a_layer && records < kFewRecords && slots_in(kHalfOfShared) >= 2;
  const int room = in_half                                         ? kHalfOfShared
                   : in_a_layer && slots_in(kOverHalfOfShared) > 2 ? kOverHalfOfShared
                                                                   : kShared;
  p.slots = std::clamp(slots_in(room), 1, std::min(records, kMaxSlots));
  p.partner_at = round_up(std::max(p.ring_at + p.slots * p.slot_bytes, p.sums_at + sums_bytes));
  const int bytes = std::max(p.partner_at + partner_bytes, in_half ? kLeastShared : kLeastSharedAlone);
  auto kernel = sparse_stream_kernel<T, octets, normed>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  launch_in_clusters(ctx, kernel, p.split, clusters * p.split, kThreads, bytes, p);
}

template <class T>
void launch_for_rows(const OpContext& ctx, const SparseStreamArgs& args) {
  const SparseWeight& weight = *args.weight;
  Product<T> p{};
  p.x = cuda_data<T>(args.x);
  p.norm_weight = cuda_data<T>(args.norm_weight);
  p.bias = cuda_data<T>(args.bias);
  p.records = cuda_data<uint8_t>(weight.records);
  p.out = args.out.raw();
  p.float_out = args.out.dtype() == DType::f32;
  p.epilogue = args.epilogue;
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.x_stride = args.x.stride(0);
  p.out_stride = args.out.stride(0);
  p.eps = static_cast<float>(args.eps);
  p.chunks = static_cast<int>(weight.records.dim(1));
  const auto with_octets = [&](auto normed) {
    if (p.m <= 8)
      launch<T, 1, normed.value>(ctx, p);
    else if (p.m <= 16)
      launch<T, 2, normed.value>(ctx, p);
    else if constexpr (!normed.value)
      launch<T, 4, false>(ctx, p);
  };
  if (p.norm_weight != nullptr)
    with_octets(std::true_type());
  else
    with_octets(std::false_type());
}

}  // namespace
}  // namespace sparse

void sparse_stream(const OpContext& ctx, const SparseStreamArgs& args) {
  if (args.x.dtype() == DType::f16)
    sparse::launch_for_rows<__half>(ctx, args);
  else
    sparse::launch_for_rows<__nv_bfloat16>(ctx, args);
}

bool sparse_stream_takes(const SparseStreamArgs& args) {
  const Tensor& x = args.x;
  const SparseWeight& weight = *args.weight;
  if (x.dtype() != weight.dtype || x.dim(0) > sparse::kMaxRows || !is_packed(x)) return false;
  if (args.epilogue == Epilogue::silu_and_mul && weight.n % (2 * sparse::kTileRows) != 0) return false;
  return !args.norm_weight.defined() || (is_packed(args.norm_weight) && x.dim(0) <= sparse::kMaxNormedRows &&
                                         x.dim(0) * x.dim(1) <= sparse::kMaxNormed);
}

void sparse_matmul_rows_stream(const OpContext& ctx, const SparseMatmulArgs& args) {
  sparse_stream(ctx, {{.x = args.x, .out = args.out}, args.weight, args.bias});
}
bool sparse_matmul_takes_rows_stream(const SparseMatmulArgs& args) {
  return sparse_stream_takes({{.x = args.x, .out = args.out}, args.weight, args.bias});
}

}  // namespace ladder
