#include <algorithm>

#include "step1_layers/core/cuda_kernel.cuh"
#include "step7_parallel/context/share_inputs.h"

namespace ladder {
namespace {

constexpr int kThreads = 256;

struct Pointers {
  const int32_t *input_ids, *positions, *query_start_loc, *seq_lens, *block_tables, *rows, *all_rows,
      *sequences, *ends;
  const int64_t* slot_mapping;
  int32_t *to_input_ids, *to_positions, *to_seq_lens, *to_block_tables;
  int64_t *to_slot_mapping, *to_local_slots;
  int64_t num_rows, num_all_rows, num_local_slots, num_spans, columns, table_stride, to_table_stride;
};

Pointers pointers_of(const ShareInputsArgs& args) {
  const auto of = [](const Tensor& tensor) { return tensor.defined() ? tensor.data<int32_t>() : nullptr; };
  return {.input_ids = of(args.input_ids),
          .positions = of(args.positions),
          .query_start_loc = of(args.query_start_loc),
          .seq_lens = of(args.seq_lens),
          .block_tables = of(args.block_tables),
          .rows = of(args.rows),
          .all_rows = of(args.all_rows),
          .sequences = of(args.sequences),
          .ends = of(args.ends),
          .slot_mapping = args.slot_mapping.data<int64_t>(),
          .to_input_ids = of(args.to_input_ids),
          .to_positions = of(args.to_positions),
          .to_seq_lens = of(args.to_seq_lens),
          .to_block_tables = of(args.to_block_tables),
          .to_slot_mapping = args.to_slot_mapping.data<int64_t>(),
          .to_local_slots = args.to_local_slots.data<int64_t>(),
          .num_rows = args.rows.dim(0),
          .num_all_rows = args.all_rows.dim(0),
          .num_local_slots = args.to_local_slots.dim(0),
          .num_spans = args.sequences.dim(0),
          .columns = args.to_block_tables.dim(1),
          .table_stride = args.block_tables.stride(0),
          .to_table_stride = args.to_block_tables.stride(0)};
}

// The first blocks take rows and lengths, a thread each; every further block copies the table of a span. The next kernel is
// allowed only when all of it is written.
__global__ void __launch_bounds__(kThreads) share_inputs_kernel(Pointers p, int64_t row_blocks) {
  wait_for_previous_kernel();
  if (blockIdx.x >= row_blocks) {
    const int64_t span = blockIdx.x - row_blocks;
    const int32_t* from = p.block_tables + p.sequences[span] * p.table_stride;
    int32_t* to = p.to_block_tables + span * p.to_table_stride;
    for (int64_t i = threadIdx.x; i < p.columns; i += kThreads) to[i] = from[i];
    __threadfence();
    allow_next_kernel();
    return;
  }
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < p.num_rows) {
    const int32_t row = p.rows[i];
    p.to_positions[i] = p.positions[row];
    if (p.input_ids != nullptr) p.to_input_ids[i] = p.input_ids[row];
  }
  if (i < p.num_all_rows) {
    const int32_t row = p.all_rows[i];
    p.to_slot_mapping[i] = row < 0 ? -1 : p.slot_mapping[row];
  }
  if (i < p.num_local_slots) p.to_local_slots[i] = i;
  if (i < p.num_spans) {
    const int32_t sequence = p.sequences[i];
    const int32_t query_len = p.query_start_loc[sequence + 1] - p.query_start_loc[sequence];
    p.to_seq_lens[i] = p.seq_lens[sequence] - query_len + p.ends[i];
  }
  __threadfence();
  allow_next_kernel();
}

}  // namespace

void share_inputs_cuda(const OpContext& ctx, const ShareInputsArgs& args) {
  const Pointers p = pointers_of(args);
  const int64_t row_blocks = ceil_div<int64_t>(
      std::max({p.num_rows, p.num_all_rows, p.num_local_slots, p.num_spans, int64_t{1}}), kThreads);
  launch_kernel(ctx, share_inputs_kernel, dim3(static_cast<unsigned>(row_blocks + p.num_spans)),
                dim3(kThreads), 0, p, row_blocks);
}

}  // namespace ladder
