#include "step4_runner/sampler.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/draw.h"
#include "step1_layers/sampling/temperature.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder {

namespace {

using Sequences = std::span<BatchSequence* const>;

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 ||
         params.frequency_penalty != 0.0;
}

bool is_greedy(const SamplingParams& params) {  // as the operators see it, which take floats
  return static_cast<float>(params.temperature) < kLeastTemperature;
}

template <class Wants>
bool any_row(Sequences sequences, Wants wants) {
  return std::any_of(sequences.begin(), sequences.end(),
                     [&](const BatchSequence* sequence) { return wants(*sequence); });
}

// One value per row.
template <class T, class Get>
Tensor row_values(StepUpload& upload, Sequences sequences, Get get) {
  const auto staged = upload.take<T>(static_cast<int64_t>(sequences.size()));
  for (size_t r = 0; r < sequences.size(); ++r) staged.host[r] = static_cast<T>(get(*sequences[r]));
  return staged.device;
}

// Brought up to date, so that their number is known before anything is staged.
int64_t num_penalty_entries(Sequences sequences) {
  int64_t entries = 0;
  for (BatchSequence* sequence : sequences) {
    if (!has_penalties(sequence->sampling)) continue;
    sequence->counts.update(sequence->token_ids, sequence->num_prompt_tokens);
    entries += static_cast<int64_t>(sequence->counts.token_ids().size());
  }
  return entries;
}

// >>> task 4.3: penalties and the draw, each stage only where a row asks for it
void plan_penalties(SamplingPlan& plan, Sequences sequences, StepUpload& upload) {
  const int64_t entries = num_penalty_entries(sequences);
  const auto row_start = upload.take<int32_t>(plan.rows + 1);
  const auto token_ids = upload.take<int32_t>(entries);
  const auto output_counts = upload.take<int32_t>(entries);
  int32_t entry = 0;
  for (size_t r = 0; r < sequences.size(); ++r) {
    row_start.host[r] = entry;
    if (!has_penalties(sequences[r]->sampling)) continue;
    const auto tokens = sequences[r]->counts.token_ids();
    const auto counts = sequences[r]->counts.output_counts();
    std::copy(tokens.begin(), tokens.end(), token_ids.host + entry);
    std::copy(counts.begin(), counts.end(), output_counts.host + entry);
    entry += static_cast<int32_t>(tokens.size());
  }
  row_start.host[plan.rows] = entry;
  plan.penalties.row_start = row_start.device;
  plan.penalties.token_ids = token_ids.device;
  plan.penalties.output_counts = output_counts.device;
  plan.penalties.repetition = row_values<float>(
      upload, sequences, [](const BatchSequence& s) { return s.sampling.repetition_penalty; });
  plan.penalties.presence = row_values<float>(
      upload, sequences, [](const BatchSequence& s) { return s.sampling.presence_penalty; });
  plan.penalties.frequency = row_values<float>(
      upload, sequences, [](const BatchSequence& s) { return s.sampling.frequency_penalty; });
}

void penalize(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan, int64_t first) {
  const int64_t rows = logits.dim(0);
  ApplyPenaltiesArgs args = plan.penalties;
  args.logits = logits;
  args.row_start = args.row_start.narrow(0, first, rows + 1);
  for (Tensor* values : {&args.repetition, &args.presence, &args.frequency})
    *values = values->narrow(0, first, rows);
  apply_penalties(ctx, args);
}

void draw_tokens(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan, int64_t first,
                 const Tensor& token_ids) {
  if (plan.all_greedy) {
    argmax(ctx, logits, token_ids);
    return;
  }
  const int64_t rows = logits.dim(0);
  auto rows_of = [&](const Tensor& values) {
    return values.defined() ? values.narrow(0, first, rows) : Tensor();
  };
  DrawArgs args;
  args.logits = logits;
  args.temperature = rows_of(plan.temperature);
  args.min_p = rows_of(plan.min_p);
  args.top_k = rows_of(plan.top_k);
  args.top_p = rows_of(plan.top_p);
  args.seeds = rows_of(plan.seeds);
  args.output_index = rows_of(plan.output_index);
  args.ids = token_ids;
  draw(ctx, args);
}
// <<< task 4.3

// The rows of `from` that `wanted` lists, copied; all of them where it lists all.
Tensor copy_rows(const OpContext& ctx, const Tensor& from, std::span<const int64_t> wanted) {
  Shape shape = from.shape();
  shape[0] = static_cast<int64_t>(wanted.size());
  Tensor copy = ctx.arena->take(shape, from.dtype());
  if (shape[0] == from.dim(0)) {
    copy.copy_from(from, ctx.stream);
    return copy;
  }
  for (size_t i = 0; i < wanted.size(); ++i)
    copy.narrow(0, static_cast<int64_t>(i), 1).copy_from(from.narrow(0, wanted[i], 1), ctx.stream);
  return copy;
}

}  // namespace

int64_t logprob_bytes(int64_t top) {
  return 8 + top * 8;  // an id and a value each
}

LoggedRows position_logprobs(const OpContext& ctx, const Tensor& logits, const Tensor& chosen,
                             std::span<const int64_t> top, StepDownload& download) {
  ArenaScope scope(*ctx.arena);
  const int64_t rows = logits.dim(0);
  const int64_t k = std::min(*std::max_element(top.begin(), top.end()), logits.dim(1));
  const Tensor logprobs = ctx.arena->take({rows}, DType::f32);
  Tensor top_ids, top_values;
  if (k > 0) {
    top_ids = ctx.arena->take({rows, k}, DType::i32);
    top_values = ctx.arena->take({rows, k}, DType::f32);
  }
  top_logprobs(ctx, logits, chosen, logprobs, top_ids, top_values);
  LoggedRows logged;
  logged.top.assign(top.begin(), top.end());
  logged.chosen = download.take(ctx, chosen);
  logged.chosen_logprobs = download.take(ctx, logprobs);
  logged.top_ids = download.take(ctx, top_ids);
  logged.top_logprobs = download.take(ctx, top_values);
  return logged;
}

