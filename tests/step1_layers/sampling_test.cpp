#include <cmath>
#include <limits>
#include <set>

#include "step1_layers/core/error.h"
#include "step1_layers/sampling/argmax.h"
#include "step1_layers/sampling/invalid_token.h"
#include "step1_layers/sampling/penalties.h"
#include "step1_layers/sampling/philox.h"
#include "step1_layers/sampling/sample.h"
#include "step1_layers/sampling/softmax.h"
#include "step1_layers/sampling/top_logprobs.h"
#include "tests/step1_layers/chi_square.h"
#include "tests/step1_layers/invalid_rows.h"
#include "tests/support/numerics.h"
#include "tests/support/rungs.h"

namespace ladder {
namespace {

using namespace ladder::testing;

// One logit, fewer than a register, more than one chunk, more than the 1,024 of a naive kernel, a real
// vocabulary.
constexpr int64_t kVocabularies[] = {1, 5, 63, 1025, 4099, 151936};

template <class T>
Tensor row_values(const std::vector<T>& values) {
  return Tensor::from<T>(values, {static_cast<int64_t>(values.size())});
}

RUNG_TEST(Task1_8_Argmax, GivesTheLowestIdOfTheLargestLogit, "argmax", argmax_variants()) {
  for (int64_t vocab : kVocabularies) {
    Random random;
    SCOPED_TRACE(random.describe());
    const int64_t rows = 3;
    Tensor logits = random.normal({rows, vocab}, DType::f32), ids = poisoned({rows}, DType::i32);
    std::vector<int32_t> expected;
    for (int64_t row = 0; row < rows; ++row) {
      // The same largest value at up to three places; the first counts.
      int64_t first = vocab;
      for (int i = 0; i < 3; ++i) {
        const int64_t at = random.integer(0, vocab - 1);
        logits.at<float>({row, at}) = 50.0f;
        first = std::min(first, at);
      }
      expected.push_back(static_cast<int32_t>(first));
    }
    call(argmax, ctx, logits, ids);
    for (int64_t row = 0; row < rows; ++row) EXPECT_EQ(ids.at<int32_t>({row}), expected[row]) << vocab;
  }
}

RUNG_TEST(Task1_8_Argmax, TakesNegativeRowsAndAnyTokenThatIsNotForbidden, "argmax", argmax_variants()) {
  Tensor logits = Tensor::empty({3, 40}, DType::f32), ids = poisoned({3}, DType::i32);
  for (int64_t i = 0; i < 40; ++i) {
    logits.at<float>({0, i}) = i == 21 ? -std::numeric_limits<float>::max() : -INFINITY;
    logits.at<float>({1, i}) = -100.0f - static_cast<float>(std::abs(i - 30));
    logits.at<float>({2, i}) = i < 39 ? -INFINITY : -1e30f;
  }
  call(argmax, ctx, logits, ids);
  EXPECT_EQ(ids.at<int32_t>({0}), 21);
  EXPECT_EQ(ids.at<int32_t>({1}), 30);
  EXPECT_EQ(ids.at<int32_t>({2}), 39);
}

RUNG_TEST(Task1_8_Argmax, ARowWithANaNOrOfForbiddenTokensGivesNone, "argmax", argmax_variants()) {
  for (int64_t vocab : kVocabularies)
    expect_invalid_rows(vocab, [&](const Tensor& logits) {
      const Tensor ids = poisoned({logits.dim(0)}, DType::i32);
      call(argmax, ctx, logits, ids);
      return std::vector<int32_t>(ids.data<int32_t>(), ids.data<int32_t>() + ids.numel());
    });
}

std::vector<double> log_softmax_reference(const Tensor& logits) {
  std::vector<double> values = to_double(logits);
  const auto vocab = static_cast<size_t>(logits.dim(1));
  for (size_t row = 0; row < values.size() / vocab; ++row) {
    double* x = values.data() + row * vocab;
    const double largest = *std::max_element(x, x + vocab);
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - largest);
    for (size_t i = 0; i < vocab; ++i) x[i] -= largest + std::log(sum);
  }
  return values;
}

// Logits of any size: e^300 overflows unless the largest is subtracted.
template <class Check>
void with_shifted_logits(Check&& check) {
  for (int64_t vocab : kVocabularies)
    for (double offset : {0.0, 300.0, -300.0}) {
      Random random;
      SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
      Tensor logits = random.normal({2, vocab}, DType::f32, 4.0);
      for (int64_t i = 0; i < logits.numel(); ++i) logits.data<float>()[i] += static_cast<float>(offset);
      check(logits);
    }
}

RUNG_TEST(Task1_8_Softmax, EqualsDoublePrecision, "softmax", softmax_variants()) {
  with_shifted_logits([&](const Tensor& logits) {
    std::vector<double> expected = log_softmax_reference(logits);
    for (double& value : expected) value = std::exp(value);
    Tensor out = poisoned({2, logits.dim(1)}, DType::f32);
    call(softmax, ctx, logits, out);
    EXPECT_TRUE(close_to(out, expected, logits.dim(1)));
  });
}

RUNG_TEST(Task1_8_LogSoftmax, EqualsDoublePrecision, "log_softmax", log_softmax_variants()) {
  with_shifted_logits([&](const Tensor& logits) {
    Tensor out = logits.clone();
    call(log_softmax, ctx, out, out);  // in place
    if (logits.dim(1) == 1)
      EXPECT_EQ(out.at<float>({0, 0}), 0.0f);
    else
      EXPECT_TRUE(close_to(out, log_softmax_reference(logits), logits.dim(1)));
  });
}

RUNG_TEST(Task1_8_Softmax, ACutTokenHasProbabilityZeroAndEqualOnesShareExactly, "softmax",
          softmax_variants()) {
  Tensor logits = Tensor::empty({1, 1999}, DType::f32), out = poisoned({1, 1999}, DType::f32);
  for (int64_t i = 0; i < 1999; ++i) logits.at<float>({0, i}) = i % 7 == 3 && i < 7 * 256 ? 2.5f : -INFINITY;
  call(softmax, ctx, logits, out);
  for (int64_t i = 0; i < 1999; ++i)
    ASSERT_EQ(out.at<float>({0, i}), i % 7 == 3 && i < 7 * 256 ? 1.0f / 256 : 0.0f) << i;
}

// Whatever the largest logit is, it is subtracted: e^-2000 is 0.
RUNG_TEST(Task1_8_Softmax, LogitsFarBelowZeroShareToo, "softmax", softmax_variants()) {
  const Tensor logits = Tensor::empty({1, 64}, DType::f32), out = poisoned({1, 64}, DType::f32);
  for (int64_t i = 0; i < 64; ++i) logits.at<float>({0, i}) = -2000.0f;
  call(softmax, ctx, logits, out);
  for (int64_t i = 0; i < 64; ++i) ASSERT_EQ(out.at<float>({0, i}), 1.0f / 64) << i;
}

RUNG_TEST(Task1_8_LogSoftmax, ACutTokenHasLogProbabilityMinusInfinity, "log_softmax",
          log_softmax_variants()) {
  Tensor logits = Tensor::from<float>(std::vector<float>{-INFINITY, 3.0f, -INFINITY}, {1, 3});
  call(log_softmax, ctx, logits, logits);
  EXPECT_EQ(to_double(logits), (std::vector<double>{-INFINITY, 0, -INFINITY}));
}

// The rows of 0 and 2 are as they would be without row 1.
void expect_nan_in_row_one(const Tensor& out, const Tensor& expected) {
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t i = 0; i < out.dim(1); ++i) {
      if (row == 1)
        ASSERT_TRUE(std::isnan(out.at<float>({row, i}))) << i;
      else
        ASSERT_EQ(out.at<float>({row, i}), expected.at<float>({row, i})) << i;
    }
}

