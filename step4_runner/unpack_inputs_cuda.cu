#include <algorithm>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/task_not_implemented.h"
#include "step4_runner/unpack_inputs.h"

namespace ladder {

namespace {

constexpr int kThreads = 256;

struct Pointers {
  const int32_t *input_ids, *positions, *query_start_loc, *seq_lens, *logits_indices, *table_updates,
      *table_entries, *sampled_ids;
  const int64_t* slot_mapping;
  int32_t *to_input_ids, *to_positions, *to_query_start_loc, *to_seq_lens, *to_logits_indices,
      *to_block_tables;
  int64_t* to_slot_mapping;
  int64_t rows, seqs, logits_rows, updates, table_stride;
};

Pointers pointers_of(const UnpackInputsArgs& args) {
  Pointers p{};
  const auto from = [](const Tensor& tensor) { return tensor.data<int32_t>(); };
  p.input_ids = from(args.input_ids);
  p.positions = from(args.positions);
  p.query_start_loc = from(args.query_start_loc);
  p.seq_lens = from(args.seq_lens);
  p.logits_indices = from(args.logits_indices);
  p.table_updates = from(args.table_updates);
  p.table_entries = from(args.table_entries);
  p.sampled_ids = from(args.sampled_ids);
  p.slot_mapping = args.slot_mapping.data<int64_t>();
  p.to_input_ids = from(args.to_input_ids);
  p.to_positions = from(args.to_positions);
  p.to_query_start_loc = from(args.to_query_start_loc);
  p.to_seq_lens = from(args.to_seq_lens);
  p.to_logits_indices = from(args.to_logits_indices);
  p.to_block_tables = from(args.to_block_tables);
  p.to_slot_mapping = args.to_slot_mapping.data<int64_t>();
  p.rows = args.input_ids.dim(0);
  p.seqs = args.seq_lens.dim(0);
  p.logits_rows = args.logits_indices.dim(0);
  p.updates = (args.table_updates.dim(0) - 1) / 3;
  p.table_stride = args.to_block_tables.stride(0);
  return p;
}

}  // namespace

// >>> task 4.5.cuda: the loop of unpack_inputs_cpu.cpp as one kernel
// The first blocks copy rows, a thread each; every further block writes one update of the block tables. The
// next kernel is allowed only then: some read lengths and tables before they wait (kv_cache.h).
static __global__ void __launch_bounds__(kThreads) unpack_inputs(Pointers p, int64_t row_blocks) {
  wait_for_previous_kernel();
  if (blockIdx.x >= row_blocks) {
    const int32_t* update = p.table_updates + (blockIdx.x - row_blocks) * 3;
    const int64_t count = update[3] - update[0];  // the next update's first entry
    int32_t* to = p.to_block_tables + update[1] * p.table_stride + update[2];
    for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = p.table_entries[update[0] + i];
    __threadfence();
    allow_next_kernel();
    return;
  }
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < p.rows) {
    const int32_t id = p.input_ids[i];
    // A sampled id may be kInvalidToken: its sequence is about to be dropped, and any token does until then.
    p.to_input_ids[i] = id >= 0 ? id : max(p.sampled_ids[-1 - id], 0);
    p.to_positions[i] = p.positions[i];
    p.to_slot_mapping[i] = p.slot_mapping[i];
  }
  if (i < p.seqs) p.to_seq_lens[i] = p.seq_lens[i];
  if (i < p.seqs + 1) p.to_query_start_loc[i] = p.query_start_loc[i];
  if (i < p.logits_rows) p.to_logits_indices[i] = p.logits_indices[i];
  __threadfence();
  allow_next_kernel();
}

void unpack_inputs_cuda(const OpContext& ctx, const UnpackInputsArgs& args) {
  const Pointers p = pointers_of(args);
  const int64_t row_blocks = ceil_div<int64_t>(std::max(p.rows, p.seqs + 1), kThreads);
  launch_kernel(ctx, unpack_inputs, dim3(static_cast<unsigned>(row_blocks + p.updates)), dim3(kThreads), 0, p,
                row_blocks);
}
// <<< task 4.5.cuda

}  // namespace ladder
