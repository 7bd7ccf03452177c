#pragma once
// Launches of the quantized rows_stream (rows_stream.cuh) for one type of codes.
#include <algorithm>

#include "step8_advanced/quantization/kernels/cluster_launch.cuh"
#include "step8_advanced/quantization/kernels/rows_stream_cuda.h"
#include "step8_advanced/quantization/kernels/rows_stream_kernel.cuh"
#include "step8_advanced/quantization/kernels/weight_records.h"

namespace ladder::records {

// Of a block, bytes. A kernel that is let in early finds multiprocessors that are empty while others are still taken: if two of its
// blocks fit on one they crowd there, and the others idle. So a product of a layer that is let in so (down, behind gate_up's two blocks) takes
// more than half of what a multiprocessor has, and little more. When all products were let in so, one request of the 8B shape took
// 2.57 ms a token with half of it on an H200, 2.23 with all, 2.03 with 118 KB. A product alone leaves room for a block of the next
// one, which is as fast or faster by a tenth. Many rows of x take what they can get.
//
// What finds its place beside the kernel before, of whose blocks each multiprocessor has one, asks for records while that one multiplies. It
// is to be let in when a warp of each of its blocks has asked for all of its own, x included: at once it would stand in front of x. So are
// a layer's normed products behind others, and o, whose whole share is in the ring: 40.4 us a layer where down lets qkv in at once, so
// 39.8, and 39.2 with o in half of shared memory. A normed product itself lets in at once what is behind it, attention with no weights, or
// down, for which there is no room beside it.
constexpr int kFixedBytes = 512;  // what the kernel has beside the launch's, rounded up
constexpr int kMaxSharedBytes = (226 << 10) - kFixedBytes;
constexpr int kOverHalfOfShared = 118 << 10, kHalfOfShared = 112 << 10;
constexpr int kMinSharedBytes = 77 << 10;

// Rows of x that come from L2 through registers wait behind what of the weight is under way, and L1, which they pass, has what shared
// memory leaves: with three slots 16 rows of 8192 x 8192 took 14.5 us and 8 rows 11.8, with two 13.9 and 11.1. A third one keeps memory
// at work while a group's sums are added. One row in shared memory waits for five slots of a cluster's eight tiles, too: 12.6 us, with
// two 10.9.
template <class K>
constexpr int most_slots(int groups) {
  return K::shared_x && K::turns == 1 ? kMaxSlots : groups > 1 ? 3 : 2;
}

template <class K>
void launch(const OpContext& ctx, Product<typename K::T> p, int split) {
  const int units = ceil_div(p.width(), kTileRows);
  const int parts = std::min(K::blocks * ctx.cuda->num_multiprocessors() / split, units);
  const int most_units = ceil_div(units, parts), of_group = K::tiles / p.unit_tiles();
  const int64_t tile_stride = int64_t{p.blocks_of_k} * K::record_bytes;
  p.unit_stride = tile_stride;
  p.odd_tile = p.paired() ? units * tile_stride : tile_stride;
  p.two_tiles = p.paired() ? tile_stride : 2 * tile_stride;
  p.split = split, p.log_split = split / 2;
  p.units = units / parts;
  p.one_more = units % parts;
  const int groups = ceil_div(most_units, of_group);
  for (int more = 0; more < 2; ++more) {
    const int part = p.units + more, count = std::min(groups, part);
    p.part[more] = {count, part / count, part % count};
  }
  p.sums_in_ring = groups == 1;
  auto aligned = [](int bytes) { return ceil_div(bytes, 128) * 128; };
  const int float_bytes = static_cast<int>(sizeof(float));
  const int sums_bytes = aligned(std::min(groups, K::sums_places) * WarpSums<K>::size(p.m) * float_bytes);
  const int partner_bytes = split > 1 ? aligned(p.m * WarpSums<K>::kRows * float_bytes) : 0;
  p.rounds = ceil_div(p.blocks_of_k, kWarps * split);
  const int items = groups * p.rounds * K::turns;
  const int x_bytes = K::shared_x ? aligned(p.m * p.rounds * kWarps * kBlockColumns * 2) : 0;
  p.x_at = p.sums_in_ring ? 0 : sums_bytes;
  const int before_ring = p.x_at + x_bytes;
  const bool normed = p.norm_weight != nullptr, alone = !normed && p.epilogue == Epilogue::store;
  const auto slots_of = [&](int room) {
    return std::clamp((room - before_ring - partner_bytes) / K::slot_bytes, 1,
                      std::min(items, most_slots<K>(groups)));
  };
  const bool whole_share = K::leaves_room && slots_of(kHalfOfShared) == items;
  const bool leaves_half = normed || alone || whole_share || K::blocks > 1;
  p.slots = slots_of(K::tiles > 4     ? kMaxSharedBytes
                     : leaves_half    ? kHalfOfShared
                     : K::octets == 1 ? kOverHalfOfShared
                                      : kMaxSharedBytes);
  // What follows another product has x in L2, as that one has just written it. x of a product alone may come from memory, behind
  // what has been asked for: 8 rows of 4096 x 4096 take 4.0 us, behind two slots 4.4.
  const int most_early = alone ? 1 : whole_share ? p.slots : K::shared_x && K::blocks == 1 ? 2 : 1;
  p.early = std::min(K::leaves_room ? most_early : 1, p.slots);
  p.lets_in_at_once = normed || !K::leaves_room;
  p.ring_at = before_ring;
  p.partner_at = std::max(before_ring + p.slots * K::slot_bytes, sums_bytes);
  const int least = leaves_half ? kMinSharedBytes : kOverHalfOfShared;
  const int bytes = std::max(p.partner_at + partner_bytes, least);
  auto kernel = rows_stream_kernel<K>;
  // Where registers leave room for the next kernel's block shared memory must, too: the driver gives the rest to L1.
  if (ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), bytes) && K::leaves_room)
    LADDER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared));
  launch_in_clusters(ctx, kernel, split, parts * split, kThreads, bytes, p);
}