RUNG_TEST(Task1_8_Softmax, ARowWithANaNIsNaNAndTheOthersAreNot, "softmax", softmax_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor logits = random.normal({3, 1027}, DType::f32), expected = poisoned({3, 1027}, DType::f32);
  call(softmax, ctx, logits, expected);
  logits.at<float>({1, 1026}) = NAN;
  const Tensor out = poisoned({3, 1027}, DType::f32);
  call(softmax, ctx, logits, out);
  expect_nan_in_row_one(out, expected);
}

RUNG_TEST(Task1_8_LogSoftmax, ARowWithANaNIsNaNAndTheOthersAreNot, "log_softmax", log_softmax_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor logits = random.normal({3, 1027}, DType::f32), expected = poisoned({3, 1027}, DType::f32);
  call(log_softmax, ctx, logits, expected);
  logits.at<float>({1, 0}) = NAN;
  const Tensor out = poisoned({3, 1027}, DType::f32);
  call(log_softmax, ctx, logits, out);
  expect_nan_in_row_one(out, expected);
}

RUNG_TEST(Task1_8_TopLogprobs, GivesTheBestInOrderAndTheChosen, "top_logprobs", top_logprobs_variants()) {
  for (int64_t vocab : kVocabularies)
    for (int64_t k : {0, 1, 5, 20}) {
      Random random;
      SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
      Tensor logits = random.normal({2, vocab}, DType::f32, 3.0);
      for (int64_t i = 0; i < logits.numel(); i += 3)  // many equals
        logits.data<float>()[i] = std::round(logits.data<float>()[i]);
      const Tensor chosen = row_values<int32_t>({static_cast<int32_t>(random.integer(0, vocab - 1)), 0});
      Tensor chosen_logprobs = poisoned({2}, DType::f32), ids = poisoned({2, k}, DType::i32),
             values = poisoned({2, k}, DType::f32);
      call(top_logprobs, ctx, TopLogprobsArgs{logits, chosen, chosen_logprobs, ids, values, {}, {}});
      const auto reference = log_softmax_reference(logits);
      for (int64_t row = 0; row < 2; ++row) {
        const double* expected = reference.data() + row * vocab;
        EXPECT_NEAR(chosen_logprobs.at<float>({row}), expected[chosen.at<int32_t>({row})], 2e-5);
        std::vector<int32_t> order(static_cast<size_t>(vocab));
        for (int64_t i = 0; i < vocab; ++i) order[i] = static_cast<int32_t>(i);
        std::partial_sort(order.begin(), order.begin() + std::min(k, vocab), order.end(),
                          [&](int32_t a, int32_t b) {
                            const float x = logits.at<float>({row, a}), y = logits.at<float>({row, b});
                            return x != y ? x > y : a < b;
                          });
        for (int64_t i = 0; i < k; ++i) {
          ASSERT_EQ(ids.at<int32_t>({row, i}), i < vocab ? order[i] : -1);
          if (i < vocab)
            ASSERT_NEAR(values.at<float>({row, i}), expected[order[i]], 2e-5);
          else
            ASSERT_EQ(values.at<float>({row, i}), -INFINITY);
        }
      }
    }
}

