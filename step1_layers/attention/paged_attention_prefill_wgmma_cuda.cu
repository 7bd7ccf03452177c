// Attention of many query rows on Hopper's asynchronous matrix instructions.
#include "step1_layers/attention/paged_attention_prefill_wgmma_cuda.cuh"
#include "step1_layers/core/packed.h"

namespace ladder {

using namespace wgmma_attention;

namespace {

// wgmma (sm_90a)
// bf16 or f16, head size 128, any block size, rows in whole 16-byte packs. After FlashAttention-3 (Shah et
// al., 2024, arXiv 2407.08608). The rung below spends its time on bringing fragments from shared memory to
// registers, and waits between its products. Here a warpgroup's matrix instructions read keys and values
// where they lie, and run while its threads do something else: the weighted sum of one tile is computed
// while the softmax of the next is computed. Two warpgroups have 64 rows each; the four warps of a third only
// copy, through the block table, and hand tiles over by barriers in shared memory, so that copies too are a
// tile ahead. One block runs on a multiprocessor and draws item after item from a counter, so that none waits
// for the longest; the copies for the next item run under the last tiles of this one. Batch invariant where
// keys are not cut into parts, as the rung below.

// The warpgroups that compute, 64 rows each.
template <class T>
__device__ void attend(const Attention<T>& a, const PrefillLine& line, PrefillPart<kDim>* parts,
                       const Exchange& with) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int warp_row = threadIdx.x / kWarp * 16 - 64, my_row = warp_row + g;  // and my_row + 8
  // The first tiles as wgmma takes them; their addresses count in units of 16 bytes.
  const uint64_t keys_tile = wgmma_tile(with.tile(kKeysOf, 0));
  const uint64_t values_tile = wgmma_tile(with.tile(kValues, 0), kHalfBytes);
  int used = 0;  // tiles of values, of all items

  auto wait_for = [&](Kind kind, int count) {
    wait_phase(with.barrier(with.full, kind, stage_of(kind, count)), parity_of(kind, count));
  };
  auto release = [&](Kind kind, int count) {
    __syncwarp();
    if (lane == 0) arrive(with.barrier(with.empty, kind, stage_of(kind, count)));
  };

  for (int count = 0;; ++count) {
    wait_for(kQueries, count);
    const PrefillItem& item = with.items[count % 2];
    if (item.rows == 0) return;
    uint32_t queries[kDim / 16][4], weights[kKeys / 16][4];
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      load_matrices(queries[step],
                    with.tile(kQueries, 0) + place(warp_row + lane % 16, step * 2 + lane / 16));
    release(kQueries, count);

    const int begin = item.begin, end = item.end;
    const int position[2] = {item.position(line, my_row), item.position(line, my_row + 8)};
    const int first_position = item.position(line, warp_row);
    float scores[64], out[64];
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, correction[2];
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] = 0;

    auto start_scores = [&](int number) {
      const uint64_t keys = keys_tile + number % kStages * (kTileBytes / 16);
      keep_in_place(scores);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step)
        wgmma_64x128x16<false, T>(scores, queries[step], keys + step / 4 * (kHalfBytes / 16) + step % 4 * 2,
                                  step > 0);
      wgmma_commit();
    };
    auto start_sum = [&](int number) {
      const uint64_t values = values_tile + number % kStages * (kTileBytes / 16);
      keep_in_place(out);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        wgmma_64x128x16<true, T>(out, weights[step], values + step * (2048 / 16), true);
      wgmma_commit();
    };
    auto end_sum = [&] {
      wgmma_wait<0>();
      keep_in_place(out);
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) keep_in_place(weights[step]);
    };
    // Masks the scores of a tile and turns them into weights. True: the sums so far of a row of this warp
    // must be multiplied by `correction`.
    auto soften = [&](int tile) {
      if ((tile + 1) * kKeys > first_position + 1) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int seen = position[half] - tile * kKeys - 2 * t;
#pragma unroll
          for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              if (j * 8 + e > seen) scores[4 * j + 2 * half + e] = -INFINITY;
        }
      }
      bool rescale = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float tile_largest = -INFINITY;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
          tile_largest = fmaxf(tile_largest, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
        tile_largest = warp_max<4>(tile_largest) * a.scale;
        correction[half] = 1;
        if (tile_largest > largest[half]) {
          correction[half] = exp2_fast(largest[half] - tile_largest);
          largest[half] = tile_largest;
          rescale = true;
        }
        // A row that has seen no key yet (of a part) has weights of 0, not of NaN.
        const float offset = largest[half] == -INFINITY ? 0.0f : largest[half];
        float tile_sum = 0;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[4 * j + 2 * half + e];
            score = exp2_fast(fmaf(score, a.scale, -offset));
            tile_sum += score;
          }
        sum[half] = sum[half] * correction[half] + tile_sum;
      }
      return __any_sync(kAllLanes, rescale) != 0;
    };
    auto pack_weights = [&] {
#pragma unroll
      for (int i = 0; i < 32; ++i) weights[i / 4][i % 4] = pack_pair<T>(scores[2 * i], scores[2 * i + 1]);
    };

    wait_for(kKeysOf, used);
    start_scores(used);
    wgmma_wait<0>();
    keep_in_place(scores);
    release(kKeysOf, used);
    soften(begin);
    pack_weights();
    if (begin + 1 < end) wait_for(kKeysOf, used + 1);
