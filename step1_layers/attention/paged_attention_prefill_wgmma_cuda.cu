// Attention of many query rows on Hopper's asynchronous matrix instructions.
#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"
#include "step1_layers/core/packed.h"
#include "step1_layers/core/wgmma.cuh"

namespace ladder {

namespace {

// wgmma (sm_90a)
// bf16 or f16, head size 128, any block size, rows in whole 16-byte packs. After FlashAttention-3 (Shah et
// al., 2024, arXiv 2407.08608). The rung below spends its time on bringing fragments from shared memory to
// registers, and waits between its products. Here a warpgroup's matrix instructions read keys and values
// where they lie, and run while its threads do something else: the scores of the next tile and the weighted
// sum of this one are under way while the softmax between them is computed. Two warpgroups have 64 rows each,
// in turns on the tensor cores by themselves; the four warps of a third only copy, through the block table,
// and hand tiles over by barriers in shared memory, so that copies too are a tile ahead. One block runs on a
// multiprocessor and takes item after item; the copies of the next begin under the last tiles of this one.
// Batch invariant where keys are not cut into parts, as the rung below.
constexpr int kDim = 128, kKeys = 128, kStages = 2, kConsumers = 2;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kTileBytes = kKeys * kDim * 2, kHalfBytes = kTileBytes / 2;
constexpr int kQueryBytes = kPrefillRows * kDim * 2, kQueryHalf = kQueryBytes / 2;
constexpr int kShared = 1024 + kQueryBytes + 2 * kStages * kTileBytes;  // tiles stand at multiples of 1024

// A row's weights are kept relative to a score that is its largest or less than 2^8 below it: see
// tensor_core.
constexpr float kSlack = 8;

__device__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Addresses in shared memory.
struct Places {
  uint32_t queries, keys, values;
  uint32_t barriers;  // keys full, keys empty, values full, values empty: a barrier per stage each

  __device__ uint32_t barrier(int kind, int stage) const { return barriers + (kind * kStages + stage) * 8; }
};
enum { kKeysFull, kKeysEmpty, kValuesFull, kValuesEmpty };

// Units go out to blocks forwards and backwards in turn: they grow shorter along the line.
__device__ int unit_of(int round) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}
template <class T, class Fn>
__device__ void for_each_item(const Attention<T>& a, const PrefillLine& line, Fn&& fn) {
  PrefillItem item;
  for (int round = 0; find_item(a, line, unit_of(round), item); ++round)
    if (item.part < item.parts) fn(item);
}

// The warps that copy. A thread copies a chunk of sixteen rows of each tile.
template <class T>
__device__ void copy_tiles(const Attention<T>& a, const PrefillLine& line, const Places& at) {
  constexpr int kChunks = kDim / 8, kRowsAtOnce = kWarpgroup / kChunks, kSteps = kKeys / kRowsAtOnce;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % kWarp, warp = thread / kWarp;
  const int chunk = thread % kChunks, first_row = thread / kChunks;
  const uint32_t to_chunk = static_cast<uint32_t>(chunk / 8 * kHalfBytes) + swizzled(first_row, chunk % 8);
  // Each lane finds where one of the rows stands that its warp copies, in units of 16 bytes.
  const int my_row = lane / 2 * kRowsAtOnce + warp * 2 + lane % 2;

  int copied[2] = {0, 0};  // tiles of keys, of values
  uint32_t waiting = 0;    // the barrier of the copies that are under way
  auto hand_over = [&] {   // all copies but the last `pending` groups are there
    fence_for_wgmma();
    arrive(waiting);
  };
  auto copy = [&](int kind, const T* from, uint32_t offset, int valid) {
    const int count = copied[kind]++, stage = count % kStages;
    wait_phase(at.barrier(kind == 0 ? kKeysEmpty : kValuesEmpty, stage), count / kStages % 2 ^ 1);
    const uint32_t to = (kind == 0 ? at.keys : at.values) + stage * kTileBytes + to_chunk;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t row = __shfl_sync(kAllLanes, offset, step * 2 + lane / kChunks);
      const bool copies = step * kRowsAtOnce + first_row < valid;
      copy_async(to + step * kRowsAtOnce * 128, from + uint64_t{copies ? row : 0} * 8, copies);
    }
    commit_copies();
    if (waiting != 0) {
      wait_copies<1>();
      hand_over();
    }
    waiting = at.barrier(kind == 0 ? kKeysFull : kValuesFull, stage);
  };