// For the sums and a slot of the ring.
template <class K>
constexpr bool has_room() {
  constexpr int float_bytes = static_cast<int>(sizeof(float));
  return K::sums_places * WarpSums<K>::size(K::octets * 8) * float_bytes + K::slot_bytes <= kMaxSharedBytes;
}

template <class T, WeightCodes type>
Product<T> product_of(const QuantizedRowsStreamArgs& args) {
  const QuantizedWeight& weight = *args.weight;
  Product<T> p{};
  p.x = cuda_data<T>(args.x);
  p.bias = cuda_data<T>(args.bias);
  p.norm_weight = cuda_data<T>(args.norm_weight);
  p.records = cuda_data<unsigned char>(weight.records.bytes);
  p.out = args.out.raw();
  p.float_out = args.out.dtype() == DType::f32;
  p.epilogue = args.epilogue;
  p.eps = static_cast<float>(args.eps);
  p.m = static_cast<int>(args.x.dim(0));
  p.n = static_cast<int>(weight.n);
  p.k = static_cast<int>(weight.k);
  p.x_stride = args.x.stride(0);
  p.out_stride = args.out.stride(0);
  p.in_fours = !p.float_out && p.width() % kFour == 0 && p.out_stride % kFour == 0 &&
               reinterpret_cast<uintptr_t>(p.out) % sizeof(Four<T>) == 0;
  p.blocks_of_k = static_cast<int>(weight.records.bytes.dim(1));
  p.unit = weight.records.unit * Codes<T, type>::kUnit;
  return p;
}

