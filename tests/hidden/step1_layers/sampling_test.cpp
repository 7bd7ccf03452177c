// Task 1.8 on vocabularies of odd sizes, with many equal logits and values at the ends of their ranges.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/draw/draw.h"
#include "step1_layers/sampling/logit_bias.h"
#include "step1_layers/sampling/logits_filters.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/philox.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/token_bitmask.h"
#include "step1_layers/sampling/top_logprobs.h"
#include "tests/hidden/step1_layers/margins.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

template <class T>
Tensor column(const std::vector<T>& values) {
  return Tensor::from<T>(values, {static_cast<int64_t>(values.size())});
}

int64_t any_vocabulary(Random& random) {
  return random.one_of<int64_t>({random.integer(1, 9), random.integer(10, 300), random.integer(301, 7000)});
}

// Rows of logits around any number, some in steps of a quarter, so that many are equal; some of them cut.
Tensor any_logits(Random& random, int64_t rows, int64_t vocab) {
  const Tensor logits = random.normal({rows, vocab}, DType::f32, random.one_of<double>({0.3, 3, 20}));
  const auto offset = static_cast<float>(random.one_of<double>({0, -2000, 500}));
  const bool steps = random.integer(0, 1) == 0;
  for (int64_t i = 0; i < logits.numel(); ++i) {
    float& x = logits.data<float>()[i];
    x = (steps ? std::round(x * 4) / 4 : x) + offset;
    if (i % vocab != 0 && random.integer(0, 9) == 0) x = -INFINITY;
  }
  return logits;
}

const float* row_of(const Tensor& logits, int64_t row) {
  return logits.data<float>() + row * logits.dim(1);
}

// Ids from the largest logit down, equals by id.
std::vector<int32_t> in_order(const float* x, int64_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return x[a] > x[b]; });
  return ids;
}

// Log probabilities of a row.
std::vector<double> logprobs_of(const float* x, int64_t vocab) {
  const double largest = *std::max_element(x, x + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - largest);
  std::vector<double> result;
  for (int64_t i = 0; i < vocab; ++i) result.push_back(x[i] - largest - std::log(sum));
  return result;
}

// Of each row some ids, each once.
struct Entries {
  Entries(Random& random, int64_t rows, int64_t vocab) {
    for (int64_t row = 0; row < rows; ++row) {
      std::set<int32_t> chosen;
      for (int64_t i = random.integer(0, 300); i > 0; --i)
        chosen.insert(static_cast<int32_t>(random.integer(0, vocab - 1)));
      ids.insert(ids.end(), chosen.begin(), chosen.end());
      starts.push_back(static_cast<int32_t>(ids.size()));
    }
  }
  std::vector<int32_t> starts{0}, ids;
};

RUNG_TEST(Hidden1_8_Penalties, OfPromptAndOutput, "apply_penalties", apply_penalties_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 40), vocab = any_vocabulary(random);
    const Tensor logits = random.normal({rows, vocab}, DType::f32, 3), expected = logits.clone();
    const Entries entries(random, rows, vocab);
    std::vector<int32_t> counts;
    for (size_t i = 0; i < entries.ids.size(); ++i)
      counts.push_back(static_cast<int32_t>(random.integer(0, 3)));
    std::vector<float> repetition, presence, frequency;
    for (int64_t row = 0; row < rows; ++row) {
      repetition.push_back(random.one_of<float>({1, 0.5f, 2, 4}));
      presence.push_back(static_cast<float>(random.integer(-2, 2)));
      frequency.push_back(static_cast<float>(random.integer(-2, 2)) / 4);
      for (int32_t i = entries.starts[row]; i < entries.starts[row + 1]; ++i) {
        float& x = expected.at<float>({row, entries.ids[i]});
        x = x > 0 ? x / repetition[row] : x * repetition[row];
        x -= frequency[row] * static_cast<float>(counts[i]) + presence[row] * (counts[i] > 0 ? 1.0f : 0.0f);
      }
    }
    call(apply_penalties, ctx,
         ApplyPenaltiesArgs{logits, column(entries.starts), column(entries.ids), column(counts),
                            column(repetition), column(presence), column(frequency)});
    for (int64_t i = 0; i < logits.numel(); ++i)
      ASSERT_NEAR(logits.data<float>()[i], expected.data<float>()[i], 1e-5) << "row " << i / vocab;
  });
}