RUNG_TEST(Task1_8_TopLogprobs, GivesSelectedTokensInTheirOrder, "top_logprobs", top_logprobs_variants()) {
  for (int64_t vocab : kVocabularies)
    for (int64_t k : {0, 3}) {
      Random random;
      SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
      const Tensor logits = random.normal({3, vocab}, DType::f32, 3.0);
      const Tensor selected = Tensor::empty({3, 129}, DType::i32);
      for (int64_t i = 0; i < selected.numel(); ++i)
        selected.data<int32_t>()[i] =
            i % 5 == 4 ? kInvalidToken : static_cast<int32_t>(random.integer(0, vocab - 1));
      TopLogprobsArgs args{logits,
                           row_values<int32_t>({0, kInvalidToken, static_cast<int32_t>(vocab - 1)}),
                           poisoned({3}, DType::f32),
                           poisoned({3, k}, DType::i32),
                           poisoned({3, k}, DType::f32),
                           selected,
                           poisoned({3, 129}, DType::f32)};
      call(top_logprobs, ctx, args);
      const auto reference = log_softmax_reference(logits);
      const auto expect_logprob = [&](float got, int64_t row, int32_t id) {
        if (id == kInvalidToken)
          EXPECT_TRUE(std::isnan(got));
        else
          EXPECT_NEAR(got, reference[static_cast<size_t>(row * vocab + id)], 2e-5);
      };
      for (int64_t row = 0; row < 3; ++row) {
        expect_logprob(args.chosen_logprobs.at<float>({row}), row, args.chosen.at<int32_t>({row}));
        for (int64_t i = 0; i < 129; ++i)
          expect_logprob(args.selected_logprobs.at<float>({row, i}), row, selected.at<int32_t>({row, i}));
      }
    }
}

