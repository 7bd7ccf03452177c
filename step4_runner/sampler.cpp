#include "step4_runner/sampler.h"

#include <algorithm>
#include <bit>

#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/top_logprobs.h"

namespace ladder {

namespace {

using Sequences = std::span<BatchSequence* const>;

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 ||
         params.frequency_penalty != 0.0;
}

bool is_greedy(const SamplingParams& params) {
  return params.temperature == 0.0;
}

// One value per row in a tensor of the arena; `off` for greedy rows, which the filters leave alone.
template <class T, class Get>
Tensor row_values(const OpContext& ctx, Sequences sequences, T off, Get get) {
  Tensor values = ctx.arena->take({static_cast<int64_t>(sequences.size())}, dtype_of<T>);
  T* out = values.data<T>();
  for (size_t r = 0; r < sequences.size(); ++r) {
    const SamplingParams& params = sequences[r]->sampling;
    out[r] = is_greedy(params) ? off : static_cast<T>(get(params));
  }
  return values;
}

template <class Wants>
bool any_row(Sequences sequences, Wants wants) {
  return std::any_of(sequences.begin(), sequences.end(),
                     [&](const BatchSequence* sequence) { return wants(sequence->sampling); });
}

// >>> task 4.3: penalties, temperature, min-p, top-k, top-p and the draw, each only where a row asks for it
void penalize(const OpContext& ctx, const Tensor& logits, Sequences sequences) {
  const auto rows = static_cast<int64_t>(sequences.size());
  int64_t entries = 0;
  for (BatchSequence* sequence : sequences) {
    if (!has_penalties(sequence->sampling)) continue;
    sequence->counts.update(sequence->token_ids, sequence->num_prompt_tokens);
    entries += static_cast<int64_t>(sequence->counts.token_ids().size());
  }
  ApplyPenaltiesArgs args;
  args.logits = logits;
  args.row_start = ctx.arena->take({rows + 1}, DType::i32);
  args.token_ids = ctx.arena->take({entries}, DType::i32);
  args.output_counts = ctx.arena->take({entries}, DType::i32);
  args.repetition = ctx.arena->take({rows}, DType::f32);
  args.presence = ctx.arena->take({rows}, DType::f32);
  args.frequency = ctx.arena->take({rows}, DType::f32);
  int32_t entry = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const BatchSequence& sequence = *sequences[static_cast<size_t>(r)];
    args.row_start.data<int32_t>()[r] = entry;
    args.repetition.data<float>()[r] = static_cast<float>(sequence.sampling.repetition_penalty);
    args.presence.data<float>()[r] = static_cast<float>(sequence.sampling.presence_penalty);
    args.frequency.data<float>()[r] = static_cast<float>(sequence.sampling.frequency_penalty);
    if (!has_penalties(sequence.sampling)) continue;
    const auto tokens = sequence.counts.token_ids();
    const auto counts = sequence.counts.output_counts();
    std::copy(tokens.begin(), tokens.end(), args.token_ids.data<int32_t>() + entry);
    std::copy(counts.begin(), counts.end(), args.output_counts.data<int32_t>() + entry);
    entry += static_cast<int32_t>(tokens.size());
  }
  args.row_start.data<int32_t>()[rows] = entry;
  apply_penalties(ctx, args);
}

void draw(const OpContext& ctx, const Tensor& logits, Sequences sequences, const Tensor& token_ids) {
  auto sampled = [](auto wants) {
    return [wants](const SamplingParams& p) { return !is_greedy(p) && wants(p); };
  };
  if (!any_row(sequences, sampled([](const SamplingParams&) { return true; }))) {
    argmax(ctx, logits, token_ids);
    return;
  }
  auto temperature_of = [](const SamplingParams& p) { return p.temperature; };
  Tensor temperature = row_values<float>(ctx, sequences, 0.0f, temperature_of);
  apply_temperature(ctx, logits, temperature);
  if (any_row(sequences, sampled([](const SamplingParams& p) { return p.min_p > 0.0; })))
    mask_min_p(ctx, logits,
               row_values<float>(ctx, sequences, 0.0f, [](const SamplingParams& p) { return p.min_p; }));
  if (any_row(sequences, sampled([](const SamplingParams& p) { return p.top_k > 0; })))
    mask_top_k(ctx, logits, row_values<int32_t>(ctx, sequences, 0, [&](const SamplingParams& p) {
                 return std::min(p.top_k,
                                 logits.dim(1));  // a count beyond the vocabulary is off, and fits 32 bits
               }));
  if (any_row(sequences, sampled([](const SamplingParams& p) { return p.top_p < 1.0; })))
    mask_top_p(ctx, logits,
               row_values<float>(ctx, sequences, 1.0f, [](const SamplingParams& p) { return p.top_p; }));

  const auto rows = static_cast<int64_t>(sequences.size());
  SampleArgs args{logits, temperature, ctx.arena->take({rows}, DType::i64),
                  ctx.arena->take({rows}, DType::i64), token_ids};
  for (int64_t r = 0; r < rows; ++r) {
    const BatchSequence& sequence = *sequences[static_cast<size_t>(r)];
    args.seeds.data<int64_t>()[r] = std::bit_cast<int64_t>(sequence.sampling.seed.value_or(0));
    args.output_index.data<int64_t>()[r] = sequence.num_output_tokens();
  }
  ladder::sample(ctx, args);
}
// <<< task 4.3