RUNG_TEST(Hidden1_8_LogitBias, AddsAndForbids, "apply_logit_bias", apply_logit_bias_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 40), vocab = any_vocabulary(random);
    const Tensor logits = any_logits(random, rows, vocab);
    for (int64_t i = 0; i < logits.numel(); i += 17) logits.data<float>()[i] = INFINITY;
    const Tensor expected = logits.clone();
    const Entries entries(random, rows, vocab);
    std::vector<float> biases;
    for (int64_t row = 0; row < rows; ++row)
      for (int32_t i = entries.starts[row]; i < entries.starts[row + 1]; ++i) {
        biases.push_back(random.integer(0, 2) ? static_cast<float>(random.uniform(-50, 50)) : -INFINITY);
        float& x = expected.at<float>({row, entries.ids[i]});
        x = std::isinf(biases.back()) ? -INFINITY : x + biases.back();
      }
    call(apply_logit_bias, ctx,
         ApplyLogitBiasArgs{logits, column(entries.starts), column(entries.ids), column(biases)});
    EXPECT_TRUE(bitwise_equal(logits, expected));
  });
}

RUNG_TEST(Hidden1_8_TokenBitmask, MasksOfSomeRows, "apply_token_bitmask", apply_token_bitmask_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 30), vocab = any_vocabulary(random), masks = random.integer(1, 9);
    const Tensor logits = any_logits(random, rows, vocab), expected = logits.clone(),
                 bits = Tensor::empty({masks, bitmask_words(vocab)}, DType::i32);
    for (int64_t i = 0; i < bits.numel(); ++i)
      bits.data<int32_t>()[i] = static_cast<int32_t>(random.engine()());
    std::vector<int32_t> index;
    for (int64_t row = 0; row < rows; ++row) {
      index.push_back(static_cast<int32_t>(random.integer(-1, masks - 1)));
      for (int64_t id = 0; index.back() >= 0 && id < vocab; ++id)
        if ((static_cast<uint32_t>(bits.at<int32_t>({index.back(), id / 32})) & 1u << id % 32) == 0)
          expected.at<float>({row, id}) = -INFINITY;
    }
    call(apply_token_bitmask, ctx, ApplyTokenBitmaskArgs{logits, column(index), bits});
    EXPECT_TRUE(bitwise_equal(logits, expected));
  });
}

RUNG_TEST(Hidden1_8_Temperature, DividesWhatIsNotGreedy, "apply_temperature", apply_temperature_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 9), vocab = any_vocabulary(random);
    const Tensor logits = any_logits(random, rows, vocab), before = logits.clone();
    std::vector<float> temperatures;
    for (int64_t row = 0; row < rows; ++row)
      temperatures.push_back(
          random.one_of<float>({0, 1e-6f, 1, 0.25f, static_cast<float>(random.uniform(0.1, 3))}));
    call(apply_temperature, ctx, logits, column(temperatures));
    for (int64_t i = 0; i < logits.numel(); ++i) {
      const float t = temperatures[i / vocab], x = before.data<float>()[i];
      ASSERT_EQ(logits.data<float>()[i], t < 1e-5f ? x : x / t) << "temperature " << t;
    }
  });
}

