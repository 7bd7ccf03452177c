#include "step7_parallel/context/prefill_context_model.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step1_layers/embedding/embedding.h"
#include "step7_parallel/context/prefill_context_attention.h"
#include "step7_parallel/context/share_inputs.h"

namespace ladder {
namespace {

// to[i] = from[rows[i]]
void gather_rows(const OpContext& ctx, const Tensor& from, const Tensor& rows, const Tensor& to) {
  run_variant("embedding", embedding_variants(), ctx, EmbeddingArgs{rows, from, 0, to});
}

std::span<const int32_t> ints_of(const Tensor& tensor) {
  return {tensor.data<int32_t>(), static_cast<size_t>(tensor.dim(0))};
}

}  // namespace

PrefillContextModel::Share PrefillContextModel::share_of(const OpContext& ctx, const ModelInput& input) {
  Communicator& group = cp_group(ctx);
  Share share;
  if (input.host_query_start_loc.defined()) {
    share.plan = share_of_step(ints_of(input.host_query_start_loc), group.size(), group.rank());
    upload_.begin(ctx, StepUpload::bytes_of<int32_t>(share.plan.numel()));
    const auto staged = upload_.take<int32_t>(share.plan.numel());
    share.plan.write(staged.host);
    upload_.send(ctx);
    const auto sent = std::make_shared<DeviceEvent>();
    sent->record(ctx);
    upload_.keep_until(sent);
    share.lists = share.plan.views(staged.device);
    return share;
  }
  const int64_t sequences = input.attention.num_seqs;
  if (const auto known = single_rows_.find(sequences); known != single_rows_.end()) return known->second;
  std::vector<int32_t> starts(static_cast<size_t>(sequences + 1));
  std::iota(starts.begin(), starts.end(), 0);
  share.plan = share_of_step(starts, group.size(), group.rank());
  const Tensor host = Tensor::empty({share.plan.numel()}, DType::i32);
  share.plan.write(host.data<int32_t>());
  share.lists = share.plan.views(host.to(ctx.device));
  return single_rows_[sequences] = share;
}

ModelInput PrefillContextModel::pick_inputs(const OpContext& ctx, const Share& share,
                                            const ModelInput& input) const {
  const AttentionMetadata& whole = input.attention;
  const auto& [rows, all_rows, places, sequences, ends, query_start_loc] = share.lists;
  const int64_t block_size = input.kv_caches[0].block_size(), spans = sequences.dim(0), all = all_rows.dim(0);
  const int64_t columns =
      std::clamp<int64_t>((whole.max_seq_len + block_size - 1) / block_size, 1, whole.block_tables.dim(1));
  const auto take = [&](const Shape& shape, DType dtype) { return ctx.arena->take(shape, dtype); };

  ModelInput mine = input;
  mine.positions = take({rows.dim(0)}, DType::i32);
  if (pp_group(ctx).rank() == 0) mine.input_ids = take({rows.dim(0)}, DType::i32);
  AttentionMetadata& part = mine.attention;
  part.query_start_loc = query_start_loc;
  part.seq_lens = take({spans}, DType::i32);
  part.block_tables = take({spans, columns}, DType::i32);
  part.slot_mapping = take({all + share.plan.most}, DType::i64);
  part.num_seqs = spans;
  part.num_tokens = rows.dim(0);
  part.max_query_len = share.plan.max_query_len;

  ShareInputsArgs args;
  if (pp_group(ctx).rank() == 0) args.input_ids = input.input_ids;
  args.positions = input.positions;
  args.slot_mapping = whole.slot_mapping;
  args.query_start_loc = whole.query_start_loc;
  args.seq_lens = whole.seq_lens;
  args.block_tables = whole.block_tables;
  args.rows = rows;
  args.all_rows = all_rows;
  args.sequences = sequences;
  args.ends = ends;
  if (pp_group(ctx).rank() == 0) args.to_input_ids = mine.input_ids;
  args.to_positions = mine.positions;
  args.to_slot_mapping = part.slot_mapping.rows(all);
  args.to_local_slots = part.slot_mapping.narrow(0, all, share.plan.most);
  args.to_seq_lens = part.seq_lens;
  args.to_block_tables = part.block_tables;
  share_inputs(ctx, args);
  return mine;
}

// >>> task 7.12: this rank's rows through the layers, and all hidden states to rank 0
Tensor PrefillContextModel::forward(const OpContext& ctx, const ModelInput& input) {
  Communicator &group = cp_group(ctx), &pp = pp_group(ctx);
  const int64_t hidden_size = spec().hidden_size;
  const Tensor result = ctx.arena->take({input.positions.dim(0), hidden_size}, dtype());
  const ArenaScope scope(*ctx.arena);
  const Share share = share_of(ctx, input);
  const int64_t rows = share.lists.rows.dim(0), most = share.plan.most;

  ModelInput mine = pick_inputs(ctx, share, input);
  if (pp.rank() > 0) {
    mine.hidden = ctx.arena->take({rows, hidden_size}, dtype());
    gather_rows(ctx, input.hidden, share.lists.rows, mine.hidden);
  }
  const Tensor hidden = decoder_->forward(ctx, mine);

  const Tensor part = ctx.arena->take({most, hidden_size}, dtype());
  part.rows(rows).copy_from(hidden, ctx.stream);
  const Tensor all = ctx.arena->take({group.size() * most, hidden_size}, dtype());
  if (pp.rank() + 1 < pp.size())  // the next stage's rank of this number picks the same rows
    all.narrow(0, group.rank() * most, most).copy_from(part, ctx.stream);
  else
    group.gather(ctx, part, all, 0);
  gather_rows(ctx, all, share.lists.places, result.rows(share.lists.places.dim(0)));
  return result;
}
// <<< task 7.12

Tensor PrefillContextModel::compute_logits(const OpContext& ctx, const Tensor& hidden) {
  return cp_group(ctx).rank() == 0 ? decoder_->compute_logits(ctx, hidden) : Tensor();
}

void share_out_prefill(ModelMakers& makers, int ranks) {
  if (ranks == 1) return;
  LADDER_CHECK(
      !makers.attention && !makers.around_decoder,
      "--prefill-context-parallel-size {}: another part of the program makes the attention or the model",
      ranks);
  makers.attention = make_prefill_context_attention;
  makers.around_decoder = [](std::unique_ptr<Model> decoder) {
    return std::make_unique<PrefillContextModel>(std::move(decoder));
  };
}

}  // namespace ladder
