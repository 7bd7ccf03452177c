// The matrix product for few rows as a stream of weights that never stops (sm_90).
#include <algorithm>
#include <utility>

#include "step1_layers/core/packed.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/linear/matmul_cuda.cuh"
#include "step1_layers/linear/rows_stream.cuh"
#include "step1_layers/linear/rows_stream_norm.cuh"

namespace ladder {

namespace {

constexpr int kMaxRows = 32;
// Of a normed x, so that its rows fit beside the ring; of more rows a kernel norms once what every block
// would.
constexpr int kMaxNormedRows = 16, kMaxNormed = 32768;
// At most two blocks share a multiprocessor, one of this kernel and one of the next: else early blocks crowd
// on a few multiprocessors while others idle.
constexpr int kMinSharedBytes = 77 << 10;
// That crowd all the same where the kernel before has taken whole multiprocessors: two of an LM head's then lie on each that is free
// first, and it takes 1.4 times as long. So those of a weight as large, for which the early start is nothing, are alone.
constexpr int kMinSharedBytesAlone = 115 << 10;
constexpr int64_t kLargeWeight = int64_t{512} << 20;

// rows_stream (sm_90) x [m, k], weight [n, k] and out [m, n] in bf16 or f16, up to 32 rows of x, everything
// in whole 16-byte packs; of a normed x up to 16 rows and 32768 elements. One block per multiprocessor
// computes its even share of the weight's rows, a group of units at a time (rows_stream_shape.cuh draws it).
// The simple version is the rung below, rows_tensor_core (matmul_rows_cuda.cu):
//
//   for each group of units of this block:
//     for each segment of k:
//       load the group's weights of the segment         into registers
//       sums += x segment * weights^T                   mma, each warp over its own columns of k
//     add the warps' sums, write the group's columns
//
// It has as many loads in flight as registers hold, and between two turns of loads memory rests. Here
// - the loads run ahead of the products through a ring in shared memory, up to 96 KB per multiprocessor in
//   flight at any time (WeightRing), and no barrier stands between copy and product, which are one thread's;
// - the ring is filled before the previous kernel has ended, since weights do not depend on it. The products
//   of a layer become one stream, and a product whose weights fit the ring (those of Qwen3-0.6B) finds all of
//   them there: what is left to wait for is x;
// - up to 16 rows of x no longer than 1024 go straight to registers, all at once, which leaves the ring the
//   room for all weights; others come through slots beside the weights' (SharedX);
// - the norm before the product costs no kernel of its own (rows_stream_norm.cuh), and neither does what
//   follows it (StreamEpilogue): the columns of a block are its own.
// The template argument is a row of kStreamShapes: nvcc takes no struct there for a __global__ function.
template <class T, int shape_index>
__global__ void __launch_bounds__(kThreads, 2) rows_stream_kernel(StreamProduct<T> p) {
  constexpr StreamShape shape = kStreamShapes[shape_index];
  extern __shared__ __align__(128) unsigned char shared[];
  allow_next_kernel();
  const BlockShare<T, shape> share(p);
  const int warp = threadIdx.x / kWarp, t = threadIdx.x % 4;
  const int lane_column = warp * kChunk * shape.chunks + t * Pack<T>::kSize;  // in every segment
  WeightRing<T, shape> ring(p, share, shared, lane_column);
  ring.fill(p, share);

  T* const norm_weight = reinterpret_cast<T*>(shared);
  const bool normed = p.norm_weight != nullptr;
  if (normed)
#pragma unroll 1
    for (int pack = threadIdx.x; pack < p.k / Pack<T>::kSize; pack += kThreads)
      store_pack(norm_weight + pack * Pack<T>::kSize, load_pack(p.norm_weight + pack * Pack<T>::kSize));

  const SharedX<T, shape> shared_x(p, shared, lane_column);
  uint4 x[kChunksInRegisters][shape.rows / 8];
  // Rows past the last one are copies of it, which nothing stores.
  const T* x_from[shape.rows / 8];
#pragma unroll
  for (int o = 0; o < shape.rows / 8; ++o)
    x_from[o] = p.x + min(o * 8 + shared_x.g, p.m - 1) * p.x_stride + lane_column;

  wait_for_previous_kernel();
  if (share.groups == 0) return;
  if constexpr (shape.x_in_registers) {
    auto offset = [](int c) { return c / shape.chunks * shape.segment() + c % shape.chunks * kChunk; };
#pragma unroll
    for (int c = 0; c < kChunksInRegisters; ++c)
#pragma unroll
      for (int o = 0; o < shape.rows / 8; ++o)
        x[c][o] = lane_column + offset(c) < p.k ? *reinterpret_cast<const uint4*>(x_from[o] + offset(c))
                                                : uint4{0, 0, 0, 0};
    if (normed) norm_registers(p, norm_weight, x, [&](int c) { return lane_column + offset(c); });
  } else if (normed) {
    // Pack i of a row holds columns of chunk i / 4, which is the c-th of warp w in its segment.
    norm_rows(p, norm_weight, share.segments * shape.segment() / Pack<T>::kSize, [&](int i, int row) {
      const int chunk = i / 4, w = chunk / shape.chunks % kWarps;
      const int at = shared_x.at(p, chunk / shape.chunks / kWarps, chunk % shape.chunks, w, row, i % 4);
      return reinterpret_cast<T*>(shared + at);
    });
  } else {
#pragma unroll 1
    for (int s = 0, segment = 0; s < shape.slots; ++s) {
      if (s < share.groups * share.segments) shared_x.copy(p, segment, s);
      commit_copies();
      if (++segment == share.segments) segment = 0;
    }
  }

  const WarpSums<shape> warp_sums{reinterpret_cast<float*>(shared + p.layout.sums), p.m};
  StreamEpilogue<T, shape> epilogue(share.paired);
  int slot = 0, next_x = shape.slots % share.segments;  // the segment of x that is copied next
  for (int unit = share.begin; unit < share.end; unit += share.units_per_group) {
    epilogue.load_residual(p, unit, share.width);
    GroupSums<shape> sums;
#pragma unroll(shape.x_in_registers ? kChunksInRegisters : 1)
    for (int segment = 0; segment < share.segments; ++segment) {
      wait_copies<shape.slots - 1>();
      const unsigned char* weights = shared + p.layout.ring + slot * shape.slot_bytes() + threadIdx.x * 16;
#pragma unroll
      for (int c = 0; c < shape.chunks; ++c) {
        auto load_x = [&](int o) {
          return shape.x_in_registers ? x[segment * shape.chunks + c][o]
                                      : shared_x.load(p, normed ? segment : slot, c, o);
        };
        sums.template multiply<T>(c, load_x, weights);
      }
      if (!shape.x_in_registers && !normed && ring.remaining > 0) shared_x.copy(p, next_x, slot);
      ring.copy_next(p, share);
      next_x = next_x + 1 < share.segments ? next_x + 1 : 0;
      slot = slot + 1 < shape.slots ? slot + 1 : 0;
    }
    if (p.sums_in_ring) __syncthreads();
    warp_sums.store(sums);
    __syncthreads();
    epilogue.store(p, warp_sums, unit, min(share.units_per_group, share.end - unit), share.width);
    __syncthreads();
  }
}

template <class T, int shape_index>
void launch_stream(const OpContext& ctx, StreamProduct<T> p, int blocks) {
  constexpr StreamShape shape = kStreamShapes[shape_index];
  constexpr int kElement = static_cast<int>(sizeof(T));
  const bool paired = p.epilogue == Epilogue::silu_and_mul, normed = p.norm_weight != nullptr;
  const int units = ceil_div(paired ? p.n / 2 : p.n, kUnit);
  const int segments =
      shape.x_in_registers ? kChunksInRegisters / shape.chunks : ceil_div(p.k, shape.segment());
  const int groups = ceil_div(ceil_div(units, blocks), paired ? shape.units / 2 : shape.units);
  const int slots = std::min(groups * segments, shape.slots);
  p.units = units / blocks;
  p.one_more = units % blocks;
  p.sums_in_ring = groups == 1;

  // Shared memory: the norm's weight, x, the sums of the warps, the ring.
  auto aligned = [](int bytes) { return ceil_div(bytes, 128) * 128; };
  const int x_bytes = (normed ? segments : slots) * p.m * shape.segment() * kElement;
  const int sums_bytes = kWarps * p.m * WarpSums<shape>::kColumns * static_cast<int>(sizeof(float));
  p.layout.x = normed ? aligned(p.k * kElement) : 0;
  p.layout.sums = p.layout.x + (shape.x_in_registers ? 0 : aligned(x_bytes));
  p.layout.ring = p.layout.sums + (p.sums_in_ring ? 0 : aligned(sums_bytes));
  const bool is_large = int64_t{p.n} * p.k * kElement >= kLargeWeight;
  const int bytes = std::max({p.layout.ring + slots * shape.slot_bytes(), p.layout.sums + sums_bytes,
                              is_large ? kMinSharedBytesAlone : kMinSharedBytes});
  auto kernel = rows_stream_kernel<T, shape_index>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), p);
}

