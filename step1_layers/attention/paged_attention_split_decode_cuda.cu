// Attention of single query rows: whole sequences, or equal parts of all keys where lengths differ too much.
#include <algorithm>

#include "step1_layers/attention/paged_attention_prefill_cuda.cuh"
#include "step1_layers/attention/paged_attention_split_decode_cuda.cuh"

namespace ladder {

namespace {

// split (sm_80)
// Shapes: paged_attention_decode_cuda.cuh. The rung below leaves the chip idle where there are few sequences,
// and waits for the longest where their lengths differ. Here the tiles of 64 keys of all sequences stand in
// one line, which is cut into equal parts; a block takes one part of one head tile, and may end one sequence
// and begin the next. Blocks of the same part and different heads are neighbours, so rows of the cache that
// lie side by side are read at about the same time. Where a sequence ends in another part than it begins, the
// block of its last part merges what the others send. The cuts are computed from seq_lens on the device, and
// the number of blocks is fixed, so a captured graph stays right when lengths change. Where a sequence is cut
// depends on the batch: not batch invariant.
// A cut costs two trips to L2 at the end of a part. Where no sequence is so long that blocks would wait for
// it (cuts_pay), blocks take whole ones, and a block that is done takes the next.
constexpr int kWarps = kSplitWarps, kThreads = kSplitThreads, kTileKeys = kSplitTileKeys;
template <int dim>
constexpr int kBlocks = dim == 256 ? 1 : 2;  // of a multiprocessor: while one merges, the other reads

}  // namespace

// >>> task 1.7.cuda.split: decode, the keys of all sequences in one line that is cut into equal parts
namespace {

// Registers are left for one more block: the previous and the next kernel share the multiprocessors.
template <int dim, class T>
__global__ void __launch_bounds__(kThreads, kBlocks<dim> + 1)
    attention_split(Attention<T> a, PartialResult<dim>* sent, unsigned* ticket) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeShared<dim, kWarps>*>(memory);
  allow_next_kernel();
  PreviousKernel<> previous{.has_ended = a.max_query_len > 1};
  if (previous.has_ended) wait_for_previous_kernel();

  const int head_tiles = head_tiles_of(a);
  const auto head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const auto part = static_cast<int>(blockIdx.x / head_tiles);
  const int heads = heads_in_tile(a, head_tile), head0 = first_head(a, head_tile);
  auto parts = static_cast<int>(gridDim.x / head_tiles);
  const Line line = find_place(a, part, parts);
  if (!cuts_pay(line, static_cast<int>(gridDim.x / head_tiles)))
    return attend_whole(a, line.used, previous, shared, ticket);
  if (part >= parts) {
    if (!previous.has_ended) wait_for_previous_kernel();
    return;
  }
  auto result_of = [&](int warp) -> auto& {
    return shared.result(warp);
  };
  auto sent_by = [&](int p) -> PartialResult<dim>& { return sent[int64_t{p} * head_tiles + head_tile]; };
  // From the end of the part to its begin: what is sent leaves first, and the sequence that needs other parts
  // comes last. A block waits for blocks of lower index only, which have started before it (no rule of
  // CUDA's, but what every GPU does and single-pass scans rely on), and which send before they wait.
  const int begin = cut(part, line.total, parts);
  int64_t seq = line.seq;
  int before = line.before;
  for (int end = cut(part + 1, line.total, parts);;) {
    const int num_keys = num_decode_keys(a, seq), tiles = ceil_div(num_keys, kTileKeys);
    const int first_tile = before + kGapTiles;  // of the sequence, in the line
    const int first = max(begin - first_tile, 0), last = min(end - first_tile, tiles);
    if (first < last) {
      attend_piece(a, {seq, head_tile, num_keys, first * kTileKeys, min(last * kTileKeys, num_keys)},
                   previous, shared, [] {});
      const int64_t row = a.query_start_loc[seq];
      const int first_part = first == 0 ? part : part_of(first_tile, line.total, parts);
      for_each_quad<dim, kWarps>(heads, [&](int head, int element) {
        PartialQuad merged = merge_warps<kWarps>(result_of, head, element);
        if (last < tiles) {
          PartialResult<dim>& to = sent_by(part);
          send(reinterpret_cast<float4*>(&to.out[head][element]), merged.value);
          if (element == 0) send(&to.state[head], {merged.largest, merged.sum});
        } else {
          merge_sent<dim>(merged, first_part, part, head, element, sent_by);
          store_result(a, row, head0 + head, element, merged);
        }
      });
      __syncthreads();  // the queue is free again, and all have looked at the states
      if (last == tiles)
        for (int i = threadIdx.x; i < (part - first_part) * kTileHeads; i += kThreads)
          sent_by(first_part + i / kTileHeads).state[i % kTileHeads] = {0, 0};
    }
    if (before <= begin) break;
    end = before;
    do --seq;
    while (tiles_of(a, seq) == 0);
    before -= tiles_of(a, seq);
  }
  if (!previous.has_ended) wait_for_previous_kernel();
}

template <int dim, class T>
void launch(const OpContext& ctx, const Attention<T>& a) {
  constexpr size_t kShared = sizeof(DecodeShared<dim, kWarps>);
  auto kernel = attention_split<dim, T>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(kShared));
  constexpr auto kRoom = (CudaContext::kNumCounters - 1) * static_cast<int64_t>(sizeof(int)) /
                         static_cast<int64_t>(sizeof(PartialResult<dim>));
  const int64_t head_tiles = a.kv_heads * ceil_div(a.group, kTileHeads);
  const int64_t blocks = std::min<int64_t>(kBlocks<dim> * ctx.cuda->num_multiprocessors(), kRoom);
  const int64_t parts = std::max<int64_t>(blocks / head_tiles, 1);  // one sends nothing
  launch_kernel(ctx, kernel, static_cast<unsigned>(parts * head_tiles), kThreads, kShared, a,
                reinterpret_cast<PartialResult<dim>*>(ctx.cuda->counters()),
                reinterpret_cast<unsigned*>(ctx.cuda->counters()) + CudaContext::kNumCounters - 1);
}

}  // namespace

void paged_attention_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_decode_call(args, [&]<int dim, class T>(const Attention<T>& a) {
    if (may_have_single_rows(a)) launch<dim>(ctx, a);
  });
  if (args.metadata.max_query_len > 1) attention_prefill(ctx, args, false);
}
// <<< task 1.7.cuda.split

bool paged_attention_takes_split(const PagedAttentionArgs& args) {
  const int64_t dim = args.q.dim(2);
  const size_t shared = dim == 64    ? sizeof(DecodeShared<64, kWarps>)
                        : dim == 128 ? sizeof(DecodeShared<128, kWarps>)
                                     : sizeof(DecodeShared<256, kWarps>);
  return paged_attention_takes_decode(args) && fits_shared_memory(static_cast<int64_t>(shared)) &&
         (args.metadata.max_query_len <= 1 || paged_attention_takes_tensor_core(args));
}

}  // namespace ladder
