// Attention of single query rows of few sequences: what counts is not memory's speed but the chain of
// latencies from one kernel to the next.
#include <algorithm>

#include "step1_layers/attention/attention_with_store_cuda.h"
#include "step1_layers/attention/norm_rotate_cuda.cuh"
#include "step1_layers/attention/paged_attention_decode_cuda.cuh"
#include "step1_layers/attention/qk_norm_rope_store_cuda.h"
#include "step1_layers/core/cluster.cuh"
#include "step1_layers/core/cluster_bytes.cuh"

namespace ladder {

namespace {

// cluster (sm_90)
// Shapes: paged_attention_decode_cuda.cuh; single rows only. A cluster of up to eight blocks takes a sequence
// and head tile, each block an equal part of its keys, and every block merges a share of the output elements:
// the blocks write their partial results straight into each other's shared memory. The rung below sends them
// through global memory: two trips to L2 after the last key instead of one between multiprocessors. All keys
// that fit into the queues are in flight before the kernel waits for the previous one. A short sequence is
// left to the first blocks of its cluster: a step of 16 keys more for each warp costs less than another block
// to merge. All sequences get clusters of one size, whatever their lengths, so this is for few of them, or
// for some that are not long. How one is cut depends on their number: not batch invariant.
constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMaxCluster = 8;

// Steps that a warp has in flight. With few of them a block fits on a multiprocessor beside one of the
// preceding product and one of the next (head size 128, two query heads to a key/value head). Otherwise the
// blocks of the next product crowd on the multiprocessors that have none of attention's, and load their share
// of the weights at half the rate.
template <int dim>
constexpr int kFewStages = dim == 64 ? 3 : 2;

// A block's queues, and what the blocks of its cluster send to it: the state of every head, and their
// elements of its share. Behind the struct lie, for every head of a tile, a row for its query and dim floats
// for the received elements.
template <int dim, int stages>
struct ClusterShared {
  static constexpr int kRowBytes = DecodeShared<dim, kWarps, stages>::kRowBytes;
  static size_t bytes(int heads) {
    return sizeof(ClusterShared) + static_cast<size_t>(heads) * (kRowBytes + dim * sizeof(float));
  }

  DecodeShared<dim, kWarps, stages> decode;
  float4 state[kMaxCluster][kTileHeads];  // largest and sum
  alignas(16) uint64_t barrier;

