#include "step1_layers/sampling/draw/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step1_layers/sampling/philox.h"
#include "tests/step1_layers/chi_square.h"
#include "tests/step1_layers/invalid_rows.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

template <class T>
Tensor row_values(const std::vector<T>& values) {
  return Tensor::from<T>(values, {static_cast<int64_t>(values.size())});
}

// What one request asks for.
struct Row {
  float temperature = 1, min_p = 0;
  int32_t top_k = 0;
  float top_p = 1;
  int64_t seed = 1, output_index = 0;
};

// Which tensors of the filters are given.
struct Filters {
  bool min_p = true, top_k = true, top_p = true;
};

DrawArgs draw_args(const Tensor& logits, const std::vector<Row>& rows, Filters filters = {}) {
  auto column = [&](auto Row::*member) {
    std::vector<std::remove_cvref_t<decltype(rows[0].*member)>> values;
    for (const Row& row : rows) values.push_back(row.*member);
    return row_values(values);
  };
  DrawArgs args;
  args.logits = logits.clone();
  args.temperature = column(&Row::temperature);
  if (filters.min_p) args.min_p = column(&Row::min_p);
  if (filters.top_k) args.top_k = column(&Row::top_k);
  if (filters.top_p) args.top_p = column(&Row::top_p);
  args.seeds = column(&Row::seed);
  args.output_index = column(&Row::output_index);
  args.ids = poisoned({logits.dim(0)}, DType::i32);
  return args;
}

std::vector<int32_t> drawn(const OpContext& ctx, const DrawArgs& args) {
  call(draw, ctx, args);
  return {args.ids.data<int32_t>(), args.ids.data<int32_t>() + args.ids.numel()};
}

// The scores of a row's tokens by the definitions of logits_filters.h and sample.h, -inf where a token is
// cut. `near` receives the tokens whose fate is a matter of rounding: those at which the mass of the tokens
// before them comes within 1e-6 of top_p, or that stand within 1e-5 of min_p's bound.
std::vector<double> reference_scores(const float* logits, int64_t vocab, const Row& row,
                                     std::vector<bool>& near) {
  const auto size = static_cast<size_t>(vocab);
  std::vector<float> x(logits, logits + vocab);
  near.assign(size, false);
  const bool greedy = row.temperature < 1e-5f;
  if (!greedy)
    for (float& value : x) value /= row.temperature;
  std::vector<size_t> order(size);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  const double largest = x[order[0]];
  std::vector<bool> cut(size, false);
  for (size_t i = 0; i < size; ++i) {
    cut[i] = x[i] == -INFINITY;
    if (row.min_p <= 0) continue;
    const double ratio = std::exp(x[i] - largest);
    if (ratio < row.min_p) cut[i] = true;
    if (std::abs(ratio - row.min_p) < 1e-5 * row.min_p) near[i] = true;
  }
  if (row.top_k > 0 && row.top_k < vocab) {
    const float last = x[order[static_cast<size_t>(row.top_k - 1)]];
    for (size_t i = 0; i < size; ++i)
      if (x[i] < last) cut[i] = true;
  }
  if (row.top_p < 1) {
    double total = 0, mass = 0;
    for (size_t i = 0; i < size; ++i)
      if (!cut[i]) total += std::exp(x[i] - largest);
    for (size_t place = 0; place < size; ++place) {
      const size_t i = order[place];
      if (cut[i]) continue;
      const double reached = mass / total;
      mass += std::exp(x[i] - largest);
      if (place > 0 && reached >= row.top_p) cut[i] = true;
      if (place > 0 && std::abs(reached - row.top_p) < 1e-6) near[i] = true;
    }
  }
  std::vector<double> scores(size, -INFINITY);
  for (size_t i = 0; i < size; ++i) {
    if (cut[i] && !near[i]) continue;
    scores[i] = x[i];
    if (greedy) continue;
    const double u = sampling_uniform(static_cast<uint64_t>(row.seed),
                                      static_cast<uint64_t>(row.output_index), static_cast<uint32_t>(i));
    scores[i] -= std::log(-std::log1p(-u));
  }
  return scores;
}