std::vector<PositionLogprobs> read_logprobs(const LoggedRows& logged) {
  const int64_t k = logged.top_ids.defined() ? logged.top_ids.dim(1) : 0;
  std::vector<PositionLogprobs> result(logged.top.size());
  for (size_t r = 0; r < result.size(); ++r) {
    result[r].chosen = {logged.chosen.data<int32_t>()[r], logged.chosen_logprobs.data<float>()[r]};
    const int64_t row = static_cast<int64_t>(r) * k, count = std::min(logged.top[r], k);
    for (int64_t i = row; i < row + count; ++i)
      result[r].top.push_back({logged.top_ids.data<int32_t>()[i], logged.top_logprobs.data<float>()[i]});
  }
  return result;
}

bool Sampler::needs_tokens(const SamplingParams& sampling) {
  return has_penalties(sampling);
}

int64_t Sampler::upload_bytes(Sequences sequences) const {
  constexpr int64_t kPieces = 12;
  const auto rows = static_cast<int64_t>(sequences.size());
  return rows * 64 + num_penalty_entries(sequences) * 8 + kPieces * StepUpload::kAlignment;
}

SamplingPlan Sampler::plan(const OpContext& ctx, Sequences sequences, StepUpload& upload) const {
  SamplingPlan plan;
  plan.rows = static_cast<int64_t>(sequences.size());
  for (const BatchSequence* sequence : sequences) plan.num_logprobs.push_back(sequence->sampling.logprobs);
  for (const auto& processor : processors_) processor->prepare(ctx, sequences);
  plan.any_penalty = any_row(sequences, [](const BatchSequence& s) { return has_penalties(s.sampling); });
  if (plan.any_penalty) plan_penalties(plan, sequences, upload);

  // A greedy row goes through the draw with every filter off.
  auto sampled = [&](auto wants) {
    return any_row(sequences,
                   [&](const BatchSequence& s) { return !is_greedy(s.sampling) && wants(s.sampling); });
  };
  auto values_of = [&](auto off, auto get) {
    return row_values<decltype(off)>(upload, sequences, [&](const BatchSequence& s) {
      return is_greedy(s.sampling) ? off : static_cast<decltype(off)>(get(s.sampling));
    });
  };
  plan.all_greedy = !sampled([](const SamplingParams&) { return true; });
  if (plan.all_greedy) return plan;
  plan.temperature = values_of(0.0f, [](const SamplingParams& p) {  // infinite, it would make NaN of -inf
    return std::min<double>(p.temperature, std::numeric_limits<float>::max());
  });
  if (sampled([](const SamplingParams& p) { return p.min_p > 0.0; }))
    plan.min_p = values_of(0.0f, [](const SamplingParams& p) { return p.min_p; });
  if (sampled([](const SamplingParams& p) {
        return p.top_k > 0;
      }))  // beyond any vocabulary is off, and fits 32 bits
    plan.top_k = values_of(int32_t{0}, [](const SamplingParams& p) {
      return std::min<int64_t>(p.top_k, std::numeric_limits<int32_t>::max());
    });
  if (sampled([](const SamplingParams& p) { return p.top_p < 1.0; }))
    plan.top_p = values_of(1.0f, [](const SamplingParams& p) { return p.top_p; });
  plan.seeds = row_values<int64_t>(upload, sequences, [](const BatchSequence& s) {
    return std::bit_cast<int64_t>(s.sampling.seed.value_or(0));
  });
  plan.output_index =
      row_values<int64_t>(upload, sequences, [](const BatchSequence& s) { return s.num_output_tokens(); });
  return plan;
}

std::vector<LoggedRows> Sampler::sample(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan,
                                        const Tensor& token_ids, StepDownload& download) const {
  expect_shape(logits, {plan.rows, -1}, "the sampler's logits");
  expect_shape(token_ids, {plan.rows}, "the sampler's token ids");
  const int64_t chunk_rows = ctx.device.is_cpu() ? kRows : kDeviceRows;
  std::vector<LoggedRows> result;
  for (int64_t first = 0; first < plan.rows; first += chunk_rows) {
    ArenaScope scope(*ctx.arena);
    const int64_t count = std::min(chunk_rows, plan.rows - first);
    const Tensor chunk = logits.narrow(0, first, count);
    const Tensor chunk_ids = token_ids.narrow(0, first, count);

    // What follows edits the logits in place, so rows that want log probabilities are copied first.
    std::vector<int64_t> wanted, top;
    for (int64_t r = 0; r < count; ++r) {
      const auto k = plan.num_logprobs[static_cast<size_t>(first + r)];
      if (!k) continue;
      wanted.push_back(r);
      top.push_back(num_best(*k, logits.dim(1)));
    }
    Tensor raw;
    if (!wanted.empty()) raw = copy_rows(ctx, chunk, wanted);

    for (const auto& processor : processors_) processor->apply(ctx, chunk, first);
    if (plan.any_penalty) penalize(ctx, chunk, plan, first);
    draw_tokens(ctx, chunk, plan, first, chunk_ids);

    if (wanted.empty()) continue;
    LoggedRows logged = position_logprobs(ctx, raw, copy_rows(ctx, chunk_ids, wanted), top, download);
    for (int64_t r : wanted) logged.rows.push_back(first + r);
    result.push_back(std::move(logged));
  }
  return result;
}

}  // namespace ladder
