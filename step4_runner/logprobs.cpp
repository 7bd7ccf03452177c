#include "step4_runner/logprobs.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder {

namespace {

// What is computed of one chunk of positions, and what comes back.
struct LogprobsShape {
  int64_t rows = 0, num_top = 0, num_selected = 0, num_whole = 0, vocab_size = 0;

  LogprobsShape(std::span<const WantedLogprobs> wanted, int64_t num_selected, int64_t vocab_size)
      : rows(std::ssize(wanted)), num_selected(num_selected), vocab_size(vocab_size) {
    for (const WantedLogprobs& one : wanted) {
      num_top = std::max(num_top, std::min(one.top, vocab_size));
      num_whole += one.top < 0;
    }
  }
  int64_t download_bytes() const {
    const auto piece = [](int64_t count) { return StepUpload::bytes_of<float>(count); };
    return 2 * (piece(rows) + piece(rows * num_top) + piece(rows * num_selected)) +
           num_whole * piece(vocab_size);
  }
};

}  // namespace

int64_t max_selected(std::span<const WantedLogprobs> wanted) {
  int64_t count = 0;
  for (const WantedLogprobs& one : wanted) count = std::max(count, std::ssize(one.selected));
  return count;
}

void write_selected_ids(std::span<const WantedLogprobs> wanted, int64_t columns, int32_t* to) {
  for (const WantedLogprobs& one : wanted) {
    std::fill(std::ranges::copy(one.selected, to).out, to + columns, kInvalidToken);
    to += columns;
  }
}

int64_t logprobs_download_bytes(std::span<const WantedLogprobs> wanted, int64_t num_selected,
                                int64_t vocab_size) {
  return LogprobsShape(wanted, num_selected, vocab_size).download_bytes();
}

LoggedRows position_logprobs(const OpContext& ctx, const Tensor& logits, const Tensor& chosen,
                             std::span<const WantedLogprobs> wanted, const Tensor& selected_ids,
                             StepDownload& download) {
  ArenaScope scope(*ctx.arena);
  const LogprobsShape shape(wanted, selected_ids.defined() ? selected_ids.dim(1) : 0, logits.dim(1));
  const auto columns = [&](int64_t count, DType dtype) {
    return count > 0 ? ctx.arena->take({shape.rows, count}, dtype) : Tensor();
  };
  TopLogprobsArgs args;
  args.logits = logits;
  args.chosen = chosen;
  args.chosen_logprobs = ctx.arena->take({shape.rows}, DType::f32);
  args.top_ids = columns(shape.num_top, DType::i32);
  args.top_logprobs = columns(shape.num_top, DType::f32);
  args.selected_ids = selected_ids;
  args.selected_logprobs = columns(shape.num_selected, DType::f32);
  top_logprobs(ctx, args);

  LoggedRows logged;
  logged.chosen = download.take(ctx, chosen);
  logged.chosen_logprobs = download.take(ctx, args.chosen_logprobs);
  logged.top_ids = download.take(ctx, args.top_ids);
  logged.top_logprobs = download.take(ctx, args.top_logprobs);
  logged.selected_ids = download.take(ctx, args.selected_ids);
  logged.selected_logprobs = download.take(ctx, args.selected_logprobs);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const WantedLogprobs& one = wanted[static_cast<size_t>(row)];
    logged.top.push_back(one.top);
    logged.num_selected.push_back(std::ssize(one.selected));
    if (one.top >= 0) continue;
    const Tensor whole = logits.narrow(0, row, 1);
    log_softmax(ctx, whole, whole);
    logged.whole.push_back(download.take(ctx, whole));
  }
  return logged;
}

namespace {

// Best first, equals by id.
std::vector<TokenLogprob> sorted_vocabulary(const Tensor& whole) {
  std::vector<TokenLogprob> result(static_cast<size_t>(whole.numel()));
  for (size_t id = 0; id < result.size(); ++id)
    result[id] = {static_cast<int32_t>(id), whole.data<float>()[id]};
  // Where one is NaN all are, and every order is right.
  std::stable_sort(result.begin(), result.end(),
                   [](const TokenLogprob& a, const TokenLogprob& b) { return a.logprob > b.logprob; });
  return result;
}

}  // namespace

std::vector<PositionLogprobs> read_logprobs(const LoggedRows& logged) {
  std::vector<PositionLogprobs> result(logged.top.size());
  auto whole = logged.whole.begin();
  for (size_t r = 0; r < result.size(); ++r) {
    const auto row = static_cast<int64_t>(r);
    result[r].chosen = {logged.chosen.data<int32_t>()[r], logged.chosen_logprobs.data<float>()[r]};
    const auto read = [row](const Tensor& ids, const Tensor& logprobs, int64_t wanted) {
      std::vector<TokenLogprob> list;
      if (!ids.defined()) return list;
      const int64_t first = row * ids.dim(1), count = std::min(wanted, ids.dim(1));
      for (int64_t i = first; i < first + count; ++i)
        list.push_back({ids.data<int32_t>()[i], logprobs.data<float>()[i]});
      return list;
    };
    result[r].top = logged.top[r] < 0 ? sorted_vocabulary(*whole++)
                                      : read(logged.top_ids, logged.top_logprobs, logged.top[r]);
    result[r].selected = read(logged.selected_ids, logged.selected_logprobs, logged.num_selected[r]);
  }
  return result;
}

}  // namespace ladder
