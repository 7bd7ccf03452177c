// Attention of single query rows of few sequences: what counts is not memory's speed but the chain of
// latencies from one kernel to the next.
#include <algorithm>

#include "step1_layers/attention/paged_attention_decode_cuda.cuh"

namespace ladder {

namespace {

// cluster (sm_90)
// Shapes: paged_attention_decode_cuda.cuh; single rows only. A cluster of up to eight blocks takes a sequence
// and head tile, each block an equal part of its keys, and every block merges a share of the output elements:
// the blocks write their partial results straight into each other's shared memory. The rung below lets them
// go through scratch in global memory: a fence, an atomic and a load, three trips to L2 after the last key
// instead of one between multiprocessors. All keys that fit into the queues are under way before the kernel
// waits for the one in front. All sequences get as many blocks, whatever their lengths, so this is for few of
// them, or for some that are not long. How one is cut depends on their number: not batch invariant.
constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMaxCluster = 8;

// Every block of the cluster has started, and its barrier is set up, when cluster_wait() returns.
__device__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// A barrier in shared memory that opens when so many bytes have been written by store_remote.
__device__ void set_up_barrier(uint32_t barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#endif
}
__device__ void wait_for_bytes(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier)
      : "memory");
#endif
}
// Into the shared memory of the cluster's block `rank`, where `mine` and `barrier` lie in this block's.
__device__ void store_remote(const float4* mine, uint32_t barrier, int rank, const float4& value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there, opens;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 opens, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [opens];\n"
      "}" ::"r"(shared_address(mine)),
      "r"(barrier), "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
#endif
}

// What the blocks of a cluster send to this one: the state of every head, and their elements of its share.
template <int dim>
struct Received {
  float4 state[kMaxCluster][kTileHeads];  // largest and sum
  float4 value[kTileHeads * dim / 4];     // [cluster, share]
  uint64_t barrier;
};
template <int dim>
struct ClusterShared {
  DecodeShared<dim, kWarps> decode;
  Received<dim> received;
};

template <int dim, class T>
__global__ void __launch_bounds__(kThreads, dim == 256 ? 1 : 2)
    attention_cluster(Attention<T> a, int cluster) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ClusterShared<dim>*>(memory);
  allow_next_kernel();
  const int head_tiles = head_tiles_of(a), item = static_cast<int>(blockIdx.x) / cluster;
  const int head_tile = item % head_tiles, rank = static_cast<int>(blockIdx.x) % cluster;
  const int64_t seq = item / head_tiles;
  const int num_keys = num_decode_keys(a, seq);
  if (num_keys == 0) {
    wait_for_previous_kernel();
    return;
  }
  const int heads = heads_in_tile(a, head_tile), share = heads * dim / 4 / cluster;  // in quads
  Received<dim>& received = shared.received;
  const uint32_t barrier = shared_address(&received.barrier);
  if (threadIdx.x == 0) set_up_barrier(barrier, cluster * (heads + share) * static_cast<int>(sizeof(float4)));
  __syncwarp();
  cluster_arrive();
  const int steps = ceil_div(num_keys, kStepKeys);
  const int first = steps * rank / cluster * kStepKeys;
  const int end = min(steps * (rank + 1) / cluster * kStepKeys, num_keys);
  bool waited = false;
  attend_piece(a, {seq, head_tile, num_keys, first, end}, waited, shared.decode, [] {});
  cluster_wait();

  for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
    const PartialQuad merged = merge_warps<kWarps>(
        [&](int warp) -> auto& { return shared.decode.result(warp); }, head, element);
    const int quad = (head * dim + element) / 4;
    store_remote(&received.value[rank * share + quad % share], barrier, quad / share, merged.value);
    if (element / 4 < cluster)
      store_remote(&received.state[rank][head], barrier, element / 4, {merged.largest, merged.sum, 0, 0});
  });
  wait_for_bytes(barrier);
  const int64_t row = a.query_start_loc[seq];
  for (int i = threadIdx.x; i < share; i += kThreads) {
    const int element = (rank * share + i) * 4, head = element / dim;
    const PartialQuad merged = merge_parts(cluster, [&](int from) {
      const float4 state = received.state[from][head];
      return PartialQuad{state.x, state.y, received.value[from * share + i]};
    });
    store_result(a, row, first_head(a, head_tile) + head, element % dim, merged);
  }
}

int64_t items_of(const PagedAttentionArgs& args) {
  const int64_t kv_heads = args.cache.k.dim(2);
  return args.metadata.num_seqs * kv_heads * ceil_div<int64_t>(args.q.dim(1) / kv_heads, kTileHeads);
}

template <int dim, class T>
void launch(const OpContext& ctx, const Attention<T>& a, int64_t items) {
  constexpr size_t kShared = sizeof(ClusterShared<dim>);
  auto kernel = attention_cluster<dim, T>;
  LADDER_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kShared)));
  unsigned cluster = kMaxCluster;
  // A block per multiprocessor leaves room for the next kernel's; with many sequences parallelism is worth
  // more.
  const int64_t room = (items <= 64 ? 1 : 2) * ctx.cuda->num_multiprocessors();
  while (cluster > 1 && items * cluster > room) cluster /= 2;

  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(items * cluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kShared;
  config.stream = stream_of(ctx);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = ctx.dependent_launch ? 2 : 1;
  LADDER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, a, static_cast<int>(cluster)));
}

}  // namespace

void paged_attention_cuda_cluster(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_decode_call(args,
                   [&]<int dim, class T>(const Attention<T>& a) { launch<dim>(ctx, a, items_of(args)); });
}
bool paged_attention_takes_cluster(const PagedAttentionArgs& args) {
  const int64_t items = items_of(args);
  return args.metadata.max_query_len <= 1 && paged_attention_takes_decode(args) &&
         (items <= 32 || (items <= 64 && args.metadata.max_seq_len <= 4096) ||
          (items <= 128 && args.metadata.max_seq_len <= 2048));
}

}  // namespace ladder