RUNG_TEST(Task1_8_TopLogprobs, ARowWithANaNHasNoLogProbabilities, "top_logprobs", top_logprobs_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const Tensor logits = random.normal({2, 5003}, DType::f32);
  logits.at<float>({0, 4000}) = NAN;
  const TopLogprobsArgs args{logits,
                             row_values<int32_t>({kInvalidToken, 7}),
                             poisoned({2}, DType::f32),
                             poisoned({2, 4}, DType::i32),
                             poisoned({2, 4}, DType::f32),
                             row_values<int32_t>({3, 3}).view({2, 1}),
                             poisoned({2, 1}, DType::f32)};
  call(top_logprobs, ctx, args);
  for (int64_t row = 0; row < 2; ++row) {
    EXPECT_EQ(std::isnan(args.chosen_logprobs.at<float>({row})), row == 0);
    EXPECT_EQ(std::isnan(args.selected_logprobs.at<float>({row, 0})), row == 0);
    EXPECT_EQ(std::isnan(args.top_logprobs.at<float>({row, 0})), row == 0);
  }
}

TEST(Task1_8_TopLogprobsCall, RefusesIdsOutsideTheVocabulary) {
  const Tensor logits = Tensor::zeros({1, 4}, DType::f32), out = Tensor::zeros({1}, DType::f32);
  for (int32_t id : {-2, 4}) {
    EXPECT_THROW(top_logprobs(OpContext{}, {logits, row_values<int32_t>({id}), out, {}, {}, {}, {}}), Error);
    EXPECT_THROW(top_logprobs(OpContext{}, {logits,
                                            row_values<int32_t>({0}),
                                            out,
                                            {},
                                            {},
                                            row_values<int32_t>({id}).view({1, 1}),
                                            out.view({1, 1})}),
                 Error);
  }
}

RUNG_TEST(Task1_8_Penalties, FollowTheirDefinitions, "apply_penalties", apply_penalties_variants()) {
  ApplyPenaltiesArgs args;
  args.logits = Tensor::from<float>(
      std::vector<float>{4, -4, 0, 8, 1, /**/ 4, -4, 0, 8, 1, /**/ 4, -4, 0, 8, 1}, {3, 5});
  args.row_start = row_values<int32_t>({0, 4, 4, 6});
  args.token_ids = row_values<int32_t>({0, 1, 2, 3, /**/ 3, 1});
  args.output_counts = row_values<int32_t>({0, 0, 1, 3, /**/ 2, 0});
  args.repetition = row_values<float>({2, 2, 1});
  args.presence = row_values<float>({0.5f, 1, -1});
  args.frequency = row_values<float>({0.25f, 1, 2});
  call(apply_penalties, ctx, args);
  // Row 0: tokens 0 and 1 stand in the prompt only: repetition alone. Row 1 has used nothing yet.
  EXPECT_EQ(to_double(args.logits), (std::vector<double>{2, -8, -0.75, 4 - 0.75 - 0.5, 1, /**/ 4, -4, 0, 8, 1,
                                                         /**/ 4, -4, 0, 8 - 4 + 1, 1}));
  for (const int32_t outside : {5, -1}) {
    args.token_ids.at<int32_t>({2}) = outside;
    if (ctx.device.is_cpu()) {
      EXPECT_THROW(apply_penalties(ctx, args), Error);
      continue;
    }
    // The host does not read the ids of a GPU. Token 5 of row 0 would be token 0 of row 1.
    std::fill_n(args.logits.data<float>(), 15, 4.0f);
    call(apply_penalties, ctx, args);
    EXPECT_EQ(to_double(args.logits), (std::vector<double>{2, 2, 4, 4.0 / 2 - 0.75 - 0.5, 4, /**/ 4, 4, 4, 4,
                                                           4, /**/ 4, 4, 4, 4 - 4 + 1, 4}));
  }
}