// The kernel for the weight's groups and the rows of x.
template <WeightCodes type, bool zeros, int... groups>
void launch_rows_stream(const OpContext& ctx, const QuantizedRowsStreamArgs& args) {
  with_cuda_type(args.x.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2) {
      const Product<T> p = product_of<T, type>(args);
      const int of_record = record_layout(*args.weight).groups;
      // Two blocks of two tiles each read all of x; as a cluster they have four tiles in one group and half of x each, and two of four
      // have eight tiles, in two turns: 16 rows of 8192 x 8192 take 13.5 us, so 13.9. A row's bits may not depend on how many rows there
      // are, so their number does not count here.
      constexpr int kTiles = type == WeightCodes::int4 ? 4 : 2, kMostTiles = 7;
      const int units = ceil_div(p.width(), kTileRows), multiprocessors = ctx.cuda->num_multiprocessors();
      const auto tiles_of = [&](int parts) { return ceil_div(units, parts) * p.unit_tiles(); };
      const bool counts_tiles = type == WeightCodes::int4 && of_record == 1 && !p.paired();
      const bool has_eight = counts_tiles && tiles_of(multiprocessors / 2) == 8;
      const int split =
          has_eight || (type == WeightCodes::int4 && tiles_of(multiprocessors / 2) <= kTiles) ? 2 : 1;
      // Three tiles that four are made for would be multiplied as four: 16 rows of 6144 x 4096 take 7.5 us, so 7.9. Not behind a norm: before
      // the rules above, one request of 8B took 1.83 ms a token with them instead of 1.66.
      const bool has_three =
          counts_tiles && p.norm_weight == nullptr && tiles_of(multiprocessors / split) == 3;
      // Two blocks of a multiprocessor have twice the warps to hide what a tile waits for, if each has whole groups of tiles: gate_up of
      // 8B takes 19.8 us in a layer, so 22.7.
      const bool is_wide = type == WeightCodes::int4 && tiles_of(2 * multiprocessors) >= kTiles;
      const bool shared_x = p.norm_weight != nullptr || (p.m == 1 && p.k <= split * kMaxCopied);
      // x's bytes count where its rows do not come through shared memory, and more tiles share one read of them: gate_up alone with
      // 8 rows takes 17.6 us, so 19.5.
      const bool many_tiles = type == WeightCodes::int4 && !shared_x && (p.m > 8 || !p.paired()) &&
                              tiles_of(multiprocessors / split) > kTiles;
      const auto launch_groups = [&](auto count) {
        constexpr int kGroups = decltype(count)::value,
                      kMany = type == WeightCodes::int4 ? kMostTiles : kTiles;
        using Many = Kind<T, type, 1, kGroups, zeros, kMany, false>;
        using ManyRows = Kind<T, type, 2, kGroups, zeros, kMany, false>;
        if (of_record != kGroups) return;
        if constexpr (type == WeightCodes::int4 && kGroups == 1) {
          const auto launch_tiles = [&](auto tiles) {
            constexpr int kExact = decltype(tiles)::value;
            if (shared_x)
              launch<Kind<T, type, 1, kGroups, zeros, kExact, true>>(ctx, p, split);
            else if (p.m <= 8)
              launch<Kind<T, type, 1, kGroups, zeros, kExact, false>>(ctx, p, split);
            else
              launch<Kind<T, type, 2, kGroups, zeros, kExact, false>>(ctx, p, split);
          };
          if (has_eight) return launch_tiles(std::integral_constant<int, 8>{});
          if (has_three) return launch_tiles(std::integral_constant<int, 3>{});
        }
        if (shared_x && is_wide)
          launch<Kind<T, type, 1, kGroups, zeros, kTiles, true, 2>>(ctx, p, split);
        else if (shared_x)
          launch<Kind<T, type, 1, kGroups, zeros, kTiles, true>>(ctx, p, split);
        else if (p.m <= 8 && many_tiles && has_room<Many>())
          launch<Many>(ctx, p, split);
        else if (p.m <= 8 && is_wide)
          launch<Kind<T, type, 1, kGroups, zeros, kTiles, false, 2>>(ctx, p, split);
        else if (p.m <= 8)
          launch<Kind<T, type, 1, kGroups, zeros, kTiles, false>>(ctx, p, split);
        else if (many_tiles && has_room<ManyRows>())
          launch<ManyRows>(ctx, p, split);
        else
          launch<Kind<T, type, 2, kGroups, zeros, kTiles, false>>(ctx, p, split);
      };
      (launch_groups(std::integral_constant<int, groups>{}), ...);
    }
  });
}

}  // namespace ladder::records
