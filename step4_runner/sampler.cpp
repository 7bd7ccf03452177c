#include "step4_runner/sampler.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/draw/draw.h"
#include "step1_layers/sampling/logit_bias.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/temperature.h"
#include "step1_layers/sampling/token_bitmask.h"

namespace ladder {

namespace {

using Sequences = std::span<BatchSequence* const>;

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 ||
         params.frequency_penalty != 0.0;
}

bool is_greedy(const SamplingParams& params) {  // as the operators see it, which take floats
  return static_cast<float>(params.temperature) < kMinTemperature;
}

template <class Wants>
bool any_row(Sequences sequences, Wants wants) {
  return std::any_of(sequences.begin(), sequences.end(),
                     [&](const BatchSequence* sequence) { return wants(sequence->sampling); });
}

// One value per row.
template <class T, class Get>
void add_row_values(SamplingPlan& plan, Tensor SamplingPlan::*to, Sequences sequences, Get get) {
  plan.add<T>(to, {plan.rows}, [sequences, get](const SamplingPlan&, T* host) {
    for (const BatchSequence* sequence : sequences) *host++ = static_cast<T>(get(*sequence));
  });
}

// Calls fn(token counts) for the rows that have penalties, with empty ones for the others.
template <class Fn>
void for_each_counts(Sequences sequences, Fn&& fn) {
  static const TokenCounts kNone;
  for (const BatchSequence* sequence : sequences)
    fn(has_penalties(sequence->sampling) ? sequence->counts : kNone);
}

// >>> task 4.3.sampler: every stage only where a row asks for it
void plan_penalties(SamplingPlan& plan, Sequences sequences) {
  if (!any_row(sequences, has_penalties)) return;
  int64_t entries = 0;
  for (BatchSequence* sequence : sequences)
    if (has_penalties(sequence->sampling))
      sequence->counts.update(sequence->token_ids, sequence->num_prompt_tokens);
  for_each_counts(sequences, [&](const TokenCounts& counts) { entries += std::ssize(counts.token_ids()); });
  plan.add<int32_t>(&SamplingPlan::used_start, {plan.rows + 1},
                    [sequences](const SamplingPlan&, int32_t* host) {
                      *host = 0;
                      for_each_counts(sequences, [&](const TokenCounts& counts) {
                        host[1] = host[0] + static_cast<int32_t>(counts.token_ids().size());
                        ++host;
                      });
                    });
  plan.add<int32_t>(&SamplingPlan::used_ids, {entries}, [sequences](const SamplingPlan&, int32_t* host) {
    for_each_counts(sequences, [&](const TokenCounts& counts) {
      host = std::ranges::copy(counts.token_ids(), host).out;
    });
  });
  plan.add<int32_t>(&SamplingPlan::used_counts, {entries}, [sequences](const SamplingPlan&, int32_t* host) {
    for_each_counts(sequences, [&](const TokenCounts& counts) {
      host = std::ranges::copy(counts.output_counts(), host).out;
    });
  });
  add_row_values<float>(plan, &SamplingPlan::repetition, sequences,
                        [](const BatchSequence& s) { return s.sampling.repetition_penalty; });
  add_row_values<float>(plan, &SamplingPlan::presence, sequences,
                        [](const BatchSequence& s) { return s.sampling.presence_penalty; });
  add_row_values<float>(plan, &SamplingPlan::frequency, sequences,
                        [](const BatchSequence& s) { return s.sampling.frequency_penalty; });
}

void edit(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan, int64_t first) {
  const int64_t rows = logits.dim(0);
  if (plan.mask_index.defined())
    apply_token_bitmask(ctx, {logits, plan.mask_index.narrow(0, first, rows), plan.bitmask});
  if (plan.bias_start.defined())
    apply_logit_bias(ctx, {logits, plan.bias_start.narrow(0, first, rows + 1), plan.bias_ids, plan.biases});
}

void penalize(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan, int64_t first) {
  if (!plan.used_start.defined()) return;
  const int64_t rows = logits.dim(0);
  apply_penalties(ctx, {.logits = logits,
                        .row_start = plan.used_start.narrow(0, first, rows + 1),
                        .token_ids = plan.used_ids,
                        .output_counts = plan.used_counts,
                        .repetition = plan.repetition.narrow(0, first, rows),
                        .presence = plan.presence.narrow(0, first, rows),
                        .frequency = plan.frequency.narrow(0, first, rows)});
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
  draw(ctx, {.logits = logits,
             .temperature = rows_of(plan.temperature),
             .min_p = rows_of(plan.min_p),
             .top_k = rows_of(plan.top_k),
             .top_p = rows_of(plan.top_p),
             .seeds = rows_of(plan.seeds),
             .output_index = rows_of(plan.output_index),
             .ids = token_ids});
}
// <<< task 4.3.sampler

// Rows that go through the pipeline together, and those of them that want log probabilities.
struct Chunk {
  int64_t first = 0, count = 0;
  int64_t first_logged = 0;          // which of all such rows the first one is
  std::vector<int64_t> logged_rows;  // counted from `first`
  std::span<const WantedLogprobs> wanted;
};

template <class Fn>
void for_each_chunk(const SamplingPlan& plan, int64_t chunk_rows, Fn&& fn) {
  size_t next = 0;
  for (int64_t first = 0; first < plan.rows; first += chunk_rows) {
    Chunk chunk;
    chunk.first = first;
    chunk.count = std::min(chunk_rows, plan.rows - first);
    const size_t begin = next;
    for (; next < plan.logged_rows.size() && plan.logged_rows[next] < first + chunk.count; ++next)
      chunk.logged_rows.push_back(plan.logged_rows[next] - first);
    chunk.first_logged = static_cast<int64_t>(begin);
    chunk.wanted = std::span(plan.wanted).subspan(begin, next - begin);
    fn(chunk);
  }
}

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

// A greedy row goes through the draw with every filter off.
void plan_draw(SamplingPlan& plan, Sequences sequences) {
  const auto any_drawn = [sequences](auto wants) {
    return any_row(sequences, [&](const SamplingParams& p) { return !is_greedy(p) && wants(p); });
  };
  const auto add_values = [&](Tensor SamplingPlan::*to, auto off, auto get) {
    add_row_values<decltype(off)>(plan, to, sequences, [off, get](const BatchSequence& s) {
      return is_greedy(s.sampling) ? off : static_cast<decltype(off)>(get(s.sampling));
    });
  };
  plan.all_greedy = !any_drawn([](const SamplingParams&) { return true; });
  if (plan.all_greedy) return;
  // Infinite, a temperature would make NaN of -inf; a k beyond any vocabulary is off, and fits 32 bits.
  add_values(&SamplingPlan::temperature, 0.0f, [](const SamplingParams& p) {
    return std::min<double>(p.temperature, std::numeric_limits<float>::max());
  });
  if (any_drawn([](const SamplingParams& p) { return p.min_p > 0.0; }))
    add_values(&SamplingPlan::min_p, 0.0f, [](const SamplingParams& p) { return p.min_p; });
  if (any_drawn([](const SamplingParams& p) { return p.top_k > 0; }))
    add_values(&SamplingPlan::top_k, int32_t{0}, [](const SamplingParams& p) {
      return std::min<int64_t>(p.top_k, std::numeric_limits<int32_t>::max());
    });
  if (any_drawn([](const SamplingParams& p) { return p.top_p < 1.0; }))
    add_values(&SamplingPlan::top_p, 1.0f, [](const SamplingParams& p) { return p.top_p; });
  add_row_values<int64_t>(plan, &SamplingPlan::seeds, sequences, [](const BatchSequence& s) {
    return std::bit_cast<int64_t>(s.sampling.seed.value_or(0));
  });
  add_row_values<int64_t>(plan, &SamplingPlan::output_index, sequences,
                          [](const BatchSequence& s) { return s.num_output_tokens(); });
}

template <class T, class List>
void add_list(SamplingPlan& plan, Tensor SamplingPlan::*to, const Shape& shape,
              std::span<const List> (LogitsEdits::*list)() const) {
  plan.add<T>(to, shape, [list](const SamplingPlan& p, T* host) {
    const std::span<const List> from = (p.edits.*list)();
    std::memcpy(host, from.data(), from.size_bytes());
  });
}

// Masks and biases of the requests and the processors.
void plan_edits(SamplingPlan& plan, Sequences sequences, int64_t vocab_size,
                std::span<const std::shared_ptr<LogitsProcessor>> processors) {
  if (processors.empty() && !any_row(sequences, requests_edits)) return;
  plan.edits = LogitsEdits(vocab_size);
  for (const BatchSequence* sequence : sequences) {
    if (requests_edits(sequence->sampling)) edit_as_requested(*sequence, plan.edits);
    for (const auto& processor : processors) processor->edit(*sequence, plan.edits);
    plan.edits.next_row();
  }
  const int64_t words = bitmask_words(vocab_size), masks = std::ssize(plan.edits.bitmask()) / words;
  const int64_t entries = std::ssize(plan.edits.token_ids());
  if (entries > 0) {
    add_list<int32_t>(plan, &SamplingPlan::bias_start, {plan.rows + 1}, &LogitsEdits::row_start);
    add_list<int32_t>(plan, &SamplingPlan::bias_ids, {entries}, &LogitsEdits::token_ids);
    add_list<float>(plan, &SamplingPlan::biases, {entries}, &LogitsEdits::biases);
  }
  if (masks > 0) {
    add_list<int32_t>(plan, &SamplingPlan::mask_index, {plan.rows}, &LogitsEdits::mask_index);
    add_list<int32_t>(plan, &SamplingPlan::bitmask, {masks, words}, &LogitsEdits::bitmask);
  }
}

void plan_logprobs(SamplingPlan& plan, Sequences sequences) {
  for (int64_t row = 0; row < plan.rows; ++row) {
    const SamplingParams& sampling = sequences[static_cast<size_t>(row)]->sampling;
    const std::optional<int64_t> top = wanted_logprobs(sampling);
    if (!top) continue;
    plan.logged_rows.push_back(row);
    plan.wanted.push_back({*top, sampling.logprob_token_ids});
  }
  const int64_t columns = max_selected(plan.wanted);
  if (columns == 0) return;
  plan.add<int32_t>(
      &SamplingPlan::selected_ids, {std::ssize(plan.wanted), columns},
      [columns](const SamplingPlan& p, int32_t* host) { write_selected_ids(p.wanted, columns, host); });
}

}  // namespace

