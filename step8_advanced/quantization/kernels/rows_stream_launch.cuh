#pragma once
// Launches of the quantized rows_stream (rows_stream.cuh) for one type of codes.
#include <algorithm>

#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::records {

// Of a block, bytes. At most two share a multiprocessor, one of this kernel and one of the next.
constexpr int kMaxSharedBytes = 113 << 10, kMinSharedBytes = 77 << 10;

template <class T, WeightCodes type, int tiles, int octets, int groups>
void launch(const OpContext& ctx, Product<T> p, int blocks, int max_shared_bytes = kMaxSharedBytes) {
  const int all_tiles = ceil_div(p.n, kTileRows);
  p.tiles = all_tiles / blocks;
  p.one_more = all_tiles % blocks;
  p.sums_in_ring = p.tiles + (p.one_more > 0) <= tiles;
  auto aligned = [](int bytes) { return ceil_div(bytes, 128) * 128; };
  const int sums_bytes = kWarps * p.m * WarpSums<tiles>::kStride * static_cast<int>(sizeof(float));
  const int slot_bytes = kWarps * tiles * p.record_bytes;
  const int items = ceil_div(p.tiles + (p.one_more > 0), tiles) * ceil_div(p.blocks_of_k, kWarps);
  const int outside = aligned(kWarps * 8 * 16) + (p.sums_in_ring ? 0 : aligned(sums_bytes));
  p.slots = std::clamp((max_shared_bytes - outside) / slot_bytes, 1, std::min(items, 16));
  p.sums_at = aligned(kWarps * p.slots * 8);
  p.ring_at = p.sums_at + (p.sums_in_ring ? 0 : aligned(sums_bytes));
  const int bytes = std::max({p.ring_at + p.slots * slot_bytes, p.sums_at + sums_bytes, kMinSharedBytes});
  auto kernel = rows_stream_kernel<T, type, tiles, octets, groups>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(bytes), p);
}

template <class T>
Product<T> product_of(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  const RecordLayout layout = record_layout(weight);
  const DType scales = weight.records.scales;
  Product<T> p{};
  p.x = cuda_data<T>(args.x);
  p.bias = cuda_data<T>(args.bias);
  p.records = cuda_data<unsigned char>(weight.records.bytes);
  p.out = args.out.raw();
  p.float_out = args.out.dtype() == DType::f32;
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.x_stride = args.x.stride(0);
  p.out_stride = args.out.stride(0);
  p.blocks_of_k = static_cast<int>(weight.records.bytes.dim(1));
  p.record_bytes = static_cast<int>(layout.bytes());
  p.scales_at = static_cast<int>(layout.codes_bytes());
  p.zeros_at = layout.zeros ? static_cast<int>(layout.codes_bytes() + layout.scales_bytes()) : 0;
  p.scale_bits = scales == DType::f32    ? ScaleBits::f32
                 : scales == DType::bf16 ? ScaleBits::bf16
                                         : ScaleBits::f16;
  return p;
}

// The kernel for the weight's groups and the rows of x. More tiles of a warp share what it has loaded of x.
template <WeightCodes type, int tiles, int... groups>
void launch_rows_stream(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const Product<T> p = product_of<T>(args);
      const int blocks = std::min(ctx.cuda->num_multiprocessors(), ceil_div(p.n, kTileRows));
      const int of_record = record_layout(*args.weight).groups;
      const auto launch_groups = [&](auto count) {
        constexpr int kGroups = decltype(count)::value;
        if (of_record != kGroups) return;
        if (p.m <= 8)
          launch<T, type, tiles, 1, kGroups>(ctx, p, blocks);
        else
          launch<T, type, tiles, 2, kGroups>(ctx, p, blocks);
      };
      (launch_groups(std::integral_constant<int, groups>{}), ...);
    }
  });
}

}  // namespace ladder::records