  for_each_item(a, line, [&](const PrefillItem& item) {
    const int32_t* table = a.block_tables + item.seq * a.table_stride;
    auto find_block = [&](int tile) {
      const int key = tile * kKeys + my_row;
      return tile < item.end && key < item.keys ? table[line.block_size(key)] : 0;
    };
    auto offset = [&](int tile, int block, int64_t block_stride, int64_t slot_stride) {
      const int key = tile * kKeys + my_row, slot = key - line.block_size(key) * a.block_size;
      return static_cast<uint32_t>(block) * static_cast<uint32_t>(block_stride / 8) +
             static_cast<uint32_t>(slot) * static_cast<uint32_t>(slot_stride / 8);
    };
    const T* k = a.k + item.kv_head * a.k_head + chunk * 8;
    const T* v = a.v + item.kv_head * a.v_head + chunk * 8;
    auto copy_keys = [&](int tile, int block) {
      copy(0, k, offset(tile, block, a.k_block, a.k_slot), item.keys - tile * kKeys);
    };
    int block = find_block(item.begin), next = find_block(item.begin + 1);
    copy_keys(item.begin, block);
    for (int tile = item.begin; tile < item.end; ++tile) {
      const int after = find_block(tile + 2);
      if (tile + 1 < item.end) copy_keys(tile + 1, next);
      copy(1, v, offset(tile, block, a.v_block, a.v_slot), item.keys - tile * kKeys);
      block = next;
      next = after;
    }
  });
  if (waiting != 0) {
    wait_copies<0>();
    hand_over();
  }
}

// The warpgroups that compute, 64 rows each.
template <class T>
__device__ void attend(const Attention<T>& a, const PrefillLine& line, PrefillPart<kDim>* parts,
                       const Places& at) {
  const int group = threadIdx.x / kWarpgroup - 1, thread = threadIdx.x % kWarpgroup;
  const int lane = thread % kWarp, warp = thread / kWarp, g = lane / 4, t = lane % 4;
  const int group_row = group * 64, my_row = group_row + warp * 16 + g;  // and my_row + 8
  // The tiles as wgmma takes them; their addresses count in units of 16 bytes.
  const uint64_t queries_tile = wgmma_tile(at.queries + __shfl_sync(kAllLanes, group_row, 0) * 128);
  const uint64_t keys_tile = wgmma_tile(at.keys), values_tile = wgmma_tile(at.values, kHalfBytes);
  int used = 0;  // tiles, of all items

  auto place = [&](int row, int chunk) {
    return at.queries + static_cast<uint32_t>(chunk / 8 * kQueryHalf) + swizzled(row, chunk % 8);
  };
  auto release = [&](int kind, int tile) {
    __syncwarp();
    if (lane == 0) arrive(at.barrier(kind, tile % kStages));
  };
  auto wait_for = [&](int kind, int tile) {
    wait_phase(at.barrier(kind, tile % kStages), tile / kStages % 2);
  };

  for_each_item(a, line, [&](const PrefillItem& item) {
#pragma unroll
    for (int step = 0; step < 64 * (kDim / 8) / kWarpgroup; ++step) {
      const int index = step * kWarpgroup + thread, row = group_row + index / (kDim / 8),
                c = index % (kDim / 8);
      const int from = row < item.rows ? row : 0;
      copy_async(place(row, c),
                 a.q + (item.first_token + item.token(line, from)) * a.q_token +
                     item.head(line, from) * a.q_head + c * 8,
                 row < item.rows);
    }
    commit_copies();
    wait_copies<0>();
    fence_for_wgmma();
    sync_warpgroup(1 + group);

    const int position[2] = {item.position(line, my_row), item.position(line, my_row + 8)};
    const int first_position = item.position(line, group_row);
    float scores[64], out[64];
    uint32_t weights[32];
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, correction[2];
#pragma unroll
    for (int i = 0; i < 64; ++i) out[i] = 0;

    auto start_scores = [&](int tile) {
      const uint64_t keys = keys_tile + tile % kStages * (kTileBytes / 16);
      keep_in_place(scores);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step)
        wgmma_64x128x16<T>(scores, queries_tile + step / 4 * (kQueryHalf / 16) + step % 4 * 2,
                           keys + step / 4 * (kHalfBytes / 16) + step % 4 * 2, step > 0);
      wgmma_commit();
    };
    auto start_sum = [&](int tile) {
      const uint64_t values = values_tile + tile % kStages * (kTileBytes / 16);
      keep_in_place(out);
      keep_in_place(weights);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        wgmma_64x128x16<true, T>(out, weights + step * 4, values + step * (2048 / 16));
      wgmma_commit();
    };
    // Masks the scores of a tile and turns them into weights; the sums so far must be multiplied by
    // `correction`, where it returns true.
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
        if (tile_largest > largest[half] + kSlack) {
          correction[half] = exp2_fast(largest[half] - tile_largest);
          largest[half] = tile_largest;
          rescale = true;
        }
        // A row that has seen no key yet (of a part) has weights of 0, not of NaN.
        const float least = largest[half] == -INFINITY ? 0.0f : largest[half];
        float tile_sum = 0;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[4 * j + 2 * half + e];
            score = exp2_fast(fmaf(score, a.scale, -least));
            tile_sum += score;
          }
        sum[half] = sum[half] * correction[half] + tile_sum;
      }
      return __any_sync(kAllLanes, rescale) != 0;
    };
    auto pack_weights = [&] {
#pragma unroll
      for (int i = 0; i < 32; ++i) weights[i] = pack_pair<T>(scores[2 * i], scores[2 * i + 1]);
    };

    wait_for(kKeysFull, used);
    start_scores(used);
    wgmma_wait<0>();
    keep_in_place(scores);
    release(kKeysEmpty, used);
    soften(item.begin);
    pack_weights();
