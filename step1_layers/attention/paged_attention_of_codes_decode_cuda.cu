// Attention of single query rows over codes: the codes themselves are the operands of the tensor cores.
#include <algorithm>
#include <bit>

#include "step1_layers/attention/paged_attention_of_codes_piece_cuda.cuh"

namespace ladder {

namespace {

// split (sm_80)
// bf16 or f16, heads of 64, 128 or 256, pages of a power of two of slots, at least 16. The keys are shared out as in
// paged_attention's rung of this name, and a warp has a queue of steps of 16 keys as there, with codes and scales in it.
//
// A number is lowest + scale * code, and lowest and scale are the same for a whole head of a token. So the products are of codes,
// and both factors are applied to what there is one of per key:
//
//   score_j = scale_j (q . code_j) + lowest_j (sum of q)             of keys
//   out     = sum_j (p_j scale_j) code_j + sum_j p_j lowest_j        of values
//
// Both products are in f16, whatever the model's type: every code is one of its numbers (an integer of four or eight bits is a
// subnormal: bits that are only moved to their place), queries are first scaled by a power of two, and weights, p_j scale_j, by
// the largest scale so far.
//
// Budget, heads of 128 in 8 bits: a key and its value are 272 bytes, 18.3 of which come in a clock and multiprocessor at 4.25
// TB/s: 17 numbers. A step of 16 keys takes 237 clocks. Conversions are 64 instructions of a warp (E4M3, 2 numbers each) or 112
// (integers, at 2 a clock 56 clocks), the mma 16 (32 clocks), the rest some 150 of the 948 that can be issued. In 4 bits a step
// takes 126 clocks, its conversions 88 instructions. Each code is read from shared memory once, in 16 bytes a lane: a lane's
// share of the 16 dims of an mma is any four of them where q has them in the same order, and where outputs are written out of
// order.
//
// Otherwise as attention_split.
template <KvCacheDType kept_as, int dim, class T>
__global__ void __launch_bounds__(kSplitThreads, CodesShape<kept_as, dim>::kBlocks + 1)
    attention_of_codes_split(AttentionOfCodes<T> a, PartialResult<dim>* sent, unsigned* ticket) {
  constexpr int kGap = CodesShape<kept_as, dim>::kGap;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<CodesShared<kept_as, dim>*>(memory);
  allow_next_kernel();
  PreviousKernel<> previous{.has_ended = a.max_query_len > 1};
  if (previous.has_ended) wait_for_previous_kernel();

  const int head_tiles = head_tiles_of(a);
  const auto head_tile = static_cast<int>(blockIdx.x % head_tiles);
  const auto part = static_cast<int>(blockIdx.x / head_tiles);
  const int heads = heads_in_tile(a, head_tile), head0 = first_head(a, head_tile);
  auto parts = static_cast<int>(gridDim.x / head_tiles);
  const Line line = find_place<kGap>(a, part, parts);
  if (!cuts_pay<kGap>(line, static_cast<int>(gridDim.x / head_tiles)))
    return attend_whole(a, line.used, previous, shared, ticket);
  if (part >= parts) {
    if (!previous.has_ended) wait_for_previous_kernel();
    return;
  }
  auto result_of = [&](int warp) -> auto& {
    return shared.result(warp);
  };
  auto sent_by = [&](int p) -> PartialResult<dim>& { return sent[int64_t{p} * head_tiles + head_tile]; };
  const int begin = cut(part, line.total, parts);
  int64_t seq = line.seq;
  int before = line.before;
  for (int end = cut(part + 1, line.total, parts);;) {
    const int num_keys = num_decode_keys(a, seq), tiles = ceil_div(num_keys, kSplitTileKeys);
    const int first_tile = before + kGap;  // of the sequence, in the line
    const int first = max(begin - first_tile, 0), last = min(end - first_tile, tiles);
    if (first < last) {
      attend_piece(a,
                   {seq, head_tile, num_keys, first * kSplitTileKeys, min(last * kSplitTileKeys, num_keys)},
                   previous, shared, [] {});
      const int64_t row = a.query_start_loc[seq];
      const int first_part = first == 0 ? part : part_of(first_tile, line.total, parts);
      for_each_quad<dim, kSplitWarps>(heads, [&](int head, int element) {
        PartialQuad merged = merge_warps<kSplitWarps>(result_of, head, element);
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
        for (int i = threadIdx.x; i < (part - first_part) * kTileHeads; i += kSplitThreads)
          sent_by(first_part + i / kTileHeads).state[i % kTileHeads] = {0, 0};
    }
    if (before <= begin) break;
    end = before;
    do --seq;
    while (tiles_of<kGap>(a, seq) == 0);
    before -= tiles_of<kGap>(a, seq);
  }
  if (!previous.has_ended) wait_for_previous_kernel();
}

template <KvCacheDType kept_as, int dim, class T>
void launch(const OpContext& ctx, const PagedAttentionArgs& args) {
  using Shape = CodesShape<kept_as, dim>;
  const auto a = attention_of_codes_call<T>(args);
  if (!may_have_single_rows(a)) return;
  constexpr size_t kShared = sizeof(CodesShared<kept_as, dim>);
  auto kernel = attention_of_codes_split<kept_as, dim, T>;
  ctx.cuda->allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(kShared));
  constexpr auto kRoom = (CudaContext::kNumCounters - 1) * static_cast<int64_t>(sizeof(int)) /
                         static_cast<int64_t>(sizeof(PartialResult<dim>));
  const int64_t head_tiles = a.kv_heads * ceil_div(a.group, kTileHeads);
  const int64_t blocks = std::min<int64_t>(Shape::kBlocks * ctx.cuda->num_multiprocessors(), kRoom);
  const int64_t parts = std::max<int64_t>(blocks / head_tiles, 1);  // one sends nothing
  launch_kernel(ctx, kernel, static_cast<unsigned>(parts * head_tiles), kSplitThreads, kShared, a,
                reinterpret_cast<PartialResult<dim>*>(ctx.cuda->counters()),
                reinterpret_cast<unsigned*>(ctx.cuda->counters()) + CudaContext::kNumCounters - 1);
}

// fn<what the codes are, head size>(), for what the rung takes.
template <class Fn>
auto with_codes_shape(const PagedAttentionArgs& args, Fn&& fn) {
  const auto with_dim = [&]<KvCacheDType kept_as>() {
    switch (args.q.dim(2)) {
      case 64:
        return fn.template operator()<kept_as, 64>();
      case 128:
        return fn.template operator()<kept_as, 128>();
      default:
        return fn.template operator()<kept_as, 256>();
    }
  };
  switch (args.cache.kept_as) {
    case KvCacheDType::fp8:
      return with_dim.template operator()<KvCacheDType::fp8>();
    case KvCacheDType::int8:
      return with_dim.template operator()<KvCacheDType::int8>();
    default:
      return with_dim.template operator()<KvCacheDType::int4>();
  }
}

}  // namespace

void paged_attention_of_codes_cuda_split(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.metadata.num_tokens == 0) return;
  with_codes_shape(args, [&]<KvCacheDType kept_as, int dim>() {
    if (args.q.dtype() == DType::f16)
      launch<kept_as, dim, __half>(ctx, args);
    else
      launch<kept_as, dim, __nv_bfloat16>(ctx, args);
  });
  if (args.metadata.max_query_len > 1) attention_of_codes_prefill(ctx, args, false);
}

bool paged_attention_of_codes_takes_split(const PagedAttentionArgs& args) {
  return paged_attention_of_codes_takes_tensor_core(args) && args.cache.block_size() % kStepKeys == 0 &&
         std::has_single_bit(static_cast<uint64_t>(args.cache.block_size())) &&
         fits_shared_memory(with_codes_shape(args, [&]<KvCacheDType kept_as, int dim>() {
           return static_cast<int64_t>(sizeof(CodesShared<kept_as, dim>));
         }));
}

}  // namespace ladder
