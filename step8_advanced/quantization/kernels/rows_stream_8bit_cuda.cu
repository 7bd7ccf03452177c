// The rung for few rows of rounded activations on a GPU, and the fused product: the weight's codes as they lie, row after row, so that
// the product for many rows (cublaslt_8bit_cuda.cpp) reads the same memory.
#include <algorithm>
#include <optional>

#include "step1_layers/core/packed.h"
#include "step1_layers/core/tensor_map_cuda.h"
#include "step1_layers/linear/fused_epilogue.cuh"
#include "step8_advanced/quantization/kernels/eight_bit_codes.h"
#include "step8_advanced/quantization/kernels/eight_bit_rows_cuda.h"
#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_8bit.cuh"
#include "step8_advanced/quantization/kernels/scaled_sum.cuh"

namespace ladder {

namespace eight_bit {
namespace {

// What makes a column's sums numbers.
template <class T>
struct ColumnScale {
  float scale = 0, bias = 0;

  __device__ ColumnScale(const Product<T>& p, int row, bool exists) {
    if (!exists) return;
    scale = p.weight_scales[row];
    if (p.bias != nullptr) bias = to_float(p.bias[row]);
  }
};

// rows_stream_8bit (sm_90a): x [m, k], up to 16 rows, in codes, or `rounded` of them to be rounded here; codes of weight [n, k], k in
// multiples of 512 and rows at multiples of 16 bytes; a scale for a row of either; out [m, n] in T or f32. silu_and_mul needs whole
// tiles in either half of the weight. A block per multiprocessor has an even share of the weight's tiles of 32 rows. The simple
// version:
//
//   x = codes of x, or of norm(x), in shared memory
//   for each tile of this block:
//     for each 128 columns of a part that are this warpgroup's:
//       sums += codes of both parts of the weight * codes of both parts of x       wgmma, and a float addition
//     add the warpgroups' and the parts' sums, times both scales, and write them as the epilogue says
//
// What makes it fast: wgmma takes codes as they lie in memory. (mma.sync has no E4M3 on Hopper: two conversions a word and two mma in f16
// took 2.4 of 5.7 us for 4096 x 4096, with all of it in shared memory already.) The weight comes before the previous kernel has ended,
// as fast as memory gives it but no faster, so that what does depend on that kernel need not wait; for the same reason the next kernel
// is let in when x is here.
template <class T, class Sum, int octets, int rounded, int packs>
__global__ void __launch_bounds__(kThreads, octets > 1 || rounded > 1 ? 1 : 2)
    rows_stream_8bit(const __grid_constant__ Product<T> p) {
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2 * kMostSlots + 1];
  const uint32_t first_barrier = shared_address(barriers);
  const Ring ring{(shared_address(shared) + 1023) & ~1023u, first_barrier, first_barrier + kMostSlots * 8};
  const uint32_t x_barrier = ring.emptied(kMostSlots);
  if (threadIdx.x == kMultiply) {
    init_barrier(x_barrier, 1);
    for (int slot = 0; slot < p.slots; ++slot) {
      init_barrier(ring.filled(slot), 1);
      init_barrier(ring.emptied(slot), kWarpgroup / kWarp);  // warps multiply
    }
    fence_for_wgmma();
  }
  __syncthreads();
  const Tiles tiles(p);
  if (threadIdx.x >= kMultiply) {
    if (threadIdx.x == kMultiply) copy_stages(p, tiles, ring);
    return;
  }
  unsigned char* const in_shared = shared + (ring.first - shared_address(shared));
  // A thread writes one column of a tile, of so many rows of x.
  const int columns = p.outputs(), rows_at_once = kMultiply / columns;
  const int column = static_cast<int>(threadIdx.x) % columns,
            first_row = static_cast<int>(threadIdx.x) / columns;

  float x_scale[octets];
  Columns x;
  if constexpr (rounded > 0) {
    RowRounding<T, std::is_same_v<Sum, float>, rounded, packs> rounding(p);
    wait_for_previous_kernel();
    rounding.load(p);
    float scales[rounded];
    rounding.store(p, in_shared + p.x_at, scales);
    x_scale[0] = scales[0];
#pragma unroll
    for (int row = 1; row < rounded; ++row)
      if (row == first_row) x_scale[0] = scales[row];
    x = rounding.columns(p, ring.first + p.x_at);
    fence_for_wgmma();
    sync_some(1, kMultiply);
  } else {
    wait_for_previous_kernel();
    x = copy_codes<octets>(p, ring.first + p.x_at, x_barrier);
#pragma unroll
    for (int i = 0; i < octets; ++i) x_scale[i] = p.x_scales[min(first_row + i * rows_at_once, p.m - 1)];
    wait_phase(x_barrier, 0);
  }
  allow_next_kernel();

