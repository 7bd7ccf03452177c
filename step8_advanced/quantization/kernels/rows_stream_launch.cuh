#pragma once
// Launches of the quantized rows_stream (rows_stream.cuh) for one type of codes.
#include <algorithm>

#include "step8_advanced/quantization/kernels/quantized_matmul_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::records {

// Of a block, bytes. At most two share a multiprocessor, one of this kernel and one of the next.
constexpr int kMaxSharedBytes = 113 << 10, kMinSharedBytes = 77 << 10;
constexpr int kMaxSlots = 5;

template <class K>
void launch(const OpContext& ctx, Product<typename K::T> p, int split) {
  const int all_tiles = ceil_div(p.n, kTileRows);
  const int parts = std::min(ctx.cuda->num_multiprocessors() / split, all_tiles);
  const int most_tiles = ceil_div(all_tiles, parts), groups = ceil_div(most_tiles, K::tiles);
  p.tile_stride = int64_t{p.blocks_of_k} * K::record_bytes;
  p.split = split;
  p.tiles = all_tiles / parts;
  p.one_more = all_tiles % parts;
  p.sums_in_ring = groups == 1;
  auto aligned = [](int bytes) { return ceil_div(bytes, 128) * 128; };
  const int float_bytes = static_cast<int>(sizeof(float));
  const int sums_bytes = aligned(std::min(groups, 2) * WarpSums<K>::size(p.m) * float_bytes);
  const int partner_bytes = split > 1 ? aligned(p.m * WarpSums<K>::kRows * float_bytes) : 0;
  const int items = groups * ceil_div(p.blocks_of_k, kWarps * split);
  const int before_ring = p.sums_in_ring ? 0 : sums_bytes;
  p.slots = std::clamp((kMaxSharedBytes - before_ring - partner_bytes) / K::slot_bytes, 1,
                       std::min(items, kMaxSlots));
  p.ring_at = before_ring;
  p.partner_at = std::max(before_ring + p.slots * K::slot_bytes, sums_bytes);
  const int bytes = std::max(p.partner_at + partner_bytes, kMinSharedBytes);
  auto kernel = rows_stream_kernel<K>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(parts * split);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream_of(ctx);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(split), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = ctx.dependent_launch ? 2 : 1;
  LADDER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p));
}

template <class T>
Product<T> product_of(const QuantizedMatmulArgs& args) {
  const QuantizedWeight& weight = *args.weight;
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
  p.unit = weight.records.unit;
  if (weight.type == WeightCodes::fp8_e4m3 && std::is_same_v<T, __half>) p.unit *= 256;
  return p;
}

// The kernel for the weight's groups and the rows of x.
template <WeightCodes type, bool zeros, int... groups>
void launch_rows_stream(const OpContext& ctx, const QuantizedMatmulArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const Product<T> p = product_of<T>(args);
      const int of_record = record_layout(*args.weight).groups;
      // Two blocks of two tiles each read all of x; as a cluster they have four tiles and half of x each. A row's bits may not
      // depend on how many rows there are, so their number does not count here.
      const int most_tiles = ceil_div(ceil_div(p.n, kTileRows), ctx.cuda->num_multiprocessors());
      const int split = type == WeightCodes::int4 && most_tiles <= 2 ? 2 : 1;
      constexpr int kTiles = type == WeightCodes::int4 ? 4 : 2, kMostTiles = 7;
      const auto launch_groups = [&](auto count) {
        constexpr int kGroups = decltype(count)::value;
        if (of_record != kGroups) return;
        if (p.m <= 8)
          launch<Kind<T, type, 1, kGroups, zeros, kTiles>>(ctx, p, split);
        else if (type != WeightCodes::int4 || most_tiles <= kTiles)
          launch<Kind<T, type, 2, kGroups, zeros, kTiles>>(ctx, p, split);
        else  // x's bytes count here, and more tiles share one read of them
          launch<Kind<T, type, 2, kGroups, zeros, kMostTiles>>(ctx, p, split);
      };
      (launch_groups(std::integral_constant<int, groups>{}), ...);
    }
  });
}

}  // namespace ladder::records