// filter(logits, values) on some rows; keeps(row, x, order, place) says whether the token order[place] is left.
template <class T, class Filter, class Keeps>
void check_filter(const std::function<T(Random&, int64_t)>& value_of, Filter&& filter, Keeps&& keeps) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 6), vocab = any_vocabulary(random);
    const Tensor logits = any_logits(random, rows, vocab), before = logits.clone();
    std::vector<T> values;
    for (int64_t row = 0; row < rows; ++row) values.push_back(value_of(random, vocab));
    filter(logits, column(values));
    for (int64_t row = 0; row < rows; ++row) {
      const float* x = row_of(before, row);
      const auto order = in_order(x, vocab);
      const auto logprobs = logprobs_of(x, vocab);
      double mass = 0;
      for (size_t place = 0; place < order.size(); ++place) {
        const int32_t id = order[place];
        const int kept = keeps(values[row], x, order, place, mass, logprobs);  // -1: a matter of rounding
        if (kept >= 0) {
          ASSERT_EQ(row_of(logits, row)[id], kept ? x[id] : -INFINITY)
              << "value " << values[row] << ", rank " << place << " of " << vocab;
        }
        mass += std::exp(logprobs[id]);
      }
    }
  });
}

RUNG_TEST(Hidden1_8_TopK, KeepsEquals, "mask_top_k", mask_top_k_variants()) {
  check_filter<int32_t>(
      [](Random& random, int64_t vocab) { return static_cast<int32_t>(random.integer(-1, vocab + 2)); },
      [&](const Tensor& x, const Tensor& k) { call(mask_top_k, ctx, x, k); },
      [](int32_t k, const float* x, const auto& order, size_t place, double, const auto&) {
        return k <= 0 || k >= std::ssize(order) || x[order[place]] >= x[order[k - 1]];
      });
}

RUNG_TEST(Hidden1_8_TopP, KeepsTheFewest, "mask_top_p", mask_top_p_variants()) {
  check_filter<float>([](Random& random, int64_t) { return static_cast<float>(random.uniform(0, 1.1)); },
                      [&](const Tensor& x, const Tensor& p) { call(mask_top_p, ctx, x, p); },
                      [](float p, const float* x, const auto& order, size_t place, double mass, const auto&) {
                        if (place > 0 && p < 1 && std::abs(mass - p) < 1e-6 && !std::isinf(x[order[place]]))
                          return -1;
                        return static_cast<int>(place == 0 || p >= 1 || mass < p);
                      });
}

RUNG_TEST(Hidden1_8_MinP, KeepsWhatIsLikely, "mask_min_p", mask_min_p_variants()) {
  check_filter<float>(
      [](Random& random, int64_t) { return static_cast<float>(random.uniform(-0.1, 1)); },
      [&](const Tensor& x, const Tensor& p) { call(mask_min_p, ctx, x, p); },
      [](float p, const float*, const auto& order, size_t place, double, const auto& logprobs) {
        const double ratio = std::exp(logprobs[order[place]] - logprobs[order[0]]);
        return std::abs(ratio - p) < 1e-4 * p ? -1 : static_cast<int>(p <= 0 || ratio >= p);
      });
}

RUNG_TEST(Hidden1_8_Argmax, TheFirstOfTheLargest, "argmax", argmax_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 20), vocab = any_vocabulary(random);
    const Tensor logits = any_logits(random, rows, vocab), ids = poisoned({rows}, DType::i32);
    call(argmax, ctx, logits, ids);
    for (int64_t row = 0; row < rows; ++row) {
      const float* x = row_of(logits, row);
      EXPECT_EQ(ids.at<int32_t>({row}), std::max_element(x, x + vocab) - x)
          << "row " << row << " of " << vocab;
    }
  });
}

// softmax or log_softmax: in double precision, and nothing of what is cut.
template <class Run>
void check_probabilities(bool log, Run&& run) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 20), vocab = any_vocabulary(random);
    const Tensor logits = any_logits(random, rows, vocab), out = poisoned({rows, vocab}, DType::f32);
    run(logits, out);
    for (int64_t row = 0; row < rows; ++row) {
      const auto expected = logprobs_of(row_of(logits, row), vocab);
      for (int64_t i = 0; i < vocab; ++i) {
        const double seen = row_of(out, row)[i], wanted = log ? expected[i] : std::exp(expected[i]);
        const double bound = std::isinf(expected[i]) ? 0 : (log ? 1e-5 : 1e-6) + 2e-5 * std::abs(wanted);
        ASSERT_TRUE(seen == wanted || std::abs(seen - wanted) <= bound)
            << seen << " instead of " << wanted << ", row " << row << " token " << i;
      }
    }
  });
}

