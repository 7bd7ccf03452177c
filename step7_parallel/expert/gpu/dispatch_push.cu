// Tokens into the memory of the ranks that have their experts.
#include <algorithm>

#include "step7_parallel/expert/gpu/expert_kernel.cuh"
#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"

namespace ladder {

// dispatch of `peer`
// Rows of whole packs of 16 bytes. A block has every 128th row; of few rows each has a block.
//
//   for each of my tokens: to every rank a note, its ids there and weights; to the ranks with one of its experts its row
//   for each rank r and row: wait for the note; if it names an expert: wait for the row; both out of the buffer
//   half = 1 - half
//
// As in all_reduce_push, what is pushed says itself that it is there: the buffers hold a poison, which no id is and which
// is taken out of weights and rows: +0 in place of -0, or of the pair (+0, -0) of 16-bit floats, changes no product's sum.
// Notes come from every rank for every row, of a token or of none. Hence two halves are enough, as there: a peer writes this
// half again after it has ended the call after this one, for which it needs notes that we send when this one has ended. What
// came is copied to where the experts look for it, at an address that a graph may keep.

namespace {

struct Dispatch {
  const uint4* x;             // [tokens][packs]
  const int32_t* expert_ids;  // [tokens][top_k]
  const float* weights;
  const int2* experts;  // rank and id there
  int num_experts;      // 0: each rank has a part of every expert
  int top_k, packs, tokens, rows;
  uint4* to_x;  // [ranks][rows][packs]
  int32_t* to_ids;
  float* to_weights;
  int32_t *sent_to, *came_from;

  __device__ int64_t place(int rank, int row) const { return int64_t{rank} * rows + row; }
};

template <int max_size>
__global__ void __launch_bounds__(kMaxPeerThreads) push_tokens(ExpertGroup group, Dispatch d) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int my_rows = rows_of_block(d.rows), size = group.layout.size, me = group.rank;
  int2* const experts = reinterpret_cast<int2*>(shared);
  uint32_t* const sent_to =
      reinterpret_cast<uint32_t*>(experts + d.num_experts);  // bits, as in DispatchedTokens
  uint32_t* const came_from = sent_to + my_rows;
  allow_next_kernel();
  for (int i = thread; i < d.num_experts; i += threads) experts[i] = d.experts[i];  // no kernel writes them
  for (int i = thread; i < my_rows; i += threads) sent_to[i] = came_from[i] = 0;
  __syncthreads();
  wait_for_previous_kernel();
  ExpertCounters& counters = expert_counters(group);
  const uint32_t calls = counters.dispatches, half = calls % 2;