  __device__ unsigned char* query(int head) {
    return reinterpret_cast<unsigned char*>(this + 1) + head * kRowBytes;
  }
  __device__ float4* received(int heads) { return reinterpret_cast<float4*>(query(heads)); }
};

// What precedes attention.
// The keys and values are in the cache, the queries ready.
struct Stored {};
// attention_with_store: q, k and v are rows of the qkv projection.
template <class T>
struct NewRows {
  const T *k, *v;
  T *k_cache, *v_cache;
  int64_t k_token, k_head, v_token, v_head;
  const T *q_weight, *k_weight;  // nullptr: no norm
  const int32_t* positions;
  const float* table;
  int64_t table_stride;
  const int64_t* slots;
  float eps;
};

// Waits for the qkv projection, then norms and rotates the tile's queries, which are left in shared memory
// and, where the block has the sequence's last key, the new key, which goes with its value to the block's
// queue and to the cache. A key that the queue has no room for yet is copied from the cache, by the block
// that stored it. (Where tiles share a key/value head each stores it, with the same bits.)
template <int dim, int stages, class T>
__device__ void store_new_rows(const Attention<T>& a, const NewRows<T>& rows, const Piece& piece, int64_t row,
                               ClusterShared<dim, stages>& shared) {
  constexpr int kSize = Pack<T>::kSize, kHalf = dim / 2, kLanes = kHalf / kSize;
  constexpr int kRowBytes = ClusterShared<dim, stages>::kRowBytes;
  const int unit = static_cast<int>(threadIdx.x) / kLanes, first = threadIdx.x % kLanes * kSize;
  const int heads = heads_in_tile(a, piece.head_tile), head = first_head(a, piece.head_tile) + unit;
  const int kv_head = piece.head_tile / ceil_div(a.group, kTileHeads);
  const bool has_last = piece.end == piece.num_keys;
  const bool is_query = unit < heads, is_key = has_last && unit == heads,
             is_value = has_last && unit == heads + 1;
  const T* weight = is_query ? rows.q_weight : rows.k_weight;
  NormRotate<dim, T> rotation;
  if (is_query || is_key)
    rotation.load(rows.table + rows.positions[row] * rows.table_stride + first,
                  weight == nullptr ? nullptr : weight + first);
  const int64_t slot = is_key || is_value ? rows.slots[row] : -1;
  const T* from = (is_query ? a.q + row * a.q_token + head * a.q_head
                   : is_key ? rows.k + row * rows.k_token + kv_head * rows.k_head
                            : rows.v + row * rows.v_token + kv_head * rows.v_head) +
                  first;
  wait_for_previous_kernel();
  Pack<T> packs[2] = {};
  if (is_query || is_key || is_value) {
    packs[0] = load_pack(from);
    packs[1] = load_pack(from + kHalf);
  }
  rotation.apply(packs, is_query || is_key, weight != nullptr, rows.eps);
  auto put = [&](T* to) {
    store_pack(to + first, packs[0]);
    store_pack(to + first + kHalf, packs[1]);
  };
  if (is_query) put(reinterpret_cast<T*>(shared.query(unit)));
  if (is_key || is_value) {
    const int own = piece.num_keys - 1 - piece.first, step = own / (kWarps * kStepKeys);
    if (step < stages)
      put(reinterpret_cast<T*>(shared.decode.queue[own / kStepKeys % kWarps][step] +
                               (own % kStepKeys + (is_value ? kStepKeys : 0)) * kRowBytes));
    const int64_t block = slot >> a.block_shift, offset = slot & (a.block_size - 1);
    if (slot >= 0)
      put(is_key ? rows.k_cache + block * a.k_block + offset * a.k_slot + kv_head * a.k_head
                 : rows.v_cache + block * a.v_block + offset * a.v_slot + kv_head * a.v_head);
  }
  __syncthreads();
}

// Four blocks to a multiprocessor: with more than 128 registers there would be three, and batches of many
// sequences take another wave.
template <int dim, int stages, class T, class Front>
__global__ void __launch_bounds__(kThreads, dim == 256 ? 1 : 4)
    attention_cluster(Attention<T> a, Front front, int cluster) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Shared = ClusterShared<dim, stages>;
  auto& shared = *reinterpret_cast<Shared*>(memory);
  allow_next_kernel();
  const int head_tiles = head_tiles_of(a), item = static_cast<int>(blockIdx.x) / cluster;
  const int head_tile = item % head_tiles, rank = static_cast<int>(blockIdx.x) % cluster;
  const int64_t seq = item / head_tiles;
  const int num_keys = num_decode_keys(a, seq);
  const int steps = ceil_div(num_keys, kStepKeys);
  int log_parts = 31 - __clz(cluster);
  while (log_parts > 0 && steps <= kWarps << (log_parts - 1)) --log_parts;
  const int parts = 1 << log_parts;
  if (rank >= parts) return;  // the first of the cluster waits for the previous kernel
  if (num_keys == 0) {
    wait_for_previous_kernel();
    return;
  }
  const int heads = heads_in_tile(a, head_tile), share = heads * dim / 4 >> log_parts;  // in quads
  float4* const received = shared.received(min(a.group, kTileHeads));
  const uint32_t barrier = shared_address(&shared.barrier);
  if (parts > 1) {
    if (threadIdx.x == 0)
      set_up_byte_barrier(barrier, parts * (heads + share) * static_cast<int>(sizeof(float4)));
    __syncwarp();
    cluster_arrive_relaxed();
  }
  const int first = (steps * rank >> log_parts) * kStepKeys;
  const int end = min((steps * (rank + 1) >> log_parts) * kStepKeys, num_keys);
  const int64_t row = a.query_start_loc[seq];
  const Piece piece{seq, head_tile, num_keys, first, end};
  if constexpr (std::is_same_v<Front, Stored>) {
    PreviousKernel<> previous;
    attend_piece(a, piece, previous, shared.decode, [] {});
  } else {
    constexpr int kStride = Shared::kRowBytes / static_cast<int>(sizeof(T));
    Attention<T> ready = a;
    ready.q = reinterpret_cast<const T*>(shared.query(0)) - first_head(a, head_tile) * kStride;
    ready.q_token = 0;
    ready.q_head = kStride;
    auto wait = [&] {
      store_new_rows(a, front, piece, row, shared);
      return true;
    };
    PreviousKernel<decltype(wait)> previous{.has_ended = false, .wait = wait};
    attend_piece(ready, piece, previous, shared.decode, [] {});
  }
  auto merged_quad = [&](int head, int element) {
    return merge_warps<kWarps>(
        [&](int warp) -> auto& { return shared.decode.result(warp); }, head, element);
  };
  if (parts == 1) {
    for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
      store_result(a, row, first_head(a, head_tile) + head, element, merged_quad(head, element));
    });
    return;
  }
  cluster_wait();

  for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
    const PartialQuad merged = merged_quad(head, element);
    const int quad = (head * dim + element) / 4;
    store_remote(&received[rank * share + (quad >> log_parts)], barrier, quad & (parts - 1), merged.value);
    if (element / 4 < parts)
      store_remote(&shared.state[rank][head], barrier, element / 4, {merged.largest, merged.sum, 0, 0});
  });
  wait_for_bytes(barrier);
  for (int i = threadIdx.x; i < share; i += kThreads) {
    const int element = ((i << log_parts) + rank) * 4, head = element / dim;
    const PartialQuad merged = merge_parts(parts, [&](int from) {
      const float4 state = shared.state[from][head];
      return PartialQuad{state.x, state.y, received[from * share + i]};
    });
    store_result(a, row, first_head(a, head_tile) + head, element % dim, merged);
  }
}