RUNG_TEST(Hidden1_8_Softmax, OfAnyOffset, "softmax", softmax_variants()) {
  check_probabilities(false, [&](const Tensor& x, const Tensor& out) { call(softmax, ctx, x, out); });
}

RUNG_TEST(Hidden1_8_LogSoftmax, OfAnyOffset, "log_softmax", log_softmax_variants()) {
  check_probabilities(true, [&](const Tensor& x, const Tensor& out) { call(log_softmax, ctx, x, out); });
}

RUNG_TEST(Hidden1_8_TopLogprobs, TheBestAndTheChosen, "top_logprobs", top_logprobs_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t rows = random.integer(1, 9), vocab = any_vocabulary(random), k = random.integer(0, 40);
    const Tensor logits = random.normal({rows, vocab}, DType::f32, 3);
    std::vector<int32_t> chosen;
    for (int64_t row = 0; row < rows; ++row)
      chosen.push_back(static_cast<int32_t>(random.integer(0, vocab - 1)));
    const TopLogprobsArgs args{logits, column(chosen), poisoned({rows}, DType::f32),
                               poisoned({rows, k}, DType::i32), poisoned({rows, k}, DType::f32)};
    call(top_logprobs, ctx, args);
    for (int64_t row = 0; row < rows; ++row) {
      const auto order = in_order(row_of(logits, row), vocab);
      const auto expected = logprobs_of(row_of(logits, row), vocab);
      EXPECT_NEAR(args.chosen_logprobs.at<float>({row}), expected[chosen[row]], 3e-5);
      for (int64_t i = 0; i < std::min(k, vocab); ++i) {
        ASSERT_EQ(args.top_ids.at<int32_t>({row, i}), order[i]) << "row " << row << " rank " << i;
        ASSERT_NEAR(args.top_logprobs.at<float>({row, i}), expected[order[i]], 3e-5);
      }
    }
  });
}

// The ten rounds of Salmon et al., written with 64-bit products.
uint32_t philox_word(uint64_t seed, uint64_t index, uint32_t token) {
  std::array<uint64_t, 4> c{token / 4, index & 0xffffffff, index >> 32, 0};
  uint64_t k0 = seed & 0xffffffff, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53 * c[0], b = 0xCD9E8D57 * c[2];
    c = {(b >> 32) ^ c[1] ^ k0, b & 0xffffffff, (a >> 32) ^ c[3] ^ k1, a & 0xffffffff};
    k0 = (k0 + 0x9E3779B9) & 0xffffffff, k1 = (k1 + 0xBB67AE85) & 0xffffffff;
  }
  return static_cast<uint32_t>(c[token % 4]);
}

double noise_of(uint64_t seed, uint64_t index, uint32_t token) {
  const double u = std::min(
      (static_cast<double>(static_cast<float>(philox_word(seed, index, token))) + 0.5) / 0x1p32, 1 - 0x1p-24);
  return -std::log(-std::log1p(-u));
}

