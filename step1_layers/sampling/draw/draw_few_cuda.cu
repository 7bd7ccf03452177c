// The fused rung of draw where few tokens of a row can win: small k, and greedy rows.
#include "step1_layers/sampling/candidates_cuda.cuh"
#include "step1_layers/sampling/draw/draw_rows_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace cluster_row;

constexpr int kPerMultiprocessor = 2;
constexpr int kUnroll = 5;  // loads in flight per thread
template <int blocks>       // eight blocks have little to look at again
constexpr int kParts = blocks == 8 ? 1 : kUnroll;

struct BlockState {
  float largest;
  int candidates;
};

template <int blocks>
struct Shared {
  Candidates candidates;
  BlockState states[blocks];
};

// Draws from the candidates of all blocks, in the first block of the cluster; false where ties make them too
// many.
template <int blocks>
__device__ bool draw_from_candidates(Shared<blocks>& s, const Request& request, Row row, int64_t k,
                                     int32_t* id) {
  int counts[blocks];
#pragma unroll
  for (int rank = 0; rank < blocks; ++rank) counts[rank] = s.states[rank].candidates;
  row.floor = request.floor(row.largest);
  const int count = sort_candidates(s.candidates, row, counts, k);
  if (count > kList) return false;

  const Best* sorted = s.candidates.sorted;
  const int me = static_cast<int>(threadIdx.x);
  const Best mine = me < count ? sorted[me] : no_best();
  bool kept = me < count && (k > count || mine.value >= sorted[k - 1].value);
  if (request.cuts_mass(row.largest)) {
    const Scan scan = block_scan(kept ? weight_of(mine.value, row.largest) : 0);
    kept = kept && scan.before < request.wanted(scan.total);
  }
  Best best = no_best();
  if (kept) {
    uint32_t words[kGroup];
    request.noise.words(static_cast<uint32_t>(mine.id) / kGroup * kGroup, words);
    const int word = mine.id % kGroup;
    const uint32_t first = word % 2 == 0 ? words[0] : words[1], second = word % 2 == 0 ? words[2] : words[3];
    const float noise = request.is_greedy() ? 0.0f : noise_of(word < 2 ? first : second);
    best = {mine.value + noise, mine.id};
  }
  best = block_best(best);
  if (threadIdx.x == 0) *id = id_of(best);
  return true;
}

// few
// Rows of any length. A cluster of blocks reads a row once and lists the few tokens that can be among the k
// best: what a few hundredths of the threads' parts held is read again. The first block sorts, filters and
// draws from the lists. Nothing else is kept, so that the logits stream; there are as many blocks as run at
// once, since a second round of them would find the chip half empty. left[row] says whether the row is left
// to the search: no k, a large one, or hundreds of equals.
template <int blocks>
__global__ void __launch_bounds__(kThreads, kPerMultiprocessor) LADDER_CLUSTER_OF(blocks)
    draw_few_kernel(DrawRows rows, int32_t* left) {
  __shared__ Shared<blocks> s;
  allow_next_kernel();
  cluster_arrive();
  wait_for_previous_kernel();
  const int64_t index = blockIdx.x / blocks;
  const Request request(rows, index);
  const int64_t k = request.is_greedy() ? 1 : request.top_k;
  const bool leads = cluster_rank() == 0 && threadIdx.x == 0;
  cluster_wait();
  if (k <= 0 || k > kSmallK) {
    if (leads) left[index] = 1;
    return;
  }
  const float* x = rows.logits + index * rows.stride;
  const int64_t piece = piece_size<blocks>(rows.vocab);
  const int64_t begin = min(cluster_rank() * piece, rows.vocab), end = min(begin + piece, rows.vocab);
  const bool divides = !request.is_greedy() && request.temperature != 1.0f;
  auto logit = [&](float value) { return divides ? __fdiv_rn(value, request.temperature) : value; };
  float mine[kParts<blocks>], largest = -INFINITY;
  for (float& part : mine) part = -INFINITY;
  for_each_group<kThreads, kUnroll>(x, begin, end, [&](int j, int64_t, const float(&values)[kGroup]) {
    float& part = mine[j % kParts<blocks>];
    part = max_or_nan(part, max_or_nan(values));
  });
  for (float& part : mine) {
    part = logit(part);  // the quotient keeps the order
    largest = max_or_nan(largest, part);
  }
  Row row{.piece = nullptr, .groups = 0, .begin = begin, .end = end, .largest = block_max_or_nan(largest)};
  const bool aligned = is_aligned(x);
  list_candidates(s.candidates, row, mine, k, [&](int64_t first, float(&values)[kGroup]) {
    load_group(x, first, end, aligned, values);
    for (float& value : values) value = logit(value);
  });
  share_with_cluster(BlockState{row.largest, s.candidates.count}, s.states);
  bool fits = true;
  for (const BlockState& state : s.states) {
    row.largest = max_or_nan(row.largest, state.largest);
    fits = fits && state.candidates <= kList;
  }
  if (isnan(row.largest)) {
    if (leads) rows.ids[index] = kInvalidToken;
    if (leads) left[index] = 0;
  } else if (cluster_rank() == 0) {
    const bool done = fits && draw_from_candidates(s, request, row, k, rows.ids + index);
    if (leads) left[index] = done ? 0 : 1;
  }
  cluster_sync();  // the first block has read the lists
}

}  // namespace

void draw_cuda_few(const OpContext& ctx, const DrawArgs& args, int32_t* left) {
  with_blocks_per_row<2>(ctx, args.logits, kPerMultiprocessor, [&](auto blocks) {
    launch_kernel(ctx, draw_few_kernel<blocks>, static_cast<unsigned>(args.logits.dim(0) * blocks), kThreads,
                  0, draw_rows(args), left);
  });
}

}  // namespace ladder
