#include "step7_parallel/context/share_inputs.h"

#include <algorithm>
#include <numeric>

namespace ladder {
namespace {

void share_inputs_loop(const OpContext&, const ShareInputsArgs& args) {
  const auto of = [](const Tensor& tensor) { return tensor.data<int32_t>(); };
  for (int64_t i = 0; i < args.rows.dim(0); ++i) {
    const int32_t row = of(args.rows)[i];
    of(args.to_positions)[i] = of(args.positions)[row];
    if (args.input_ids.defined()) of(args.to_input_ids)[i] = of(args.input_ids)[row];
  }
  for (int64_t i = 0; i < args.all_rows.dim(0); ++i) {
    const int32_t row = of(args.all_rows)[i];
    args.to_slot_mapping.data<int64_t>()[i] = row < 0 ? -1 : args.slot_mapping.data<int64_t>()[row];
  }
  int64_t* local = args.to_local_slots.data<int64_t>();
  std::iota(local, local + args.to_local_slots.dim(0), 0);
  for (int64_t span = 0; span < args.sequences.dim(0); ++span) {
    const int32_t sequence = of(args.sequences)[span], *starts = of(args.query_start_loc) + sequence;
    of(args.to_seq_lens)[span] = of(args.seq_lens)[sequence] - (starts[1] - starts[0]) + of(args.ends)[span];
    const int32_t* table = of(args.block_tables) + sequence * args.block_tables.stride(0);
    std::copy_n(table, args.to_block_tables.dim(1),
                of(args.to_block_tables) + span * args.to_block_tables.stride(0));
  }
}

constexpr Variant<ShareInputsArgs> kVariants[] = {
    {.name = "loop", .idea = "value by value", .run = share_inputs_loop},
#ifdef LADDER_HAS_CUDA
    {.name = "one_kernel",
     .device = DeviceType::cuda,
     .idea = "a thread per row, and a block per span for its table",
     .run = share_inputs_cuda},
#endif
};

}  // namespace

std::span<const Variant<ShareInputsArgs>> share_inputs_variants() {
  return kVariants;
}

void share_inputs(const OpContext& ctx, const ShareInputsArgs& args) {
  run_variant("share_inputs", share_inputs_variants(), ctx, args);
}

}  // namespace ladder