// The token has the largest score among the survivors, or is within rounding of it.
void expect_winner(int32_t id, const Tensor& logits, int64_t index, const Row& row) {
  const int64_t vocab = logits.dim(1);
  ASSERT_GE(id, 0);
  ASSERT_LT(id, vocab);
  std::vector<bool> near;
  const std::vector<double> scores =
      reference_scores(logits.data<float>() + index * logits.stride(0), vocab, row, near);
  double best = -INFINITY;
  for (size_t i = 0; i < scores.size(); ++i)
    if (!near[i]) best = std::max(best, scores[i]);
  const double chosen = scores[static_cast<size_t>(id)];
  EXPECT_GE(chosen, best - 1e-5 * std::max(1.0, std::abs(best)))
      << "row " << index << " of " << vocab << ": token " << id << ", temperature " << row.temperature
      << " min_p " << row.min_p << " top_k " << row.top_k << " top_p " << row.top_p << " seed " << row.seed;
}

Row random_row(Random& random, int64_t vocab) {
  Row row;
  row.temperature = static_cast<float>(random.uniform(0.3, 1.5));
  if (random.integer(0, 3) == 0) row.temperature = 1;
  if (random.integer(0, 2) == 0) row.min_p = static_cast<float>(random.uniform(0.001, 0.3));
  if (random.integer(0, 2) != 0) {
    const int64_t most = random.integer(0, 1) == 0 ? std::min<int64_t>(vocab, 60) : vocab + 2;
    row.top_k = static_cast<int32_t>(random.integer(1, most));
  }
  if (random.integer(0, 2) != 0) row.top_p = static_cast<float>(random.uniform(0.05, 1.0));
  row.seed = static_cast<int64_t>(random.engine()());
  row.output_index = random.integer(0, 5000);
  if (random.integer(0, 7) == 0) {
    row.temperature = row.min_p = 0;
    row.top_k = 0;
    row.top_p = 1;
  }
  return row;
}

RUNG_TEST(Task1_8_Draw, TakesTheBestOfWhatTheFiltersLeave, "draw", draw_variants()) {
  for (int64_t vocab : {1, 5, 63, 1025, 5003, 151936})
    for (double deviation : {0.1, 3.0, 12.0})
      for (int64_t steps : {0, 4, 1}) {  // logits are multiples of 1 / steps: many equals; 0: any
        Random random;
        SCOPED_TRACE(random.describe());
        const int64_t count = vocab > 10000 ? 4 : 12;
        Tensor logits = random.normal({count, vocab}, DType::f32, deviation);
        float* x = logits.data<float>();
        for (int64_t i = 0; i < logits.numel(); ++i) {
          if (steps > 0) x[i] = std::round(x[i] * static_cast<float>(steps)) / static_cast<float>(steps);
          if (vocab > 8 && i % 7 == 5) x[i] = -INFINITY;  // a processor has cut it
        }
        std::vector<Row> rows;
        for (int64_t i = 0; i < count; ++i) rows.push_back(random_row(random, vocab));
        const std::vector<int32_t> ids = drawn(ctx, draw_args(logits, rows));
        for (int64_t i = 0; i < count; ++i)
          expect_winner(ids[static_cast<size_t>(i)], logits, i, rows[static_cast<size_t>(i)]);
      }
}

