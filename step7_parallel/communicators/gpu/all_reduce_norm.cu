// The all-reduce behind a row-parallel product together with what follows it in every layer: the residual's addition
// and the norm.
#include "step1_layers/core/packed.h"
#include "step1_layers/norm/row_splits_cuda.cuh"
#include "step7_parallel/communicators/gpu/peer_all_reduce.h"
#include "step7_parallel/communicators/gpu/peer_kernel.cuh"

namespace ladder {

// The push (all_reduce_push.cu), of whole rows to a block: the block that receives a row's sum has all of it, so it
// adds it to the residual and norms it without another kernel, another launch, another way through memory. Rows of
// whole packs, as many threads to a row as the norm has alone (row_splits_cuda.cuh), sums rounded where a tensor of
// them would have rounded them: the bits are those of all_reduce and fused_add_rms_norm one after the other.

namespace {

template <class T>
struct ReducedRows {
  const T* partial;
  T* residual;
  const T* weight;
  T* out;
  int64_t rows, width;
  int64_t partial_stride, residual_stride, out_stride;
  float eps;
};

template <int max_size, int threads, int packs, class T>
__global__ void __launch_bounds__(block_threads(threads))
    norm_pushed_rows(PeerGroup group, ReducedRows<T> norm) {
  constexpr int kSize = Pack<T>::kSize, kThreads = block_threads(threads), kRowsAtOnce = kThreads / threads;
  const int thread = static_cast<int>(threadIdx.x) % threads,
            row_of_block = static_cast<int>(threadIdx.x) / threads;
  const int row_packs = static_cast<int>(norm.width / kSize);
  const int64_t first = int64_t{blockIdx.x} * kRowsAtOnce + row_of_block,
                step = int64_t{gridDim.x} * kRowsAtOnce;
  // One block waits in the middle of the blocks of a product, one to a multiprocessor, and those of the next product, which
  // are there early: the last of these would find no room but on a multiprocessor that has one already, and all would wait
  // for the two (3.45 ms a token in place of 3.29, two H100s, 8B). So they come when the previous product has ended, and
  // fetch their weights while the ranks wait for each other.
  const bool is_alone = gridDim.x == 1;
  if (!is_alone) allow_next_kernel();
  Pack<T> weights[packs];
#pragma unroll
  for (int j = 0; j < packs; ++j)
    if (thread + j * threads < row_packs)
      weights[j] = load_pack(norm.weight + (thread + j * threads) * kSize);
  wait_for_previous_kernel();
  if (is_alone) allow_next_kernel();
  PeerCounters& counters = peer_counters(group);
  const uint32_t pushes = counters.pushes, half = pushes % 2;
  // The pack's place in the buffer: that of the block's rows one after another.
  const auto slot = [&](int64_t turn, int pack) {
    return (turn * kRowsAtOnce + row_of_block) * row_packs + pack;
  };
  int64_t turn = 0;
  for (int64_t row = first; row < norm.rows; row += step, ++turn)
    for (int pack = thread; pack < row_packs; pack += threads)
      push_to_all<max_size>(
          group, half, slot(turn, pack),
          *reinterpret_cast<const uint4*>(norm.partial + row * norm.partial_stride + pack * kSize));
  turn = 0;
  // All threads of the block go round as often: they add their rows together.
  for (int64_t at = int64_t{blockIdx.x} * kRowsAtOnce; at < norm.rows; at += step, ++turn) {
    const int64_t row = at + row_of_block;
    const bool is_row = row < norm.rows;
    T* const residual = norm.residual + row * norm.residual_stride;
    Pack<T> values[packs];
    uint4 mine[packs];
#pragma unroll
    for (int j = 0; j < packs; ++j)
      if (const int pack = thread + j * threads; is_row && pack < row_packs) {
        mine[j] = *reinterpret_cast<const uint4*>(norm.partial + row * norm.partial_stride + pack * kSize);
        values[j] = load_pack(residual + pack * kSize);
      }
    float squares = 0, a[kSize], b[kSize];
#pragma unroll
    for (int j = 0; j < packs; ++j)
      if (const int pack = thread + j * threads; is_row && pack < row_packs) {
        sum_pushed<T, max_size>(group, half, slot(turn, pack), mine[j], a);
        to_floats(from_floats<T>(a), a);
        to_floats(values[j], b);
#pragma unroll
        for (int k = 0; k < kSize; ++k) a[k] += b[k];
        values[j] = from_floats<T>(a);
        store_pack(residual + pack * kSize, values[j]);
        to_floats(values[j], a);
#pragma unroll
        for (int k = 0; k < kSize; ++k) squares += a[k] * a[k];
      }
    const float scale = rsqrtf(row_sum<threads>(squares) / static_cast<float>(norm.width) + norm.eps);
#pragma unroll
    for (int j = 0; j < packs; ++j)
      if (const int pack = thread + j * threads; is_row && pack < row_packs) {
        to_floats(values[j], a);
        to_floats(weights[j], b);
#pragma unroll
        for (int k = 0; k < kSize; ++k) a[k] *= scale * b[k];
        store_pack(norm.out + row * norm.out_stride + pack * kSize, from_floats<T>(a));
      }
    __syncthreads();  // row_sum's memory is free again
  }
  if (threadIdx.x == 0) counters.pushes = pushes + 1;
}

int64_t rows_at_once(int64_t row_packs) {
  for (const RowSplit& split : kFusedRowSplits)
    if (row_packs <= split.max_packs) return block_threads(split.threads) / split.threads;
  return 1;
}
int64_t blocks_of(int64_t rows, int64_t at_once) {
  return std::min<int64_t>(ceil_div(rows, at_once), kMaxPeerBlocks);
}

template <int max_size, int i = 0, class T>
void launch_norm(const OpContext& ctx, const PeerGroup& group, const ReducedRows<T>& norm) {
  constexpr RowSplit split = kFusedRowSplits[i];
  if constexpr (i + 1 < kNumRowSplits)
    if (norm.width / Pack<T>::kSize > split.max_packs) return launch_norm<max_size, i + 1>(ctx, group, norm);
  constexpr int kThreads = block_threads(split.threads);
  const auto blocks = static_cast<unsigned>(blocks_of(norm.rows, kThreads / split.threads));
  launch_kernel(ctx, norm_pushed_rows<max_size, split.threads, split.packs, T>, blocks, kThreads, 0, group,
                norm);
}

}  // namespace

bool fits_all_reduce_norm(const PeerGroup& group, const AllReduceNormArgs& args) {
  if (args.partial.numel() == 0) return true;
  if (!is_packed(args.partial) || !is_packed(args.residual) || !is_packed(args.weight) ||
      !is_packed(args.out))
    return false;
  const int64_t row_packs = args.partial.dim(1) * dtype_size(args.partial.dtype()) / 16;
  const int64_t at_once = rows_at_once(row_packs), rows = args.partial.dim(0);
  const int64_t turns = ceil_div(ceil_div(rows, at_once), blocks_of(rows, at_once));
  return row_packs <= kMaxRowPacks && turns * at_once * row_packs * 16 <= group.layout.push_bytes;
}

void all_reduce_norm_push(const OpContext& ctx, const PeerGroup& group, const AllReduceNormArgs& args) {
  if (args.partial.numel() == 0) return;
  with_cuda_type(args.partial.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const ReducedRows<T> norm{.partial = cuda_data<T>(args.partial),
                              .residual = cuda_data<T>(args.residual),
                              .weight = cuda_data<T>(args.weight),
                              .out = cuda_data<T>(args.out),
                              .rows = args.partial.dim(0),
                              .width = args.partial.dim(1),
                              .partial_stride = args.partial.stride(0),
                              .residual_stride = args.residual.stride(0),
                              .out_stride = args.out.stride(0),
                              .eps = static_cast<float>(args.eps)};
    with_max_peers(group.layout.size, [&](auto max_size) { launch_norm<max_size()>(ctx, group, norm); });
  });
}

}  // namespace ladder