int64_t items_of(const PagedAttentionArgs& args) {
  const int64_t kv_heads = args.cache.k.dim(2);
  return args.metadata.num_seqs * kv_heads * ceil_div<int64_t>(args.q.dim(1) / kv_heads, kTileHeads);
}

// For more sequences or longer ones attention itself is the longer wait: deeper queues pay, and a second
// kernel before this one costs nothing.
bool is_few(const PagedAttentionArgs& args) {
  return items_of(args) <= kMaxFewSeqs && args.metadata.max_seq_len <= kShortDecodeKeys;
}

template <int dim, int stages, class T, class Front>
void launch(const OpContext& ctx, const Attention<T>& a, const Front& front, int64_t items) {
  const size_t shared_bytes = ClusterShared<dim, stages>::bytes(std::min(a.group, kTileHeads));
  auto kernel = attention_cluster<dim, stages, T, Front>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(shared_bytes));
  unsigned cluster = kMaxCluster;
  // A block per multiprocessor leaves room for the next kernel's; with many sequences parallelism is worth
  // more.
  const int64_t room = (items <= 64 ? 1 : 2) * ctx.cuda->num_multiprocessors();
  while (cluster > 1 && items * cluster > room) cluster /= 2;

  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(items * cluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(ctx);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = ctx.dependent_launch ? 2 : 1;
  LADDER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, a, front, static_cast<int>(cluster)));
}

}  // namespace

void paged_attention_cuda_cluster(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_decode_call(args, [&]<int dim, class T>(const Attention<T>& a) {
    if (is_few(args))
      launch<dim, kFewStages<dim>>(ctx, a, Stored{}, items_of(args));
    else
      launch<dim, kDecodeStages<dim>>(ctx, a, Stored{}, items_of(args));
  });
}
bool paged_attention_takes_cluster(const PagedAttentionArgs& args) {
  const int64_t items = items_of(args);
  return args.metadata.max_query_len <= 1 && paged_attention_takes_decode(args) &&
         (is_few(args) || (items <= 64 && args.metadata.max_seq_len <= 4096) ||
          (items <= 128 && args.metadata.max_seq_len <= 2048));
}

void attention_with_store_cuda_fused(const OpContext& ctx, const AttentionWithStoreArgs& args) {
  if (args.attention.metadata.num_tokens == 0) return;
  const QkNormRopeStoreArgs& store = args.store;
  with_decode_call(args.attention, [&]<int dim, class T>(const Attention<T>& a) {
    const NewRows<T> rows{.k = cuda_data<T>(store.k),
                          .v = cuda_data<T>(store.v),
                          .k_cache = cuda_data<T>(store.cache.k),
                          .v_cache = cuda_data<T>(store.cache.v),
                          .k_token = store.k.stride(0),
                          .k_head = store.k.stride(1),
                          .v_token = store.v.stride(0),
                          .v_head = store.v.stride(1),
                          .q_weight = cuda_data<T>(store.q_norm_weight),
                          .k_weight = cuda_data<T>(store.k_norm_weight),
                          .positions = cuda_data<int32_t>(store.positions),
                          .table = cuda_data<float>(store.table),
                          .table_stride = store.table.stride(0),
                          .slots = cuda_data<int64_t>(store.slot_mapping),
                          .eps = static_cast<float>(store.eps)};
    launch<dim, kFewStages<dim>>(ctx, a, rows, items_of(args.attention));
  });
}
bool attention_with_store_can_fuse(const AttentionWithStoreArgs& args) {
  const auto& [store, attention] = args;
  if (store.cache.kept_as != KvCacheDType::automatic || !paged_attention_takes_cluster(attention) ||
      !is_few(attention))
    return false;
  const int64_t group = attention.q.dim(1) / attention.cache.k.dim(2);
  const int64_t units = kThreads / (store.q.dim(2) / 16);  // of neighbouring lanes: a head or the value each
  return qk_norm_rope_store_can_fuse(store) && store.slot_mapping.dim(0) >= attention.metadata.num_tokens &&
         std::min<int64_t>(group, kTileHeads) + 2 <= units;
}

}  // namespace ladder