// The number of units of a group that leaves the fewest of them empty, of a block with so many units.
int units_of_group(int units) {
  if (units <= 2) return units;
  auto padded = [&](int group) { return ceil_div(units, group) * group; };
  return padded(4) < padded(6) ? 4 : 6;
}

template <class T, int... i>
void launch_stream_of(int chosen, const OpContext& ctx, const StreamProduct<T>& p, int blocks,
                      std::integer_sequence<int, i...>) {
  ((chosen == i ? launch_stream<T, i>(ctx, p, blocks) : void()), ...);
}

}  // namespace

void rows_stream(const OpContext& ctx, const RowsStreamArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const StreamProduct<T> p{.x = cuda_data<T>(args.x),
                               .weight = cuda_data<T>(args.weight),
                               .bias = cuda_data<T>(args.bias),
                               .norm_weight = cuda_data<T>(args.norm_weight),
                               .out = args.out.raw(),
                               .float_out = args.out.dtype() == DType::f32,
                               .epilogue = args.epilogue,
                               .m = static_cast<int>(args.x.dim(0)),
                               .n = static_cast<int>(args.weight.dim(0)),
                               .k = static_cast<int>(args.x.dim(1)),
                               .x_stride = args.x.stride(0),
                               .weight_stride = args.weight.stride(0),
                               .out_stride = args.out.stride(0),
                               .eps = static_cast<float>(args.eps),
                               .layout = {}};
      const bool paired = args.epilogue == Epilogue::silu_and_mul;
      // Of one row the all-reduce before this kernel is one block, beside which none of these has room
      // (all_reduce_norm.cu). Two on one multiprocessor would take twice as long: with 131 of them two H100s
      // decode 8B in 2.98 ms a token, with 132 in 3.29.
      const bool beside_all_reduce = args.x.dim(0) == 1 && tp_group(ctx).size() > 1;
      const int blocks = ctx.cuda->num_multiprocessors() - (beside_all_reduce ? 1 : 0);
      const int units = ceil_div(ceil_div(paired ? p.n / 2 : p.n, kUnit), blocks) * (paired ? 2 : 1);
      const bool in_registers = p.k <= kMaxKInRegisters && p.m <= kMaxRowsInRegisters;
      launch_stream_of(find_stream_shape(p.m, units_of_group(units), in_registers), ctx, p, blocks,
                       std::make_integer_sequence<int, std::size(kStreamShapes)>{});
    }
  });
}

bool rows_stream_takes(const RowsStreamArgs& args) {
  const Tensor &x = args.x, &weight = args.weight;
  if (!weight.defined() || dtype_size(x.dtype()) != 2 || x.dim(0) > kMaxRows) return false;
  if (x.dim(1) == 0 || !is_packed(x) || !is_packed(weight)) return false;
  return !args.norm_weight.defined() ||
         (is_packed(args.norm_weight) && x.dim(0) <= kMaxNormedRows && x.dim(0) * x.dim(1) <= kMaxNormed);
}

namespace {
RowsStreamArgs stream_args(const MatmulArgs& args) {
  return {{.x = args.x, .out = args.out}, args.weight, args.bias};
}
}  // namespace

void matmul_rows_stream(const OpContext& ctx, const MatmulArgs& args) {
  rows_stream(ctx, stream_args(args));
}
bool matmul_takes_rows_stream(const MatmulArgs& args) {
  return rows_stream_takes(stream_args(args));
}

}  // namespace ladder