#pragma unroll 1
    for (int tile = begin + 1; tile < end; ++tile, ++used) {
      start_scores(used + 1);
      wait_for(kValues, used);
      start_sum(used);
      wgmma_wait<1>();
      keep_in_place(scores);
      release(kKeysOf, used + 1);
      const bool rescale = soften(tile);
      keep_in_place(scores);
      // The keys of the next round are waited for here: without a loop between them the compiler would wait
      // for the sum first and compute the softmax then. (Not the values of the next round: the last are
      // handed over when those before have been released.)
      if (tile + 1 < end) wait_for(kKeysOf, used + 2);
      end_sum();
      if (rescale) {  // decided by each warp for itself: nothing in here concerns the warpgroup
#pragma unroll
        for (int i = 0; i < 64; ++i) out[i] *= correction[i / 2 % 2];
      }
      release(kValues, used);
      pack_weights();
    }
    wait_for(kValues, used);
    start_sum(used);
    end_sum();
    release(kValues, used);
    ++used;

    if (item.parts > 1) {
      PrefillPart<kDim>& part = parts[int64_t{item.index} * line.parts + item.part];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = my_row + half * 8;
        const float total = warp_sum<4>(sum[half]);
        if (t == 0) {
          part.largest[row] = largest[half];
          part.sum[row] = total;
        }
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j)
          *reinterpret_cast<float2*>(part.out[row] + j * 8 + 2 * t) = {out[4 * j + 2 * half],
                                                                       out[4 * j + 2 * half + 1]};
      }
      continue;
    }
    // Through shared memory, so that rows are written in whole packs.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = my_row + half * 8;
      const float total = warp_sum<4>(sum[half]), factor = 1 / total;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        store_shared(with.results() + place(row, j) + t * 4,
                     pack_pair<T>(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor));
      if (t == 0 && row < item.rows)
        a.store_lse(item.first_token + item.token(line, row), item.head(line, row), largest[half], total);
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < 16 * kChunks / kWarp; ++step) {
      const int index = step * kWarp + lane, row = warp_row + index / kChunks, c = index % kChunks;
      if (row < item.rows)
        *reinterpret_cast<uint4*>(a.out + (item.first_token + item.token(line, row)) * a.out_token +
                                  item.head(line, row) * a.out_head + c * 8) =
            load_shared(with.results() + place(row, c));
    }
    __syncwarp();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma(Attention<T> a, PrefillLine line, PrefillPart<kDim>* parts, int* counters) {
#ifndef LADDER_WGMMA
  __trap();
#endif
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[2][3 * kStages];
  __shared__ PrefillItem items[2];
  Exchange with;
  with.tiles = (shared_address(shared) + 1023) / 1024 * 1024;
  with.full = shared_address(barriers[0]);
  with.empty = shared_address(barriers[1]);
  with.items = items;
  allow_next_kernel();
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3 * kStages; ++i) {
      init_barrier(with.full + i * 8, kWarpgroup);                        // threads copy
      init_barrier(with.empty + i * 8, kConsumers * kWarpgroup / kWarp);  // warps compute
    }
    fence_for_wgmma();
  }
  wait_for_previous_kernel();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    copy_items(a, line, with, counters);
  } else {
    take_registers<232>();
    attend(a, line, parts, with);
  }
}

template <class T>
void launch(const OpContext& ctx, const Attention<T>& a, int64_t max_seq_len, bool with_single) {
  auto kernel = attention_wgmma<T>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), kShared);
  run_prefill<kDim>(ctx, a, kKeys, with_single, !with_single, max_seq_len, 1,
                    [&](const PrefillLine& line, int64_t blocks, PrefillPart<kDim>* parts) {
                      blocks = std::min<int64_t>(blocks, ctx.cuda->num_multiprocessors());
                      launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, kShared, a, line,
                                    parts, ctx.cuda->counters());
                    });
}

}  // namespace

void attention_prefill_wgmma(const OpContext& ctx, const PagedAttentionArgs& args, bool with_single) {
  with_cuda_type(args.q.dtype(), [&](auto tag) {
    using T = decltype(tag);
    if constexpr (sizeof(T) == 2)
      launch(ctx, attention_call<T>(args), args.metadata.max_seq_len, with_single);
  });
}

void paged_attention_cuda_wgmma(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens > 0) attention_prefill_wgmma(ctx, args, true);
}

bool paged_attention_takes_wgmma(const PagedAttentionArgs& args) {
  return args.q.dim(2) == kDim && paged_attention_takes_tensor_core(args);
}

}  // namespace ladder