RUNG_TEST(Task1_8_Draw, RunsTheFiltersThatAreGiven, "draw", draw_variants()) {
  const int64_t vocab = 3001;
  for (int mask = 0; mask < 8; ++mask) {
    const Filters filters{(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    Random random;
    SCOPED_TRACE(random.describe() + " filters " + std::to_string(mask));
    const Tensor logits = random.normal({9, vocab}, DType::f32, 3.0);
    std::vector<Row> rows;
    for (int64_t i = 0; i < 9; ++i) {
      Row row = random_row(random, vocab);
      if (!filters.min_p) row.min_p = 0;
      if (!filters.top_k) row.top_k = 0;
      if (!filters.top_p) row.top_p = 1;
      rows.push_back(row);
    }
    const std::vector<int32_t> ids = drawn(ctx, draw_args(logits, rows, filters));
    for (int64_t i = 0; i < 9; ++i)
      expect_winner(ids[static_cast<size_t>(i)], logits, i, rows[static_cast<size_t>(i)]);
  }
}

// Logits that are hard to filter.
std::vector<std::pair<std::string, Tensor>> hard_logits(Random& random, int64_t rows, int64_t vocab) {
  std::vector<std::pair<std::string, Tensor>> cases;
  auto add = [&](const char* name, auto&& value) {
    Tensor logits = Tensor::empty({rows, vocab}, DType::f32);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < vocab; ++i) logits.at<float>({row, i}) = value(row, i);
    cases.emplace_back(name, logits);
  };
  auto normal = [&](float deviation) {
    return static_cast<float>(std::normal_distribution<double>(0, deviation)(random.engine()));
  };
  add("any", [&](int64_t, int64_t) { return normal(3); });
  add("thousands of equals", [&](int64_t, int64_t) { return std::round(normal(2)); });
  add("all equal", [&](int64_t row, int64_t) { return static_cast<float>(row) - 3.0f; });
  add("two values", [&](int64_t row, int64_t i) { return (i * 7 + row) % 5 == 0 ? 1.0f : 0.5f; });
  add("one token", [&](int64_t row, int64_t i) { return i == (row * 1009) % vocab ? -7.0f : -INFINITY; });
  add("flat", [&](int64_t, int64_t) { return normal(1e-3f); });
  add("past the noise", [&](int64_t, int64_t i) { return 1e9f + static_cast<float>(i % 3); });
  add("huge", [&](int64_t, int64_t) { return normal(1e6f); });
  add("zeros of both signs", [&](int64_t, int64_t i) { return i % 2 == 0 ? 0.0f : -0.0f; });
  add("one peak", [&](int64_t row, int64_t i) { return i == (row * 31) % vocab ? 40.0f : normal(1); });
  return cases;
}

RUNG_TEST(Task1_8_Draw, EveryRungDrawsWhatTheSequenceDraws, "draw", draw_variants()) {
  // Both on the same device: the same weights, thresholds and noise, so the same tokens.
  if (ctx.forced_kernel("draw") == "sequence") return;
  OpContext sequence = ctx;
  sequence.kernels["draw"] = "sequence";
  for (int64_t vocab : {7, 260, 4099, 33000, 151936}) {
    Random random;
    SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
    const int64_t count = 10;
    for (const auto& [name, logits] : hard_logits(random, count, vocab)) {
      std::vector<Row> rows;
      for (int64_t i = 0; i < count; ++i) rows.push_back(random_row(random, vocab));
      rows[0].top_k = static_cast<int32_t>(vocab - 1);
      rows[1].top_p = 1.0f - 0x1p-24f;
      rows[2].top_k = 128;
      rows[3].top_k = 129;
      rows[4].top_p = 0;
      EXPECT_EQ(drawn(ctx, draw_args(logits, rows)), drawn(sequence, draw_args(logits, rows))) << name;
      const Filters none{false, false, false};
      EXPECT_EQ(drawn(ctx, draw_args(logits, rows, none)), drawn(sequence, draw_args(logits, rows, none)))
          << name << " without filters";
    }
  }
}

RUNG_TEST(Task1_8_Draw, HoldsAtTheEndsOfEveryRange, "draw", draw_variants()) {
  const std::vector<Row> greedy = {{.temperature = 0x1p-149f},
                                   {.temperature = 1e-38f, .top_k = 40, .top_p = 0.9f},
                                   {.temperature = 1e-30f, .top_p = 0.5f},
                                   {.temperature = 9.9e-6f, .min_p = 0.1f},
                                   {.temperature = 0, .min_p = 1, .top_k = 1, .top_p = 1e-30f},
                                   {.temperature = 0.8f, .top_p = 1e-30f},
                                   {.temperature = 1e-5f, .top_p = 0x1p-149f},
                                   {.temperature = 3e38f, .top_p = 0}};
  const std::vector<Row> drawn_rows = {{.temperature = 1e-5f},
                                       {.temperature = 3e38f},
                                       {.temperature = 1e30f, .top_p = 0.999f},
                                       {.temperature = 0.7f, .top_k = 1},
                                       {.temperature = 0.7f, .top_k = std::numeric_limits<int32_t>::max()},
                                       {.temperature = 0.7f, .top_k = -5},
                                       {.temperature = 0.7f, .min_p = 1},
                                       {.temperature = 0.7f, .min_p = 0x1p-149f},
                                       {.temperature = 0.7f, .top_p = std::nextafter(1.0f, 0.0f)},
                                       {.temperature = 0.7f, .min_p = 1, .top_k = 1, .top_p = 0}};
  for (int64_t vocab : {1, 2, 7, 1027, 20011})
    for (double steps : {0.0, 2.0}) {  // any logits, and many equals
      Random random;
      SCOPED_TRACE(random.describe());
      std::vector<Row> rows = greedy;
      rows.insert(rows.end(), drawn_rows.begin(), drawn_rows.end());
      const auto count = std::ssize(rows);
      Tensor logits = random.normal({count, vocab}, DType::f32, 2.0);
      if (steps > 0)
        for (int64_t i = 0; i < logits.numel(); ++i)
          logits.data<float>()[i] = static_cast<float>(std::round(logits.data<float>()[i] * steps) / steps);
      for (Row& row : rows) row.seed = static_cast<int64_t>(random.engine()());
      const std::vector<int32_t> ids = drawn(ctx, draw_args(logits, rows));
      for (int64_t i = 0; i < count; ++i) {
        SCOPED_TRACE("row " + std::to_string(i));
        const float* x = logits.data<float>() + i * vocab;
        const int32_t id = ids[static_cast<size_t>(i)];
        if (i < std::ssize(greedy)) {
          EXPECT_EQ(id, std::max_element(x, x + vocab) - x);
        } else {
          expect_winner(id, logits, i, rows[static_cast<size_t>(i)]);
        }
      }
      // Without filters, where no row asks for one.
      const std::vector<Row> plain = {
          greedy[0], {.temperature = 1e-38f}, {.temperature = 1e-5f}, {.temperature = 3e38f}};
      const Tensor few = logits.narrow(0, 0, 4);
      const std::vector<int32_t> unfiltered = drawn(ctx, draw_args(few, plain, {false, false, false}));
      for (int64_t i = 0; i < 4; ++i)
        expect_winner(unfiltered[static_cast<size_t>(i)], few, i, plain[static_cast<size_t>(i)]);
      EXPECT_EQ(unfiltered[0],
                std::max_element(few.data<float>(), few.data<float>() + vocab) - few.data<float>());
    }
}

RUNG_TEST(Task1_8_Draw, TheFirstInfiniteLogitWinsAndCutTokensNever, "draw", draw_variants()) {
  // Beside +inf no noise counts, and the score that others must reach is not a number if computed with care
  // for finite ones only.
  for (int64_t vocab : {3, 261, 4099, 70001})
    for (const Filters filters : {Filters{}, Filters{false, false, false}, Filters{false, false, true}}) {
      Random random;
      SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
      const int64_t count = 7;
      Tensor logits = random.normal({count, vocab}, DType::f32, 3.0);
      std::vector<int64_t> expected(count);
      std::vector<Row> rows;
      for (int64_t row = 0; row < count; ++row) {
        float* x = logits.data<float>() + row * vocab;
        const int64_t first = expected[static_cast<size_t>(row)] = random.integer(0, vocab - 1);
        if (row == 3) std::fill(x, x + vocab, -INFINITY);
        x[first] = row == 3 ? -5.0f : row == 2 ? 3e38f : INFINITY;  // 3e38 / 0.3 is infinite
        if (row == 1)
          for (int64_t i = first; i < vocab; i += 3) x[i] = INFINITY;
        if (row == 4) std::fill(x + first, x + vocab, INFINITY);
        if (row == 6) {
          std::fill(x, x + 2, -INFINITY);
          std::fill(x + 2, x + vocab, INFINITY);
          expected[6] = 2;
        }
        if (row == 5) {
          std::fill(x, x + vocab, -INFINITY);
          expected[5] = kInvalidToken;
        }
        Row request = random_row(random, vocab);
        request.temperature = 0.3f;
        if (!filters.min_p) request.min_p = 0;
        if (!filters.top_k) request.top_k = 0;
        if (!filters.top_p) request.top_p = 1;
        rows.push_back(request);
      }
      const std::vector<int32_t> ids = drawn(ctx, draw_args(logits, rows, filters));
      for (size_t row = 0; row < expected.size(); ++row) EXPECT_EQ(ids[row], expected[row]) << "row " << row;
    }
}

RUNG_TEST(Task1_8_Draw, DrawsFromTheFilteredDistribution, "draw", draw_variants()) {
  // Chi-square against the softmax of what top-k leaves, 11 degrees of freedom: 45 is exceeded once in
  // 200,000 runs. With and without filters, many tokens of probability 0 in between.
  const int64_t vocab = 12 * 90, rows = 400, calls = 50;
  for (int32_t top_k : {0, 12}) {
    Random random;
    SCOPED_TRACE(random.describe());
    expect_chi_square(0.5, 45, [&] {
      Tensor logits = Tensor::empty({rows, vocab}, DType::f32);
      std::vector<double> p(12);
      double total = 0;
      for (int64_t i = 0; i < vocab; ++i) {
        const bool likely = i % 90 == 37;
        logits.at<float>({0, i}) = likely ? static_cast<float>(random.uniform(0, 2.5)) : -60.0f;
        if (likely) total += p[static_cast<size_t>(i / 90)] = std::exp(logits.at<float>({0, i}) / 0.8);
      }
      for (int64_t row = 1; row < rows; ++row) logits.narrow(0, row, 1).copy_from(logits.narrow(0, 0, 1));
      std::vector<double> counts(12, 0.0);
      const auto seed = static_cast<int64_t>(random.engine()());
      for (int64_t call = 0; call < calls; ++call) {
        std::vector<Row> requests;
        for (int64_t row = 0; row < rows; ++row)
          requests.push_back(
              {.temperature = 0.8f, .top_k = top_k, .seed = seed, .output_index = call * rows + row});
        const Filters filters{false, top_k > 0, false};
        for (int32_t id : drawn(ctx, draw_args(logits, requests, filters))) {
          EXPECT_EQ(id % 90, 37);
          ++counts[static_cast<size_t>(id / 90)];
        }
      }
      for (double& one : p) one /= total;
      return chi_square(counts, p);
    });
  }
}

RUNG_TEST(Task1_8_Draw, ARequestDrawsTheSameTokenInAnyBatch, "draw", draw_variants()) {
  const int64_t count = 150, vocab = 20011;
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor logits = random.normal({count, vocab}, DType::f32, 2.0);
  std::vector<Row> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(random_row(random, vocab));
  for (const Filters filters : {Filters{}, Filters{false, false, false}}) {
    const std::vector<int32_t> together = drawn(ctx, draw_args(logits, rows, filters));
    for (int64_t i = 0; i < count; i += 7)
      EXPECT_EQ(drawn(ctx, draw_args(logits.narrow(0, i, 1), {rows[static_cast<size_t>(i)]}, filters))[0],
                together[static_cast<size_t>(i)]);
  }
}

RUNG_TEST(Task1_8_Draw, ARowWithANaNOrOfForbiddenTokensGivesNone, "draw", draw_variants()) {
  // Rows of every kind of request; with a small k, which few kernels take, and with filters that search.
  for (int64_t vocab : {1, 5, 63, 1025, 5003, 40001})
    for (const Filters filters :
         {Filters{}, Filters{false, false, false}, Filters{false, true, false}, Filters{true, false, true}})
      for (const bool greedy : {false, true})
        expect_invalid_rows(vocab, [&](const Tensor& logits) {
          std::vector<Row> rows(static_cast<size_t>(logits.dim(0)));
          for (size_t row = 0; row < rows.size(); ++row) {
            if (filters.top_k) rows[row].top_k = row % 3 == 0 ? 0 : row % 3 == 1 ? 20 : 2000;
            if (filters.top_p) rows[row].top_p = 0.9f;
            if (filters.min_p) rows[row].min_p = 0.01f;
            rows[row].temperature = greedy && row % 2 == 0 ? 0.0f : 0.7f;
            rows[row].seed = static_cast<int64_t>(row);
          }
          return drawn(ctx, draw_args(logits, rows, filters));
        });
}

TEST(Task1_8_DrawCall, RefusesWhatDoesNotFitTogether) {
  Arena arena;
  OpContext ctx;
  ctx.arena = &arena;
  const Tensor logits = Tensor::zeros({2, 10}, DType::f32);
  DrawArgs args = draw_args(logits, {Row{}, Row{}});
  args.top_k = row_values<int32_t>({1});
  EXPECT_THROW(draw(ctx, args), Error);
  args = draw_args(logits, {Row{}, Row{}});
  args.top_p = row_values<int32_t>({1, 1});
  EXPECT_THROW(draw(ctx, args), Error);
}

}  // namespace
}  // namespace ladder
