// The fused rung of draw: any filters, however many tokens they leave.
#include <algorithm>

#include "step1_layers/sampling/draw_search_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace cluster_row;

struct Shared {
  Histogram histogram;
  Contenders contenders;
  float maxima[kBlocks];
  uint64_t equal[kBlocks];
  int limit;
};

// Of the tokens that equal `value` the first `kept` of the row stay: from which place in this block's piece
// on they are cut.
__device__ int first_cut(Shared& s, const Row& row, float value, uint64_t kept) {
  uint64_t equal = 0;
  for_each_value(row, [&](float x, int) { equal += x == value ? 1 : 0; });
  equal = block_reduce(equal, uint64_t{0}, [](uint64_t a, uint64_t b) { return a + b; });
  share_with_cluster(equal, s.equal);
  const int me = cluster_rank();
  for (int rank = 0; rank < me; ++rank) kept -= min(kept, s.equal[rank]);
  const int length = row.groups * kGroup;
  if (kept >= equal) return length;
  if (threadIdx.x == 0) s.limit = length;
  uint64_t before = 0;  // equal tokens of the groups before
  for (int first = 0; first < row.groups; first += kThreads) {
    const int group = first + static_cast<int>(threadIdx.x);
    float values[kGroup] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (group < row.groups) load_four(row.piece + group * kGroup, values);
    uint64_t mine = 0;
    for (float x : values) mine += row.takes_part(x) && x == value ? 1 : 0;
    const Scan scan = block_scan(mine);
    uint64_t rank = before + scan.before;
    for (int i = 0; i < kGroup; ++i)
      if (row.takes_part(values[i]) && values[i] == value && rank++ == kept) s.limit = group * kGroup + i;
    before += scan.total;
  }
  __syncthreads();
  return s.limit;
}

// Thresholds by search, then the best of what stays.
__device__ void draw_by_search(Shared& s, const Request& request, Row row, int32_t* id) {
  row.floor = request.floor(row.largest);
  if (request.top_k > 0) {
    const Threshold last = find_threshold(
        row, s.histogram, [](float) { return uint64_t{1}; },
        [&](uint64_t) { return static_cast<uint64_t>(request.top_k); });
    if (last.exists) row.floor = fmaxf(row.floor, last.value);
  }
  int cut = row.groups * kGroup;
  if (request.top_p < 1.0f) {
    const Threshold last = find_threshold(
        row, s.histogram, [&](float x) { return weight_of(x, row.largest); },
        [&](uint64_t total) { return total == 0 ? 1 : request.wanted(total); });
    if (last.exists) {
      row.floor = last.value;
      const uint64_t each = weight_of(last.value, row.largest);
      cut = first_cut(s, row, last.value, (last.rest + each - 1) / each);
    }
  }

  const bool greedy = request.is_greedy();
  Best best = no_best();
  auto logit_of = [&](int32_t id) { return row.piece[id - row.begin]; };
  NoisySearch search(request.noise, s.contenders);
  for (int warp_first = static_cast<int>(threadIdx.x) / kWarp * kWarp; warp_first < row.groups;
       warp_first += kThreads) {
    const int group = warp_first + static_cast<int>(threadIdx.x) % kWarp;
    float values[kGroup] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (group < row.groups) load_four(row.piece + group * kGroup, values);
    const auto first = static_cast<int32_t>(row.begin + group * kGroup);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const bool is_cut = values[i] == row.floor && group * kGroup + i >= cut;
      if (!row.takes_part(values[i]) || is_cut) values[i] = -INFINITY;
      if (greedy && values[i] > best.value) best = {values[i], first + i};
    }
    if (!greedy) search.offer(static_cast<uint32_t>(first), values, logit_of);
    if (!greedy) search.share_bound();
  }
  best = cluster_best<kBlocks>(greedy ? block_best(best) : search.finish(logit_of));
  if (threadIdx.x == 0 && cluster_rank() == 0) *id = id_of(best);
}

// search
// Rows of at most 393,216 logits. A cluster of eight blocks owns a row and keeps it in its shared memory: it
// is read once, and the thresholds are found by counting in bins, without a sort. Two blocks share a
// multiprocessor: while one searches, the other loads. Sums of weights are integers, and the split of a row
// depends on its width alone: batch invariant. Clusters go through the rows that draw_few_kernel has left, or
// through all where left is nullptr.
__global__ void __launch_bounds__(kThreads, 2) __cluster_dims__(kBlocks)
    draw_search_kernel(DrawRows rows, int64_t count, const int32_t* left) {
  __shared__ Shared s;
  allow_next_kernel();
  cluster_arrive();
  wait_for_previous_kernel();
  cluster_wait();
  for (int64_t index = blockIdx.x / kBlocks; index < count; index += gridDim.x / kBlocks) {
    if (left != nullptr && left[index] == 0) continue;
    const Request request(rows, index);
    float mine;
    Row row = load_row(rows.logits + index * rows.stride, rows.vocab, request.temperature, &mine);
    row.largest = block_max(mine);
    share_with_cluster(row.largest, s.maxima);
    for (float largest : s.maxima) row.largest = fmaxf(row.largest, largest);
    draw_by_search(s, request, row, rows.ids + index);
  }
}

}  // namespace

bool draw_fits_cuda_fused(const DrawArgs& args) {
  return args.logits.dim(1) <= kMaxVocab;
}

void draw_cuda_fused(const OpContext& ctx, const DrawArgs& args) {
  const int64_t rows = args.logits.dim(0);
  if (rows == 0) return;
  if (!args.min_p.defined() && !args.top_k.defined() && !args.top_p.defined())
    return draw_cuda_plain(ctx, args);
  ArenaScope scope(*ctx.arena);
  int32_t* left = nullptr;
  if (args.top_k.defined()) {
    left = cuda_data<int32_t>(ctx.arena->take({rows}, DType::i32));
    draw_cuda_few(ctx, args, left);
  }
  // After draw_few_kernel hardly a row is left: as many clusters as run at a time go through them.
  const int64_t at_once = 2 * ctx.cuda->num_multiprocessors() / kBlocks;
  const int64_t clusters = left == nullptr ? rows : std::min(rows, at_once);
  launch_rows(ctx, draw_search_kernel, clusters, args.logits.dim(1), draw_rows(args), rows, left);
}

}  // namespace ladder