TEST(Task1_8_Philox, EqualsThePublishedKnownAnswers) {
  // Random123's kat_vectors, philox4x32-10.
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Task1_8_Philox, TheUniformIsMadeAsTheHeaderSays) {
  const uint64_t seed = 0x0123456789abcdef, index = 0x1000000002;
  for (uint32_t token : {0u, 1u, 2u, 3u, 4u, 151935u}) {
    const auto words = philox4x32_10({token / 4, 2, 0x10, 0}, {0x89abcdef, 0x01234567});
    const double exact = (static_cast<double>(words[token % 4]) + 0.5) / 4294967296.0;
    EXPECT_NEAR(sampling_uniform(seed, index, token), exact, exact * 6e-8);
  }
  for (uint32_t token = 0; token < 100000; ++token) {
    const float u = sampling_uniform(7, 7, token);
    ASSERT_GT(u, 0.0f);
    ASSERT_LT(u, 1.0f);
  }
}

TEST(Task1_8_Philox, TheUniformIsFineNearZero) {
  // The winners among many unlikely tokens have the smallest u. Made from the upper 24 bits of a word, u
  // would come in steps of 2^-24 and tokens of probability 1e-7 would be drawn half as often or twice as
  // often.
  int small = 0, between_steps = 0;
  for (uint32_t token = 0; token < (1u << 22); ++token) {
    const float u = sampling_uniform(1, 2, token);
    if (u >= 0x1p-16f) continue;
    ++small;
    between_steps += std::fmod(u, 0x1p-24f) != 0.0f;
  }
  EXPECT_NEAR(small, 64, 48);  // 2^22 draws, six deviations
  EXPECT_GT(between_steps, small / 2);
}

struct Sampling {
  Tensor logits, temperature, seeds, output_index, ids;

  Sampling(const Tensor& logits, const std::vector<float>& temperature, const std::vector<int64_t>& seeds,
           const std::vector<int64_t>& output_index)
      : logits(logits),
        temperature(row_values(temperature)),
        seeds(row_values(seeds)),
        output_index(row_values(output_index)),
        ids(poisoned({logits.dim(0)}, DType::i32)) {}
  std::vector<int32_t> run(const OpContext& ctx) {
    call(sample, ctx, SampleArgs{logits, temperature, seeds, output_index, ids});
    return {ids.data<int32_t>(), ids.data<int32_t>() + ids.numel()};
  }
};

RUNG_TEST(Task1_8_Sample, EveryRungTakesTheLargestSumOfLogitAndNoise, "sample", sample_variants()) {
  for (int64_t vocab : kVocabularies)
    for (double deviation : {0.0, 1.0, 5.0}) {
      Random random;
      SCOPED_TRACE(random.describe() + " vocabulary " + std::to_string(vocab));
      Sampling one(random.normal({1, vocab}, DType::f32, deviation), {1},
                   {static_cast<int64_t>(random.engine()())}, {random.integer(0, 5000)});
      const int32_t id = one.run(ctx)[0];
      double best = -INFINITY, chosen = -INFINITY;
      for (int64_t i = 0; i < vocab; ++i) {
        const double u = sampling_uniform(static_cast<uint64_t>(one.seeds.at<int64_t>({0})),
                                          static_cast<uint64_t>(one.output_index.at<int64_t>({0})),
                                          static_cast<uint32_t>(i));
        const double score = one.logits.at<float>({0, i}) - std::log(-std::log1p(-u));
        best = std::max(best, score);
        if (i == id) chosen = score;
      }
      EXPECT_GE(chosen, best - 1e-5);  // the winner, or within the rounding of its score
    }
}