TEST(Hidden1_8_Philox, UniformsOfAnySeed) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int i = 0; i < 20000; ++i) {
    const uint64_t seed = random.engine()(), index = random.engine()();
    const auto token = static_cast<uint32_t>(random.integer(0, 300'000));
    const double expected = (static_cast<double>(philox_word(seed, index, token)) + 0.5) / 0x1p32;
    ASSERT_NEAR(sampling_uniform(seed, index, token), expected, 1e-7 * expected + 1e-12);
  }
}

// What each row of a draw asks for, and its logits.
struct Rows {
  Rows(Random& random, int64_t count)
      : vocab(any_vocabulary(random)), logits(any_logits(random, count, vocab)) {
    for (int64_t row = 0; row < count; ++row) {
      greedy.push_back(random.integer(0, 3) == 0);
      temperature.push_back(greedy.back() ? 0.0f : static_cast<float>(random.uniform(0.3, 2)));
      seeds.push_back(static_cast<int64_t>(random.engine()()));
      index.push_back(static_cast<int64_t>(random.engine()() >> 1));
    }
  }
  // `id` has the largest sum of logit and noise, or nearly, among the tokens that are left. Whether those near a filter's
  // bound are left is a matter of rounding.
  enum class Fate { cut, near, left };
  void expect_winner(int32_t id, int64_t row, const float* x, const std::vector<Fate>& fates) const {
    double best = -INFINITY, chosen = -INFINITY;
    for (int64_t i = 0; i < vocab; ++i) {
      if (fates[i] == Fate::cut) continue;
      double score = x[i];
      if (!greedy[row]) score += noise_of(seeds[row], index[row], static_cast<uint32_t>(i));
      if (fates[i] == Fate::left) best = std::max(best, score);
      if (i == id) chosen = score;
    }
    EXPECT_GE(chosen, best - 1e-5 * std::max(1.0, std::abs(best)))
        << "row " << row << (greedy[row] ? ", greedy" : "") << ": token " << id << " of " << vocab;
  }
  int64_t vocab;
  Tensor logits;
  std::vector<bool> greedy;
  std::vector<float> temperature;
  std::vector<int64_t> seeds, index;
};

RUNG_TEST(Hidden1_8_Sample, TheLargestSumOfLogitAndNoise, "sample", sample_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t count = random.integer(1, 20);
    const Rows rows(random, count);
    const Tensor ids = poisoned({count}, DType::i32);
    call(sample, ctx,
         SampleArgs{rows.logits, column(rows.temperature), column(rows.seeds), column(rows.index), ids});
    for (int64_t row = 0; row < count; ++row)
      rows.expect_winner(ids.at<int32_t>({row}), row, row_of(rows.logits, row),
                         std::vector(static_cast<size_t>(rows.vocab), Rows::Fate::left));
  });
}

// min-p depends on what the logits were divided by before.
RUNG_TEST(Hidden1_8_Draw, TheTemperatureComesBeforeTheFilters, "draw", draw_variants()) {
  repeated(15, [&](Random& random) {
    const int64_t count = random.integer(1, 12);
    const Rows rows(random, count);
    std::vector<float> min_p;
    std::vector<int32_t> top_k;
    for (int64_t row = 0; row < count; ++row) {
      min_p.push_back(static_cast<float>(random.uniform(0.001, 0.5)));
      top_k.push_back(static_cast<int32_t>(random.integer(0, 50)));
    }
    DrawArgs args{};
    args.logits = rows.logits.clone();
    args.temperature = column(rows.temperature);
    args.min_p = column(min_p);
    args.top_k = column(top_k);
    args.seeds = column(rows.seeds);
    args.output_index = column(rows.index);
    args.ids = poisoned({count}, DType::i32);
    call(draw, ctx, args);
    for (int64_t row = 0; row < count; ++row) {
      std::vector<float> x(row_of(rows.logits, row), row_of(rows.logits, row) + rows.vocab);
      std::vector fates(x.size(), Rows::Fate::left);
      if (!rows.greedy[row]) {
        for (float& value : x) value /= rows.temperature[row];
        const auto order = in_order(x.data(), rows.vocab);
        const float best = x[order[0]],
                    last = top_k[row] > 0 && top_k[row] < rows.vocab ? x[order[top_k[row] - 1]] : -INFINITY;
        for (size_t i = 0; i < x.size(); ++i) {
          const double ratio = std::exp(double{x[i]} - best) / min_p[row];
          if (x[i] < last || ratio < 1) fates[i] = Rows::Fate::cut;
          if (x[i] >= last && std::abs(ratio - 1) < 1e-4) fates[i] = Rows::Fate::near;
        }
      }
      rows.expect_winner(args.ids.at<int32_t>({row}), row, x.data(), fates);
    }
  });
}

}  // namespace
}  // namespace ladder
