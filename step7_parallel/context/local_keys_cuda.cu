#include <algorithm>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step7_parallel/context/local_keys.h"

namespace ladder {
namespace {

constexpr int kThreads = 256;

struct LocalKeys {
  const int32_t *slot_of, *count_of;  // of a round
  const int32_t *query_start_loc, *seq_lens;
  const int64_t* slot_mapping;
  int32_t *lengths, *fresh_lengths, *fresh_tables;
  int64_t *slots, *fresh_slots;  // fresh_slots: nullptr where all sequences have one row
  int64_t whole, part;           // slots of a round, of all ranks and of one
  int64_t num_rows, num_slots, num_seqs, columns, table_stride;

  __device__ int64_t local_slot(int64_t slot) const {
    if (slot < 0) return -1;
    const int32_t here = slot_of[slot % whole];
    return here < 0 ? -1 : slot / whole * part + here;
  }
  __device__ int64_t first_fresh_block(int64_t seq) const { return query_start_loc[seq] / kFreshSlots + seq; }
  // The last sequence for which begin_of does not exceed `at`; -1: none. It grows with the sequence.
  template <class BeginOf>
  __device__ int64_t last_begun(int64_t at, BeginOf&& begin_of) const {
    int64_t low = 0, high = num_seqs;  // the answer + 1
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (begin_of(middle) <= at)
        low = middle + 1;
      else
        high = middle;
    }
    return low - 1;
  }
};

// Every thread has one of each kind; the next kernel is allowed only when all of it is written.
__global__ void __launch_bounds__(kThreads) find_local(LocalKeys p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool has_fresh = p.fresh_slots != nullptr;
  if (i < p.num_seqs) {
    const int32_t rows = p.query_start_loc[i + 1] - p.query_start_loc[i], seq_len = p.seq_lens[i];
    const int64_t length = max(seq_len - (has_fresh ? rows : 0), 0);
    p.lengths[i] = static_cast<int32_t>(length / p.whole * p.part) + p.count_of[length % p.whole];
    if (has_fresh) p.fresh_lengths[i] = min(rows, seq_len);
  }
  if (!has_fresh) {
    if (i < p.num_slots) p.slots[i] = p.local_slot(p.slot_mapping[i]);
  } else {
    if (i < p.num_rows) {
      const int64_t seq = p.last_begun(i, [&](int64_t s) { return int64_t{p.query_start_loc[s]}; });
      const bool has_one = seq >= 0 && i < p.query_start_loc[seq + 1];
      p.fresh_slots[i] = has_one ? p.first_fresh_block(seq) * kFreshSlots + i - p.query_start_loc[seq] : -1;
    }
    if (i < p.num_slots) {
      const int64_t seq = p.last_begun(i / kFreshSlots, [&](int64_t s) { return p.first_fresh_block(s); });
      int64_t slot = -1;
      if (seq >= 0) {
        const int64_t row = p.query_start_loc[seq] + i - p.first_fresh_block(seq) * kFreshSlots;
        if (row < p.query_start_loc[seq + 1]) slot = p.local_slot(p.slot_mapping[row]);
      }
      p.slots[i] = slot;
    }
    if (i < p.num_seqs * p.columns) {
      const int64_t seq = i / p.columns, column = i % p.columns;
      p.fresh_tables[seq * p.table_stride + column] = static_cast<int32_t>(p.first_fresh_block(seq) + column);
    }
  }
  __threadfence();
  allow_next_kernel();
}

}  // namespace

void find_local_keys_cuda(const OpContext& ctx, const LocalKeysArgs& args) {
  const LocalRound& round = *args.round;
  const bool has_fresh = args.fresh_slots.defined();
  LocalKeys p{.slot_of = cuda_data<int32_t>(round.slots),
              .count_of = cuda_data<int32_t>(round.counts),
              .query_start_loc = cuda_data<int32_t>(args.query_start_loc),
              .seq_lens = cuda_data<int32_t>(args.seq_lens),
              .slot_mapping = cuda_data<int64_t>(args.slot_mapping),
              .lengths = cuda_data<int32_t>(args.lengths),
              .slots = cuda_data<int64_t>(args.slots),
              .whole = round.kv.block,
              .part = round.kv.run,
              .num_rows = args.slot_mapping.dim(0),
              .num_slots = args.slots.dim(0),
              .num_seqs = args.seq_lens.dim(0)};
  if (has_fresh) {
    p.fresh_lengths = cuda_data<int32_t>(args.fresh_lengths);
    p.fresh_tables = cuda_data<int32_t>(args.fresh_tables);
    p.fresh_slots = cuda_data<int64_t>(args.fresh_slots);
    p.columns = args.fresh_tables.dim(1);
    p.table_stride = args.fresh_tables.stride(0);
  }
  const int64_t most = std::max({p.num_rows, p.num_slots, p.num_seqs, p.num_seqs * p.columns, int64_t{1}});
  launch_kernel(ctx, find_local, static_cast<unsigned>(ceil_div<int64_t>(most, kThreads)), kThreads, 0, p);
}

}  // namespace ladder