  GroupProducts<Sum, octets> products{ring, p.slots, static_cast<int>(threadIdx.x) / kWarpgroup};
#pragma unroll 1
  for (int i = 0; i < tiles.count; ++i) {
    const int j = (tiles.begin + i) * columns + column;
    const bool exists = j < p.width();
    const ColumnScale<T> scale(p, j, exists), up_scale(p, p.width() + j, exists && p.paired());
    T residual[octets];
#pragma unroll
    for (int r = 0; r < octets; ++r) {
      const int row = first_row + r * rows_at_once;
      residual[r] = exists && p.epilogue == Epilogue::add && row < p.m
                        ? static_cast<const T*>(p.out)[row * p.out_stride + j]
                        : from_float<T>(0.0f);
    }
    Sum of_thread[4 * octets] = {};
    products.multiply(of_thread, x, p.stages());
    const TileSums<Sum, octets> sums(in_shared + p.sums_at, i);
    sums.store(of_thread, p.m);
    sync_some(1, kMultiply);
    if (!exists) continue;
#pragma unroll
    for (int r = 0; r < octets; ++r) {
      const int row = first_row + r * rows_at_once;
      if (row >= p.m) break;
      const Sum sum = sums.total(row, column);
      const int64_t to = row * p.out_stride + j;
      T* out = static_cast<T*>(p.out) + to;
      if (p.epilogue == Epilogue::silu_and_mul) {
        const Sum up = sums.total(row, column + columns);
        *out = silu_and_mul_of<T>(scaled_sum<float>(sum, scale.scale, x_scale[r], scale.bias),
                                  scaled_sum<float>(up, up_scale.scale, x_scale[r], up_scale.bias));
      } else if (p.epilogue == Epilogue::add) {
        *out = sum_with_residual(residual[r], scaled_sum<float>(sum, scale.scale, x_scale[r], scale.bias));
      } else if (p.float_out) {
        static_cast<float*>(p.out)[to] = scaled_sum<float>(sum, scale.scale, x_scale[r], scale.bias);
      } else {
        *out = scaled_sum<T>(sum, scale.scale, x_scale[r], scale.bias);
      }
    }
  }
}

// Of a block's shared memory, bytes: what x may have, and what there is.
constexpr int kMostOfX = 112 << 10, kMostShared = 222 << 10;

int64_t octets_of(int64_t rows) {
  return ceil_div<int64_t>(rows, 8);
}

template <class T, class Sum, int octets, int rounded, int packs>
void launch(const OpContext& ctx, Product<T> p) {
  const int tiles = ceil_div(p.width(), p.outputs()),
            blocks = std::min(ctx.cuda->num_multiprocessors(), tiles);
  p.tiles = tiles / blocks;
  p.one_more = tiles % blocks;
  const int x_bytes = (rounded > 0 ? rounded : 8 * octets) * p.k,
            stages = (p.tiles + (p.one_more > 0)) * p.stages();
  constexpr int kSumBytes = TileSums<Sum, octets>::kBytes, kAligned = 1024;
  const int room = kMostShared - kAligned - x_bytes - kSumBytes;
  p.slots = std::min({room / kStageBytes / kGroups * kGroups, stages, kMostSlots});
  p.x_at = p.slots * kStageBytes;
  p.sums_at = p.x_at + x_bytes;
  const int bytes = kAligned + p.sums_at + kSumBytes;
  auto kernel = rows_stream_8bit<T, Sum, octets, rounded, packs>;
  // What one block leaves would else be made L1, and the next kernel's would not find it.
  const void* const address = reinterpret_cast<const void*>(kernel);
  if (ctx.cuda->allow_shared_bytes(address, bytes))
    LADDER_CUDA_CHECK(cudaFuncSetAttribute(address, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared));
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), p);
}

template <class T>
Product<T> product_of(const QuantizedRowsStreamArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  Product<T> p{};
  p.x = cuda_data<T>(args.x);
  p.x_stride = args.x.stride(0);
  p.norm_weight = cuda_data<T>(args.norm_weight);
  p.eps = static_cast<float>(args.eps);
  p.rounding = rounding_of(args.activations, args.input_scale);
  p.weight_scales = cuda_data<float>(weight.scales);
  p.bias = cuda_data<T>(args.bias);
  p.out = args.out.raw();
  p.float_out = args.out.dtype() == DType::f32;
  p.epilogue = args.epilogue;
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.part = p.k / kParts;
  p.out_stride = args.out.stride(0);
  // Two codes are an element of 16 bits to the copy engine.
  const int64_t stride = (p.n > 1 ? weight.codes.stride(0) : weight.k) / 2, width = p.width();
  const int halves = p.paired() ? 2 : 1;
  p.weight = tensor_map({.data = weight.codes.raw(),
                         .dtype = DType::f16,
                         .sizes = {p.part / 2, width, halves, kParts, 1},
                         .strides = {stride, stride * width, p.part / 2, stride * weight.n},
                         .box = {kDepth / 2, p.outputs(), halves, kParts, 1}});
  return p;
}