int64_t Sampler::download_bytes(const SamplingPlan& plan, Device device) const {
  int64_t bytes = 0;
  for_each_chunk(plan, chunk_rows(device), [&](const Chunk& chunk) {
    if (!chunk.wanted.empty())
      bytes += logprobs_download_bytes(chunk.wanted, max_selected(plan.wanted), vocab_size_);
  });
  return bytes;
}

bool Sampler::needs_tokens(const SamplingParams& sampling) const {
  return has_penalties(sampling) || requested_edits_need_tokens(sampling) ||
         std::any_of(processors_.begin(), processors_.end(),
                     [&](const auto& processor) { return processor->needs_tokens(sampling); });
}

SamplingPlan Sampler::plan(Sequences sequences) const {
  SamplingPlan plan;
  plan.rows = std::ssize(sequences);
  plan_edits(plan, sequences, vocab_size_, processors_);
  plan_penalties(plan, sequences);
  plan_draw(plan, sequences);
  plan_logprobs(plan, sequences);
  return plan;
}

std::vector<LoggedRows> Sampler::sample(const OpContext& ctx, const Tensor& logits, const SamplingPlan& plan,
                                        const Tensor& token_ids, StepDownload& download) const {
  expect_shape(logits, {plan.rows, vocab_size_}, "the sampler's logits");
  expect_shape(token_ids, {plan.rows}, "the sampler's token ids");
  std::vector<LoggedRows> result;
  for_each_chunk(plan, chunk_rows(ctx.device), [&](const Chunk& chunk) {
    ArenaScope scope(*ctx.arena);
    const Tensor rows = logits.narrow(0, chunk.first, chunk.count);
    const Tensor ids = token_ids.narrow(0, chunk.first, chunk.count);
    // What follows edits the logits in place, so rows that want log probabilities are copied first.
    Tensor raw;
    if (!chunk.wanted.empty()) raw = copy_rows(ctx, rows, chunk.logged_rows);

    edit(ctx, rows, plan, chunk.first);
    penalize(ctx, rows, plan, chunk.first);
    draw_tokens(ctx, rows, plan, chunk.first, ids);

    if (chunk.wanted.empty()) return;
    const auto num_logged = std::ssize(chunk.wanted);
    const Tensor selected =
        plan.selected_ids.defined() ? plan.selected_ids.narrow(0, chunk.first_logged, num_logged) : Tensor();
    LoggedRows logged =
        position_logprobs(ctx, raw, copy_rows(ctx, ids, chunk.logged_rows), chunk.wanted, selected, download);
    for (int64_t row : chunk.logged_rows) logged.rows.push_back(chunk.first + row);
    result.push_back(std::move(logged));
  });
  return result;
}

}  // namespace ladder
