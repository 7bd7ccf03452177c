// The loop that says what the kernel of unpack_inputs_cuda.cu does. The engine never runs it, as on a CPU a
// step's inputs need no copy: the fake device of the tests does.
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"
#include "step4_runner/unpack_inputs.h"

namespace ladder {

// >>> task 4.5.inputs: every input to its place, the sampled tokens for their placeholders
void unpack_inputs_cpu(const UnpackInputsArgs& args) {
  const auto copy = []<class T>(const Tensor& from, const Tensor& to, T) {
    std::copy_n(from.data<T>(), from.numel(), to.data<T>());
  };
  copy(args.positions, args.to_positions, int32_t{});
  copy(args.slot_mapping, args.to_slot_mapping, int64_t{});
  copy(args.query_start_loc, args.to_query_start_loc, int32_t{});
  copy(args.seq_lens, args.to_seq_lens, int32_t{});
  copy(args.logits_indices, args.to_logits_indices, int32_t{});
  const auto *ids = args.input_ids.data<int32_t>(), *sampled = args.sampled_ids.data<int32_t>();
  for (int64_t row = 0; row < args.input_ids.numel(); ++row)
    args.to_input_ids.data<int32_t>()[row] = ids[row] >= 0 ? ids[row] : std::max(sampled[-1 - ids[row]], 0);

  const auto *update = args.table_updates.data<int32_t>(), *entries = args.table_entries.data<int32_t>();
  const auto* end = update + args.table_updates.numel() - 1;
  for (; update < end; update += 3) {
    int32_t* to =
        args.to_block_tables.data<int32_t>() + update[1] * args.to_block_tables.stride(0) + update[2];
    std::copy(entries + update[0], entries + update[3], to);  // up to the next update's first entry
  }
}
// <<< task 4.5.inputs

}  // namespace ladder