// So many elements has a row that a block's threads have so many packs of each.
template <class T>
constexpr int packs_of_block(int of_thread) {
  return of_thread * kMultiply * Pack<T>::kSize;
}

template <class T, class Sum>
void launch_for_rows(const OpContext& ctx, Product<T> p, const RowCodes* x) {
  if (x != nullptr) {
    p.x_codes = tensor_map({.data = x->codes.raw(),
                            .dtype = DType::f16,
                            .sizes = {kDepth / 2, p.m, p.k / kDepth, 1, 1},
                            .strides = {p.k / 2, kDepth / 2, p.m * p.k / 2, p.m * p.k / 2},
                            .box = {kDepth / 2, 8, p.stages(), 1, 1}});
    p.x_scales = cuda_data<float>(x->scales);
    if (p.m <= 8)
      launch<T, Sum, 1, 0, 0>(ctx, p);
    else
      launch<T, Sum, 2, 0, 0>(ctx, p);
    return;
  }
  if (p.m == 1 && p.k <= packs_of_block<T>(2))
    launch<T, Sum, 1, 1, 2>(ctx, p);
  else if (p.m == 1)
    launch<T, Sum, 1, 1, 8>(ctx, p);
  else if (p.k <= packs_of_block<T>(2))
    launch<T, Sum, 1, 2, 2>(ctx, p);
  else
    launch<T, Sum, 1, 2, 4>(ctx, p);
}

template <class T>
void launch_product(const OpContext& ctx, const QuantizedRowsStreamArgs& args, const RowCodes* x) {
  if (args.activations->is_float)
    launch_for_rows<T, float>(ctx, product_of<T>(args), x);
  else
    launch_for_rows<T, int32_t>(ctx, product_of<T>(args), x);
}

// x: nullptr: the blocks round it.
void run(const OpContext& ctx, const QuantizedRowsStreamArgs& args, const RowCodes* x) {
  if (args.x.dtype() == DType::f16)
    launch_product<__half>(ctx, args, x);
  else
    launch_product<__nv_bfloat16>(ctx, args, x);
}

}  // namespace
}  // namespace eight_bit

bool rows_stream_8bit_takes(int64_t rows, int64_t columns) {
  using namespace eight_bit;
  return rows <= kMaxRowsStreamed && columns % (kParts * kGroups * kDepth) == 0 &&
         (rounded_by_blocks(rows, columns) || octets_of(rows) * 8 * columns <= kMostOfX);
}

bool rounded_by_blocks(int64_t rows, int64_t columns) {
  using eight_bit::packs_of_block;
  return rows <= 2 && columns <= packs_of_block<__half>(rows == 1 ? 8 : 4);
}

void rows_stream_8bit(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  if (rounded_by_blocks(args.x.dim(0), args.weight->k)) return eight_bit::run(ctx, args, nullptr);
  std::optional<Arena> own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own.emplace(ctx.device);
  ArenaScope scope(arena);
  const RowCodes x =
      quantized_rows(ctx, arena, args.x, *args.activations, args.input_scale, {args.norm_weight, args.eps});
  eight_bit::run(ctx, args, &x);
}

bool quantized_matmul_takes_rows_stream_8bit(const QuantizedMatmulArgs& args) {
  return takes_eight_bit_codes(*args.weight, args.activations, args.x) &&
         rows_stream_8bit_takes(args.x.dim(0), args.weight->k);
}

int64_t quantized_matmul_rows_stream_8bit_workspace(const QuantizedMatmulArgs& args) {
  return args.x.dim(0) * (args.weight->k + 4);
}

void rows_stream_8bit_of_codes(const OpContext& ctx, const QuantizedMatmulArgs& args, const RowCodes& x) {
  eight_bit::run(ctx, {{.x = args.x, .out = args.out}, args.weight, args.bias, args.activations}, &x);
}

void quantized_matmul_rows_stream_8bit(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  rows_stream_8bit(
      ctx, {{.x = args.x, .out = args.out}, args.weight, args.bias, args.activations, args.input_scale});
}

}  // namespace ladder