  for (int i = thread; i < my_rows * d.top_k; i += threads) {
    const int mine = i / d.top_k, j = i % d.top_k, row = row_of_block(mine);
    int2 expert = {-1, -1};
    uint32_t at_ranks = 0;  // bits
    float weight = 0;
    if (row < d.tokens) {
      const int id = d.expert_ids[row * d.top_k + j];
      weight = d.weights[row * d.top_k + j];
      if (d.num_experts == 0) {
        expert.y = id;
        if (id >= 0) at_ranks = (1u << size) - 1;
      } else if (id >= 0 && id < d.num_experts) {
        expert = experts[id];
        at_ranks = 1u << expert.x;
      }
    }
    if (at_ranks != 0) atomicOr(&sent_to[mine], at_ranks);
#pragma unroll
    for (int r = 0; r < max_size; ++r) {
      if (r >= size) break;
      const int id_there = at_ranks >> r & 1 ? expert.y : -1;
      if (r == me) {
        d.to_ids[d.place(me, row) * d.top_k + j] = id_there;
        d.to_weights[d.place(me, row) * d.top_k + j] = weight;
      } else {
        uint32_t* const note = note_of(group, r, me, half, row);
        store_word_for_peer(note + j, static_cast<uint32_t>(id_there));
        store_word_for_peer(note + d.top_k + j, without_poison(__float_as_uint(weight)));
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < my_rows * d.packs; i += threads) {
    const int mine = i / d.packs, pack = i % d.packs, row = row_of_block(mine);
    const uint32_t to_ranks = sent_to[mine];
    if (to_ranks == 0) continue;
    const uint4 words = d.x[int64_t{row} * d.packs + pack], sent = without_poison(words);
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (to_ranks >> r & 1) {
        if (r == me)
          d.to_x[d.place(me, row) * d.packs + pack] = words;
        else
          store_for_peer(token_of(group, r, me, half, row) + pack * 16, sent);
      }
  }

  const int notes = my_rows * d.top_k;
  for (int i = thread; i < size * notes; i += threads) {
    const int from = i / notes, mine = i % notes / d.top_k, j = i % d.top_k, row = row_of_block(mine);
    if (from == me) continue;
    uint32_t* const note = note_of(group, me, from, half, row);
    uint32_t id, weight;
    PeerWait wait(group);
    do {
      id = load_word_of_peer(note + j);
      weight = load_word_of_peer(note + d.top_k + j);
    } while ((id == kPeerPoison || weight == kPeerPoison) && !wait.is_given_up());
    note[j] = note[d.top_k + j] = kPeerPoison;
    if (static_cast<int32_t>(id) >= 0) atomicOr(&came_from[mine], 1u << from);
    d.to_ids[d.place(from, row) * d.top_k + j] = static_cast<int32_t>(id);
    d.to_weights[d.place(from, row) * d.top_k + j] = __uint_as_float(weight);
  }
  __syncthreads();
  for (int i = thread; i < my_rows * d.packs; i += threads) {
    const int mine = i / d.packs, pack = i % d.packs, row = row_of_block(mine);
    const uint32_t from_ranks = came_from[mine];
    char* slots[max_size];
    uint4 words[max_size];
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (from_ranks >> r & 1) slots[r] = token_of(group, me, r, half, row) + pack * 16;
    wait_for_packs<max_size>(group, from_ranks, slots, words);
#pragma unroll
    for (int r = 0; r < max_size; ++r)
      if (from_ranks >> r & 1) {
        d.to_x[d.place(r, row) * d.packs + pack] = words[r];
        poison_again(slots[r]);
      }
  }
  for (int i = thread; i < my_rows; i += threads) {
    d.sent_to[row_of_block(i)] = static_cast<int32_t>(sent_to[i]);
    d.came_from[row_of_block(i)] = static_cast<int32_t>(came_from[i]);
  }
  if (thread == 0) counters.dispatches = calls + 1;  // all have read it
}

}  // namespace

void dispatch_push(const OpContext& ctx, const ExpertDispatchArgs& args) {
  const GpuExpertExchange& exchange = *args.exchange;
  const ExpertGroup& group = *exchange.peers();
  const bool has_whole_experts = exchange.experts().defined();
  const int64_t rows = args.to.sent_to.dim(0), packs = group.layout.row_bytes / 16;
  if (rows == 0) return;
  const Dispatch dispatch{.x = cuda_data<uint4>(args.x),
                          .expert_ids = cuda_data<int32_t>(args.expert_ids),
                          .weights = cuda_data<float>(args.weights),
                          .experts = has_whole_experts ? cuda_data<int2>(exchange.experts()) : nullptr,
                          .num_experts = static_cast<int>(exchange.sizes().rank_of.size()),
                          .top_k = static_cast<int>(exchange.sizes().top_k),
                          .packs = static_cast<int>(packs),
                          .tokens = static_cast<int>(args.x.dim(0)),
                          .rows = static_cast<int>(rows),
                          .to_x = cuda_data<uint4>(args.to.x),
                          .to_ids = cuda_data<int32_t>(args.to.expert_ids),
                          .to_weights = cuda_data<float>(args.to.weights),
                          .sent_to = cuda_data<int32_t>(args.to.sent_to),
                          .came_from = cuda_data<int32_t>(args.to.came_from)};
  const ExpertGrid grid = expert_grid(rows, packs);
  const int64_t shared =
      (has_whole_experts ? exchange.experts().nbytes() : 0) + 2 * ceil_div<int64_t>(rows, kMaxPeerBlocks) * 4;
  with_max_peers(group.layout.size, [&](auto max_size) {
    launch_kernel(ctx, push_tokens<max_size()>, grid.blocks, grid.threads, static_cast<size_t>(shared), group,
                  dispatch);
  });
}

}  // namespace ladder