RUNG_TEST(Task1_8_Sample, DrawsFromTheDistribution, "sample", sample_variants()) {
  // Against softmax(logits), 24 degrees of freedom.
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t vocab = 25, rows = 500, calls = 40;
  expect_chi_square(3, 66, [&] {
    Tensor one = random.normal({1, vocab}, DType::f32, 1.0);
    Tensor logits = Tensor::empty({rows, vocab}, DType::f32);
    for (int64_t row = 0; row < rows; ++row) logits.narrow(0, row, 1).copy_from(one);
    std::vector<int64_t> seeds(rows, static_cast<int64_t>(random.engine()())), index(rows);
    std::vector<double> counts(vocab, 0.0);
    for (int64_t call = 0; call < calls; ++call) {
      for (int64_t row = 0; row < rows; ++row) index[row] = call * rows + row;
      for (int32_t id : Sampling(logits, std::vector<float>(rows, 1.0f), seeds, index).run(ctx)) ++counts[id];
    }
    const auto log_p = log_softmax_reference(one);
    std::vector<double> p;
    for (double log : log_p) p.push_back(std::exp(log));
    return chi_square(counts, p);
  });
}

RUNG_TEST(Task1_8_Sample, ASeedGivesTheSameTokenInAnyBatch, "sample", sample_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t rows = 33, vocab = 3001;
  const Tensor logits = random.normal({rows, vocab}, DType::f32);
  std::vector<int64_t> seeds, index;
  for (int64_t row = 0; row < rows; ++row) {
    seeds.push_back(static_cast<int64_t>(random.engine()()));
    index.push_back(random.integer(0, 1000));
  }
  std::vector<int32_t> together;
  with_threads(3,
               [&] { together = Sampling(logits, std::vector<float>(rows, 0.7f), seeds, index).run(ctx); });
  for (int64_t row = 0; row < rows; ++row)
    EXPECT_EQ(Sampling(logits.narrow(0, row, 1), {0.7f}, {seeds[row]}, {index[row]}).run(ctx)[0],
              together[row]);
  // Another output index or another seed is other noise.
  std::set<int32_t> tokens;
  for (int64_t i = 0; i < 20; ++i) tokens.insert(Sampling(logits.rows(1), {1}, {seeds[0]}, {i}).run(ctx)[0]);
  for (int64_t i = 0; i < 20; ++i) tokens.insert(Sampling(logits.rows(1), {1}, {i}, {0}).run(ctx)[0]);
  EXPECT_GT(tokens.size(), 20u);
}

RUNG_TEST(Task1_8_Sample, TinyTemperaturesAreGreedyAndCutTokensAreNeverDrawn, "sample", sample_variants()) {
  Random random;
  SCOPED_TRACE(random.describe());
  Tensor logits = random.normal({1, 500}, DType::f32);
  Tensor best = poisoned({1}, DType::i32);
  argmax(OpContext{}, logits, best);
  for (const float temperature : {0.0f, 9.9e-6f, 1e-40f})
    for (int64_t seed = 0; seed < 20; ++seed)
      EXPECT_EQ(Sampling(logits, {temperature}, {seed}, {0}).run(ctx)[0], best.at<int32_t>({0}));
  for (int64_t i = 0; i < 500; ++i) logits.at<float>({0, i}) = i == 321 || i == 77 ? 0.0f : -INFINITY;
  std::set<int32_t> drawn;
  for (int64_t seed = 0; seed < 200; ++seed) drawn.insert(Sampling(logits, {1}, {seed}, {5}).run(ctx)[0]);
  EXPECT_EQ(drawn, (std::set<int32_t>{77, 321}));
  for (int64_t i = 200; i < 500; i += 50) logits.at<float>({0, i}) = INFINITY;
  EXPECT_EQ(Sampling(logits, {1}, {3}, {5}).run(ctx)[0], 200);
}

RUNG_TEST(Task1_8_Sample, ARowWithANaNOrOfForbiddenTokensGivesNone, "sample", sample_variants()) {
  for (int64_t vocab : kVocabularies)
    for (const float temperature : {0.0f, 1.0f})
      expect_invalid_rows(vocab, [&](const Tensor& logits) {
        std::vector<int64_t> seeds(static_cast<size_t>(logits.dim(0)));
        for (size_t row = 0; row < seeds.size(); ++row) seeds[row] = static_cast<int64_t>(row);
        return Sampling(logits, std::vector<float>(seeds.size(), temperature), seeds, seeds).run(ctx);
      });
}

}  // namespace
}  // namespace ladder