// The rows of `logits` that `wanted` lists, copied.
Tensor copy_rows(const OpContext& ctx, const Tensor& logits, std::span<const int64_t> wanted) {
  Tensor copy = ctx.arena->take({static_cast<int64_t>(wanted.size()), logits.dim(1)}, DType::f32);
  for (size_t i = 0; i < wanted.size(); ++i)
    copy.select(0, static_cast<int64_t>(i)).copy_from(logits.select(0, wanted[i]));
  return copy;
}

}  // namespace

std::vector<PositionLogprobs> position_logprobs(const OpContext& ctx, const Tensor& logits,
                                                std::span<const int32_t> chosen,
                                                std::span<const int64_t> top) {
  ArenaScope scope(*ctx.arena);
  const int64_t rows = logits.dim(0);
  const int64_t k = std::min(*std::max_element(top.begin(), top.end()), logits.dim(1));
  Tensor ids = ctx.arena->take({rows}, DType::i32);
  std::copy(chosen.begin(), chosen.end(), ids.data<int32_t>());
  Tensor logprobs = ctx.arena->take({rows}, DType::f32);
  Tensor top_ids, top_values;
  if (k > 0) {
    top_ids = ctx.arena->take({rows, k}, DType::i32);
    top_values = ctx.arena->take({rows, k}, DType::f32);
  }
  top_logprobs(ctx, logits, ids, logprobs, top_ids, top_values);
  std::vector<PositionLogprobs> result(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    PositionLogprobs& position = result[static_cast<size_t>(r)];
    position.chosen = {chosen[static_cast<size_t>(r)], logprobs.data<float>()[r]};
    const int64_t count = std::min(top[static_cast<size_t>(r)], k);
    for (int64_t i = 0; i < count; ++i)
      position.top.push_back({top_ids.data<int32_t>()[r * k + i], top_values.data<float>()[r * k + i]});
  }
  return result;
}

std::vector<PositionLogprobs> Sampler::sample(const OpContext& ctx, const Tensor& logits,
                                              std::span<BatchSequence* const> sequences,
                                              const Tensor& token_ids) const {
  const auto rows = static_cast<int64_t>(sequences.size());
  expect_shape(logits, {rows, -1}, "the sampler's logits");
  expect_shape(token_ids, {rows}, "the sampler's token ids");
  for (const auto& processor : processors_) processor->prepare(ctx, sequences);
  std::vector<PositionLogprobs> result;
  for (int64_t first = 0; first < rows; first += kRows) {
    ArenaScope scope(*ctx.arena);
    const int64_t count = std::min(kRows, rows - first);
    const Tensor chunk = logits.narrow(0, first, count);
    const Tensor chunk_ids = token_ids.narrow(0, first, count);
    const Sequences chunk_sequences =
        sequences.subspan(static_cast<size_t>(first), static_cast<size_t>(count));

    // What follows edits the logits in place, so rows that want log probabilities are copied first.
    std::vector<int64_t> wanted, top;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t k = chunk_sequences[static_cast<size_t>(r)]->sampling.logprobs;
      if (k < 0) continue;
      wanted.push_back(r);
      top.push_back(k);
    }
    Tensor raw;
    if (!wanted.empty()) raw = copy_rows(ctx, chunk, wanted);

    for (const auto& processor : processors_) processor->apply(ctx, chunk, first);
    if (any_row(chunk_sequences, has_penalties)) penalize(ctx, chunk, chunk_sequences);
    draw(ctx, chunk, chunk_sequences, chunk_ids);

    if (wanted.empty()) continue;
    result.resize(static_cast<size_t>(rows));
    std::vector<int32_t> chosen;
    for (int64_t r : wanted) chosen.push_back(chunk_ids.data<int32_t>()[r]);
    std::vector<PositionLogprobs> logprobs = position_logprobs(ctx, raw, chosen, top);
    for (size_t i = 0; i < wanted.size(); ++i)
      result[static_cast<size_t>(first + wanted[i])] = std::move(logprobs[i]);
  }
  return result;
}

}  // namespace ladder