#pragma unroll 1
    for (int tile = item.begin + 1; tile < item.end; ++tile) {
      wait_for(kKeysFull, used + 1);
      start_scores(used + 1);
      wait_for(kValuesFull, used);
      start_sum(used);
      wgmma_wait<1>();
      keep_in_place(scores);
      release(kKeysEmpty, used + 1);
      const bool rescale = soften(tile);
      keep_in_place(
          scores);  // the softmax comes before the wait: the branch keeps the compiler from moving it
      if (rescale) {
        wgmma_wait<0>();
        keep_in_place(out);
#pragma unroll
        for (int i = 0; i < 64; ++i) out[i] *= correction[i / 2 % 2];
      }
      wgmma_wait<0>();
      keep_in_place(out);
      keep_in_place(weights);
      release(kValuesEmpty, used);
      pack_weights();
      ++used;
    }
    wait_for(kValuesFull, used);
    start_sum(used);
    wgmma_wait<0>();
    keep_in_place(out);
    release(kValuesEmpty, used);
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
      sync_warpgroup(1 + group);  // all are done with the queries
      return;
    }
    // Through the place of the warpgroup's queries, so that rows are written in whole packs.
    sync_warpgroup(1 + group);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = my_row + half * 8;
      const float total = warp_sum<4>(sum[half]), factor = 1 / total;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
        store_shared(place(row, j) + t * 4,
                     pack_pair<T>(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor));
      if (t == 0 && row < item.rows)
        a.store_lse(item.first_token + item.token(line, row), item.head(line, row), largest[half], total);
    }
    __syncwarp();
#pragma unroll
    for (int step = 0; step < 16 * (kDim / 8) / kWarp; ++step) {
      const int index = step * kWarp + lane, row = group_row + warp * 16 + index / (kDim / 8),
                c = index % (kDim / 8);
      if (row < item.rows)
        *reinterpret_cast<uint4*>(a.out + (item.first_token + item.token(line, row)) * a.out_token +
                                  item.head(line, row) * a.out_head + c * 8) = load_shared(place(row, c));
    }
    sync_warpgroup(1 + group);  // the queries' place is free again
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    attention_wgmma(Attention<T> a, PrefillLine line, PrefillPart<kDim>* parts) {
#ifndef LADDER_WGMMA
  __trap();
#endif
  extern __shared__ unsigned char shared[];
  __shared__ uint64_t barriers[4 * kStages];
  Places at;
  at.queries = (shared_address(shared) + 1023) / 1024 * 1024;
  at.keys = at.queries + kQueryBytes;
  at.values = at.keys + kStages * kTileBytes;
  at.barriers = shared_address(barriers);
  allow_next_kernel();
  wait_for_previous_kernel();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage)
      for (int kind : {kKeysFull, kKeysEmpty, kValuesFull, kValuesEmpty})
        init_barrier(at.barrier(kind, stage), kind == kKeysFull || kind == kValuesFull
                                                  ? kWarpgroup                         // threads copy
                                                  : kConsumers * kWarpgroup / kWarp);  // warps compute
    fence_for_wgmma();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<40>();
    copy_tiles(a, line, at);
  } else {
    take_registers<232>();
    attend(a, line, parts, at);
  }
}

template <class T>
void launch(const OpContext& ctx, const Attention<T>& a, int64_t max_seq_len, bool with_single) {
  auto kernel = attention_wgmma<T>;
  LADDER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  run_prefill<kDim>(ctx, a, kKeys, with_single, !with_single, max_seq_len, 1,
                    [&](const PrefillLine& line, int64_t blocks, PrefillPart<kDim>* parts) {
                      blocks = std::min<int64_t>(blocks, ctx.cuda->num_multiprocessors());
                      launch_kernel(ctx, kernel, static_cast<unsigned>(blocks), kThreads, kShared, a, line,
                                    parts);
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
  // The instructions are those of compute capability 9.0 alone: a later GPU runs other code of this file, or
  // none.
  static const bool compiled = [] {
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, attention_wgmma<__half>) == cudaSuccess)
      return attributes.binaryVersion == 90;
    cudaGetLastError();
    return false;
  }();
  return compiled && args.q.dim(2) == kDim && paged_attention_takes_tensor_core(args);
}

}  // namespace ladder
