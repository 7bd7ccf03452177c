#include "step7_parallel/context/prefill_context_model.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/context/prefill_context_attention.h"
#include "step7_parallel/context/prefill_rows.h"

namespace ladder {
namespace {

// A step as one rank of a group computes it.
struct SharedStep {
  std::vector<std::vector<int64_t>> rows;  // by rank, which of the step's
  std::vector<int64_t> mine;               // rows of this rank; without any it computes row 0, for nobody
  int64_t most = 1;                        // rows of the rank that has the most
  AttentionMetadata attention;             // of `mine`; slot_mapping as the attention wants it
};

// The rows of each span are a sequence of their own: they end where their last key is.
AttentionMetadata metadata_of(const std::vector<RowSpan>& spans, const AttentionMetadata& whole) {
  const int32_t *starts = whole.query_start_loc.data<int32_t>(), *seq_lens = whole.seq_lens.data<int32_t>();
  AttentionMetadata part = whole;
  part.num_seqs = std::ssize(spans);
  part.num_tokens = part.max_query_len = part.max_seq_len = 0;
  part.block_tables = Tensor::empty({part.num_seqs, whole.block_tables.dim(1)}, DType::i32);
  std::vector<int32_t> query_start_loc{0}, lengths;
  for (const auto& [sequence, tokens] : spans) {
    const int64_t before = seq_lens[sequence] - (starts[sequence + 1] - starts[sequence]);
    part.block_tables.select(0, std::ssize(lengths)).copy_from(whole.block_tables.select(0, sequence));
    lengths.push_back(static_cast<int32_t>(before + tokens.end));
    part.num_tokens += tokens.size();
    query_start_loc.push_back(static_cast<int32_t>(part.num_tokens));
    part.max_query_len = std::max(part.max_query_len, tokens.size());
    part.max_seq_len = std::max<int64_t>(part.max_seq_len, lengths.back());
  }
  part.query_start_loc = Tensor::from<int32_t>(query_start_loc, {part.num_seqs + 1});
  part.seq_lens = Tensor::from<int32_t>(lengths, {part.num_seqs});
  return part;
}

SharedStep share_of_step(const AttentionMetadata& whole, const Communicator& group) {
  const std::span starts(whole.query_start_loc.data<int32_t>(), static_cast<size_t>(whole.num_seqs + 1));
  auto shares = share_out_rows(starts, group.size());
  SharedStep step;
  for (const std::vector<RowSpan>& spans : shares) {
    std::vector<int64_t>& rows = step.rows.emplace_back();
    for (const auto& [sequence, tokens] : spans)
      for (int64_t token = tokens.begin; token < tokens.end; ++token)
        rows.push_back(starts[static_cast<size_t>(sequence)] + token);
    step.most = std::max(step.most, std::ssize(rows));
  }
  std::vector<RowSpan>& spans = shares[static_cast<size_t>(group.rank())];
  step.mine = step.rows[static_cast<size_t>(group.rank())];
  if (spans.empty()) {
    spans = {{0, {0, 1}}};
    step.mine = {0};
  }
  step.attention = metadata_of(spans, whole);
  std::vector<int64_t> slots(static_cast<size_t>(group.size() * step.most), -1);
  for (size_t rank = 0; rank < step.rows.size(); ++rank)
    for (size_t i = 0; i < step.rows[rank].size(); ++i)
      slots[rank * static_cast<size_t>(step.most) + i] =
          whole.slot_mapping.data<int64_t>()[step.rows[rank][i]];
  step.attention.slot_mapping = Tensor::from<int64_t>(slots, {std::ssize(slots)});
  return step;
}

// Row rows[i] of `whole`, and row i of `part`.
void pick_rows(const Tensor& whole, const std::vector<int64_t>& rows, const Tensor& part) {
  for (size_t i = 0; i < rows.size(); ++i)
    part.select(0, static_cast<int64_t>(i)).copy_from(whole.select(0, rows[i]));
}
void put_rows(const Tensor& part, const std::vector<int64_t>& rows, const Tensor& whole) {
  for (size_t i = 0; i < rows.size(); ++i)
    whole.select(0, rows[i]).copy_from(part.select(0, static_cast<int64_t>(i)));
}

}  // namespace

// >>> task 7.12: this rank's rows through the layers, and all hidden states to rank 0
Tensor PrefillContextModel::forward(const OpContext& ctx, const ModelInput& input) {
  Communicator &group = cp_group(ctx), &pp = pp_group(ctx);
  const SharedStep step = share_of_step(input.attention, group);
  const int64_t rows = std::ssize(step.mine), hidden_size = spec().hidden_size;
  const Tensor result = ctx.arena->take({input.positions.dim(0), hidden_size}, dtype());
  const ArenaScope scope(*ctx.arena);

  ModelInput mine = input;
  mine.attention = step.attention;
  mine.positions = ctx.arena->take({rows}, DType::i32);
  pick_rows(input.positions, step.mine, mine.positions);
  if (pp.rank() == 0) {
    mine.input_ids = ctx.arena->take({rows}, DType::i32);
    pick_rows(input.input_ids, step.mine, mine.input_ids);
  } else {
    mine.hidden = ctx.arena->take({rows, hidden_size}, dtype());
    pick_rows(input.hidden, step.mine, mine.hidden);
  }
  const Tensor hidden = decoder_->forward(ctx, mine);

  const auto& own = step.rows[static_cast<size_t>(group.rank())];
  put_rows(hidden, own, result);
  if (pp.rank() + 1 < pp.size()) return result;  // the next stage's rank of this number picks the same rows
  const Tensor part = ctx.arena->take({step.most, hidden_size}, dtype());
  part.rows(rows).copy_from(hidden);
  const Tensor all = ctx.arena->take({group.size() * step.most, hidden_size}, dtype());
  group.gather(ctx, part, all, 0);
  for (int rank = 1; group.rank() == 0 && rank < group.size(); ++rank)
    put_rows(all.narrow(0, rank * step.most, step.most), step.rows[static_cast<size_t>(rank)], result);
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
