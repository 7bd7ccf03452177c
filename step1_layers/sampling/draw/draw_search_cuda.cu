// The fused rung of draw: any filters, however many tokens they leave.
#include <algorithm>

#include "step1_layers/sampling/draw/draw_rows_cuda.cuh"
#include "step1_layers/sampling/draw/kth_largest_cuda.cuh"
#include "step1_layers/sampling/sampling_cuda.h"

namespace ladder {

namespace {

using namespace cluster_row;

// The token of a block with the best score.
struct Winner {
  Best best;
  float logit;
};

// Weights of tokens: of those before the winner in order of logit, equals by id, and of all.
struct Mass {
  uint64_t before, total;
};

struct Shared {
  Histogram histogram;
  Contenders contenders;
  float maxima[kBlocks];
  Winner winners[kBlocks];
  Mass masses[kBlocks];
};

__device__ Mass find_mass(Shared& s, const Row& row, const Winner& winner) {
  Mass mass{0, 0};
  for_each_value(row, [&](float x, int place) {
    const uint64_t weight = weight_of(x, row.largest);
    mass.total += weight;
    if (x > winner.logit || (x == winner.logit && row.begin + place < winner.best.id)) mass.before += weight;
  });
  auto add = [](uint64_t a, uint64_t b) { return a + b; };
  mass.before = block_reduce(mass.before, uint64_t{0}, add);
  mass.total = block_reduce(mass.total, uint64_t{0}, add);
  share_with_cluster(mass, s.masses);
  mass = {0, 0};
  for (const Mass& one : s.masses) mass = {mass.before + one.before, mass.total + one.total};
  return mass;
}

}  // namespace

// >>> task 1.8.cuda: the winner of a row whose filters leave many tokens, without a sort
namespace {

// The token of the row with the best score among those that take part and stand before `last` in order of
// logit, equals by id. Every block gets it.
__device__ Winner find_winner(Shared& s, const Request& request, const Row& row, const Winner& last) {
  auto in_race = [&](float x, int32_t id) {
    const bool before = x > last.logit || (x == last.logit && id < last.best.id);
    return row.takes_part(x) && before ? x : -INFINITY;
  };
  const auto begin = static_cast<int32_t>(row.begin);
  auto logit_of = [&](int32_t id) { return in_race(row.piece[id - begin], id); };
  auto load = [&](int group, float(&x)[1][kGroup]) {
#pragma unroll
    for (float& value : x[0]) value = -INFINITY;
    if (group < row.groups) load_four(row.piece + group * kGroup, x[0]);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) x[0][i] = in_race(x[0][i], begin + group * kGroup + i);
  };
  const bool greedy = request.is_greedy();
  const int me = static_cast<int>(threadIdx.x), lane = me % kWarp;
  auto first_of = [&](int group) { return static_cast<uint32_t>(begin + group * kGroup); };
  NoisySearch search(request.noise, s.contenders);
  Best best = no_best();
  if (!greedy) {
    float x[1][kGroup];
    load(me, x);
    search.start(first_of(me), x[0]);
  }
  for (int group = me; group - lane < row.groups; group += kThreads) {
    float x[1][kGroup];
    load(group, x);
    if (greedy) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i)
        if (x[0][i] > best.value) best = {x[0][i], static_cast<int32_t>(first_of(group)) + i};
      continue;
    }
    if (!__any_sync(kAllLanes, search.can_win(x[0]))) continue;
    uint32_t smallest[1];
    search.find_smallest(first_of(group), 0, smallest);
    search.offer(first_of(group), 0, x, smallest);
  }
  best = greedy ? block_best(best) : search.finish(begin, static_cast<int32_t>(row.end), logit_of);
  share_with_cluster(Winner{best, best.id == INT_MAX ? -INFINITY : logit_of(best.id)}, s.winners);
  Winner winner = s.winners[0];
  for (const Winner& one : s.winners) {
    const Best better_one = better(winner.best, one.best);
    if (better_one.id != winner.best.id) winner = one;
  }
  return winner;
}

// min-p and top-k by their thresholds. For top-p none is needed: a token stays if the tokens before it do not
// reach the mass. So the winner among all tokens is drawn and then tested; where it fails, which happens with
// a probability of 1 - top_p, the next is drawn among those before it.
__device__ void draw_row(Shared& s, const Request& request, Row row, int32_t* id) {
  row.floor = request.floor(row.largest);
  if (request.top_k > 0) row.floor = fmaxf(row.floor, kth_largest(row, s.histogram, request.top_k));
  Winner winner{{-INFINITY, INT_MAX}, -INFINITY};
  for (bool stays = false; !stays;) {
    winner = find_winner(s, request, row, winner);
    stays = !request.cuts_mass(row.largest) || winner.best.id == INT_MAX;
    if (stays) break;
    const Mass mass = find_mass(s, row, winner);
    stays = mass.before < request.wanted(mass.total);
  }
  if (threadIdx.x == 0 && cluster_rank() == 0) *id = id_of(winner.best);
}

// search
// Rows of at most 393,216 logits. A cluster of eight blocks owns a row and keeps it in its shared memory: it
// is read once, however often its tokens are looked at, and nothing is sorted. Two blocks share a
// multiprocessor: while one searches, the other loads. Sums of weights are integers, and the split of a row
// depends on its width alone: batch invariant. Clusters go through the rows that draw_few_kernel has left, or
// through all where left is nullptr.
__global__ void __launch_bounds__(kThreads, 2) LADDER_CLUSTER_OF(kBlocks)
    draw_search_kernel(DrawRows rows, int count, const int32_t* left) {
  __shared__ Shared s;
  allow_next_kernel();
  wait_for_previous_kernel();
  const auto clusters = static_cast<int>(gridDim.x) / kBlocks, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int first = static_cast<int>(blockIdx.x) / kBlocks; first < count; first += kWarp * clusters) {
    const int mine = first + lane * clusters;  // which of 32 rows are left: one look
    unsigned todo = __ballot_sync(kAllLanes, mine < count && (left == nullptr || left[mine] != 0));
    for (; todo != 0; todo &= todo - 1) {
      const int64_t index = first + (__ffs(static_cast<int>(todo)) - 1) * clusters;
      cluster_arrive();
      const Request request(rows, index);
      float largest;
      Row row = load_row(rows.logits + index * rows.stride, rows.vocab, request.temperature, &largest);
      row.largest = block_max_or_nan(largest);
      cluster_wait();  // all blocks have started, and are done with the row before
      share_with_cluster(row.largest, s.maxima);
      for (float of_block : s.maxima) row.largest = max_or_nan(row.largest, of_block);
      if (!isnan(row.largest))
        draw_row(s, request, row, rows.ids + index);
      else if (threadIdx.x == 0 && cluster_rank() == 0)
        rows.ids[index] = kInvalidToken;
    }
  }
}

}  // namespace

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
  launch_rows(ctx, draw_search_kernel, clusters, args.logits.dim(1), draw_rows(args), static_cast<int>(rows),
              left);
}
// <<< task 1.8.cuda

bool draw_fits_cuda_fused(const DrawArgs& args) {
  return args.logits.dim(1) <= kMaxVocab;
}

}  // namespace ladder
