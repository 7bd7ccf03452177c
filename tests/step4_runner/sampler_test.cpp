// Task 4.3: the sampling pipeline on either device, against the same pipeline written plainly in double
// precision.
#include "step4_runner/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "step1_layers/sampling/philox.h"
#include "tests/step4_runner/sampler_scene.h"

namespace ladder {
namespace {

using ladder::testing::Random;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Row = ladder::testing::SampledRow;
using Answer = ladder::testing::SamplerAnswer;

class Task4_3_Sampler : public ::testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { ladder::testing::need_device(GetParam()); }
  static bool on_cpu() { return GetParam() == DeviceType::cpu; }
  static Answer run_sampler(const std::vector<Row>& rows, std::shared_ptr<LogitsProcessor> processor = {}) {
    return ladder::testing::run_sampler(GetParam(), rows, std::move(processor));
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, Task4_3_Sampler, ladder::testing::both_devices(),
                         [](const auto& info) { return ladder::testing::device_word(info.param); });

// After masks and biases.
std::vector<double> edited_logits(const Row& row) {
  const SamplingParams& p = row.sampling;
  std::vector<double> x(row.logits.begin(), row.logits.end());
  const auto forbid = [&](int32_t id) { x[static_cast<size_t>(id)] = -kInfinity; };
  for (int32_t id = 0; id < static_cast<int32_t>(x.size()) && !p.allowed_token_ids.empty(); ++id)
    if (!std::ranges::count(p.allowed_token_ids, id)) forbid(id);
  for (const std::vector<int32_t>& word : p.bad_words_token_ids) {
    std::vector<int32_t> completed(row.token_ids.begin() + row.num_prompt_tokens, row.token_ids.end());
    completed.push_back(word.back());
    if (completed.size() >= word.size() && std::equal(word.rbegin(), word.rend(), completed.rbegin()))
      forbid(word.back());
  }
  if (std::ssize(row.token_ids) - row.num_prompt_tokens < p.min_tokens)
    for (const int32_t id : p.all_stop_token_ids) forbid(id);
  for (const auto& [id, bias] : p.logit_bias) x[static_cast<size_t>(id)] += bias;
  return x;
}

// The pipeline as the chapter states it. `slack` moves every threshold a little: where that changes the
// answer, the row is too close to call. So it is where two tokens less than kSlack apart are told apart by
// their order: the answer is negative then.
constexpr double kSlack = 1e-4;
int32_t reference(const Row& row, double slack) {
  const SamplingParams& p = row.sampling;
  bool is_close = false;
  std::vector<double> x = edited_logits(row);
  std::map<int32_t, int64_t> output_counts;
  for (size_t i = 0; i < row.token_ids.size(); ++i)
    output_counts[row.token_ids[i]] += static_cast<int64_t>(i) >= row.num_prompt_tokens;
  for (auto [token, count] : output_counts) {
    double& value = x[static_cast<size_t>(token)];
    value = value > 0 ? value / p.repetition_penalty : value * p.repetition_penalty;
    value -= p.frequency_penalty * static_cast<double>(count) + p.presence_penalty * (count > 0);
  }
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  auto sort = [&] {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  };
  sort();
  if (p.temperature == 0) {
    const auto best = static_cast<int32_t>(order[0]);
    return x.size() > 1 && x[order[0]] - x[order[1]] < kSlack ? -1 - best : best;
  }
  for (double& value : x) value /= p.temperature;
  const double largest = x[order[0]];
  for (double& value : x)
    if (value - largest < std::log(p.min_p) + slack) value = -kInfinity;
  if (p.top_k > 0 && p.top_k < static_cast<int64_t>(x.size())) {
    const double kth = x[order[static_cast<size_t>(p.top_k) - 1]];
    is_close |= kth - x[order[static_cast<size_t>(p.top_k)]] < kSlack;
    for (double& value : x)
      if (value < kth) value = -kInfinity;
  }
  if (p.top_p < 1) {
    double total = 0;
    for (double value : x) total += std::exp(value - largest);
    double mass = 0, above = kInfinity;
    for (size_t i : order) {
      if (mass >= (p.top_p + slack) * total && i != order[0]) {
        is_close |= above - x[i] < kSlack;  // of the last that is kept and the first that is cut
        above = kInfinity;
        x[i] = -kInfinity;
      } else {
        above = x[i];
      }
      mass += std::exp(x[i] - largest);
    }
  }
  int32_t best = 0;
  double best_score = -kInfinity, second = -kInfinity;
  const auto output_index =
      static_cast<uint64_t>(static_cast<int64_t>(row.token_ids.size()) - row.num_prompt_tokens);
  for (size_t i = 0; i < x.size(); ++i) {
    const double u = sampling_uniform(*p.seed, output_index, static_cast<uint32_t>(i));
    const double score = x[i] - std::log(-std::log1p(-u));
    if (score > best_score) {
      second = best_score;
      best_score = score;
      best = static_cast<int32_t>(i);
    } else {
      second = std::max(second, score);
    }
  }
  is_close |= best_score - second < kSlack;
  return is_close ? -1 - best : best;
}

// Masks and biases that leave some token, as the upper half of the vocabulary is only biased.
void add_edits(Random& random, Row& row) {
  SamplingParams& p = row.sampling;
  const auto vocab = static_cast<int64_t>(row.logits.size());
  const auto any_id = [&] { return static_cast<int32_t>(random.integer(0, vocab - 1)); };
  const auto low_id = [&] { return static_cast<int32_t>(random.integer(0, (vocab - 1) / 2)); };
  const auto sometimes = [&] { return random.integer(0, 1) == 1; };
  if (sometimes()) {
    p.allowed_token_ids = {static_cast<int32_t>(vocab - 1)};
    for (int64_t i = random.integer(0, vocab); i > 0; --i) p.allowed_token_ids.push_back(any_id());
  }
  if (sometimes())
    for (int i = 0; i < 20; ++i) p.logit_bias[any_id()] = random.uniform(-5, 5);
  if (sometimes()) {
    p.min_tokens = random.integer(1, 12);
    for (int i = 0; i < 5 && vocab > 2; ++i) p.all_stop_token_ids.push_back(low_id());
  }
  if (sometimes() && vocab > 2) {
    const int64_t length = random.integer(1, 3);
    std::vector<int32_t> word;  // often the output's end, and then something
    const auto begin = std::max<int64_t>(row.num_prompt_tokens, std::ssize(row.token_ids) - length + 1);
    if (sometimes()) word.assign(row.token_ids.begin() + begin, row.token_ids.end());
    while (std::ssize(word) < length - 1) word.push_back(any_id());
    word.push_back(low_id());
    p.bad_words_token_ids = {word, {low_id()}};
  }
}

Row random_row(Random& random, int64_t vocab, bool plain = false) {
  Row row;
  row.num_prompt_tokens = random.integer(1, 30);
  row.token_ids.clear();
  const int64_t length = row.num_prompt_tokens + random.integer(0, 20);
  for (int64_t i = 0; i < length; ++i)
    row.token_ids.push_back(static_cast<int32_t>(random.integer(0, vocab - 1)));
  for (int64_t i = 0; i < vocab; ++i) row.logits.push_back(static_cast<float>(random.uniform(-6, 6)));
  SamplingParams& p = row.sampling;
  p.seed =
      static_cast<uint64_t>(random.integer(0, INT64_MAX)) * 2 + static_cast<uint64_t>(random.integer(0, 1));
  if (plain) return row;
  auto sometimes = [&] { return random.integer(0, 1) == 1; };
  if (sometimes()) p.temperature = random.integer(0, 3) == 0 ? 0.0 : random.uniform(0.1, 3.0);
  if (sometimes()) p.min_p = random.uniform(0, 0.4);
  if (sometimes()) p.top_k = random.integer(1, vocab + 5);
  if (sometimes()) p.top_p = random.uniform(0.05, 1.0);
  if (sometimes()) p.repetition_penalty = random.uniform(0.5, 2.0);
  if (sometimes()) p.presence_penalty = random.uniform(-2, 2);
  if (sometimes()) p.frequency_penalty = random.uniform(-2, 2);
  if (sometimes()) p.logprobs = random.integer(0, 5);
  if (random.integer(0, 3) == 0) add_edits(random, row);
  return row;
}

TEST_P(Task4_3_Sampler, MixedRowsEqualThePipelineInDoublePrecision) {
  Random random;
  SCOPED_TRACE(random.describe());
  int64_t checked = 0, close_calls = 0;
  for (int round = 0; round < 60; ++round) {
    const int64_t vocab = random.integer(0, 1) ? random.integer(2, 60) : random.integer(500, 1500);
    std::vector<Row> rows;
    const int64_t count = random.integer(1, 2 * Sampler::kRows + 3);
    for (int64_t r = 0; r < count; ++r) rows.push_back(random_row(random, vocab));
    const Answer answer = run_sampler(rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      // A threshold that moves may undo what another did: the answer without slack must be the same too.
      const int32_t expected = reference(rows[r], 0);
      if (expected < 0 || reference(rows[r], -kSlack) != expected || reference(rows[r], kSlack) != expected) {
        ++close_calls;
        continue;
      }
      ++checked;
      ASSERT_EQ(answer.token_ids[r], expected)
          << "round " << round << " row " << r << " of " << vocab << " tokens";
    }
  }
  EXPECT_GT(checked, 20 * close_calls);
}

TEST_P(Task4_3_Sampler, ARowGivesTheSameAloneAndInAnyBatch) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Row> rows;
  for (int64_t r = 0; r < 3 * Sampler::kRows; ++r) rows.push_back(random_row(random, 777));
  const Answer together = run_sampler(rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    const Answer alone = run_sampler({rows[r]});
    ASSERT_EQ(alone.token_ids[0], together.token_ids[r]) << "row " << r;
    if (!rows[r].sampling.logprobs) continue;
    const PositionLogprobs& a = alone.logprobs[0];
    const PositionLogprobs& b = together.logprobs[r];
    ASSERT_EQ(a.chosen.logprob, b.chosen.logprob);
    ASSERT_EQ(a.top.size(), b.top.size());
    for (size_t i = 0; i < a.top.size(); ++i) ASSERT_EQ(a.top[i].logprob, b.top[i].logprob);
  }
}

// The filters one after another, each seeing what the one before left: chosen so that every other order
// differs.
TEST_P(Task4_3_Sampler, FiltersActAfterTheTemperatureAndInOrder) {
  // At temperature 4 the probabilities of logits 4 ln(p) are p.
  auto logits_of = [](std::vector<double> p, double temperature) {
    std::vector<float> logits;
    for (double value : p) logits.push_back(static_cast<float>(temperature * std::log(value)));
    return logits;
  };
  auto support = [](Row row) {
    std::vector<bool> drawn(row.logits.size());
    std::vector<Row> rows(4000, row);
    for (size_t r = 0; r < rows.size(); ++r) rows[r].sampling.seed = r;
    for (int32_t token : run_sampler(rows).token_ids) drawn[static_cast<size_t>(token)] = true;
    std::string result;
    for (bool b : drawn) result += b ? '1' : '0';
    return result;
  };
  Row row;
  row.logits = logits_of({0.4, 0.3, 0.15, 0.1, 0.05}, 4.0);
  row.sampling.temperature = 4.0;
  EXPECT_EQ(support(row), "11111");
  row.sampling.min_p =
      0.3;  // keeps p >= 0.12; before the temperature it would keep the first alone or all but few
  EXPECT_EQ(support(row), "11100");
  row.sampling.min_p = 0.0;
  row.sampling.top_k = 4;
  EXPECT_EQ(support(row), "11110");
  row.sampling.top_k = 0;
  row.sampling.top_p = 0.8;  // 0.4 + 0.3 < 0.8 <= 0.85
  EXPECT_EQ(support(row), "11100");
  // Of {0.4, 0.3} the first alone is 0.57, so 0.5 keeps one; of all five it is 0.4, so 0.5 keeps two.
  row.sampling.top_p = 0.5;
  EXPECT_EQ(support(row), "11000");
  row.sampling.top_k = 2;
  EXPECT_EQ(support(row), "10000");
  row.sampling.top_k = 0;
  row.sampling.min_p = 0.6;
  EXPECT_EQ(support(row), "10000");
}

// step1_layers/sampling/README.md, "Sampling pipeline with numbers".
TEST_P(Task4_3_Sampler, DrawsWhatTheChapterWorksOutByHand) {
  Row row;
  row.logits = {2.6f, 2.0f, -1.0f, 1.0f, 0.5f, 3.0f};
  row.token_ids = {2, 0, 0};
  row.num_prompt_tokens = 1;
  SamplingParams& p = row.sampling;
  p.allowed_token_ids = {0, 1, 2, 3, 4};
  p.logit_bias = {{3, 1.0}};
  p.repetition_penalty = 1.25;
  p.frequency_penalty = 0.1;
  p.presence_penalty = 0.2;
  p.temperature = 0.8;
  p.min_p = 0.1;
  p.top_k = 3;
  p.top_p = 0.7;
  p.logprobs = 0;
  p.seed = 2;
  const Answer answer = run_sampler({row});
  EXPECT_EQ(answer.token_ids[0], 3);
  EXPECT_NEAR(answer.logprobs[0].chosen.logprob, -2.82, 0.005);
  Row first = row, forbidden = row;
  first.sampling.top_p = 0.3;
  EXPECT_EQ(run_sampler({first}).token_ids[0], 1);
  forbidden.sampling.bad_words_token_ids = {{0, 3}};
  EXPECT_NE(run_sampler({forbidden}).token_ids[0], 3);
}

// So that a batch of them takes the shortest way, as with 0; the operators would give the same tokens.
TEST(Task4_3_Plan, ABatchOfTinyTemperaturesIsGreedy) {
  BatchSequence sequence;
  sequence.token_ids = {1};
  sequence.num_prompt_tokens = 1;
  const std::vector<BatchSequence*> batch{&sequence};
  for (const auto& [temperature, greedy] :
       {std::pair{0.0, true}, {1e-300, true}, {9e-6, true}, {2e-5, false}}) {
    sequence.sampling.temperature = temperature;
    EXPECT_EQ(Sampler(100).plan(batch).all_greedy, greedy) << temperature;
  }
}

TEST_P(Task4_3_Sampler, ATemperatureThatNoFloatHoldsIsTheLargestOfThem) {
  std::vector<Row> rows;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Row row;
    for (int i = 0; i < 600; ++i) row.logits.push_back(i % 3 == 0 ? static_cast<float>(i % 7) : -INFINITY);
    row.sampling.temperature = 1e300;
    row.sampling.seed = seed;
    if (seed % 4 == 1) row.sampling.top_k = 50;
    if (seed % 4 == 2) row.sampling.top_p = 0.9;
    if (seed % 4 == 3) row.sampling.top_k = 300;
    rows.push_back(row);
  }
  const std::vector<int32_t> tokens = run_sampler(rows).token_ids;
  for (int32_t token : tokens) EXPECT_EQ(token % 3, 0);  // no masked one
  for (Row& row : rows) row.sampling.temperature = std::numeric_limits<float>::max();
  EXPECT_EQ(run_sampler(rows).token_ids, tokens);
}

TEST_P(Task4_3_Sampler, PenaltiesActOnGreedyRowsToo) {
  Row row;
  row.logits = {1.0f, 1.9f, 2.0f, -1.0f};
  row.sampling.temperature = 0.0;
  EXPECT_EQ(run_sampler({row}).token_ids[0], 2);
  row.token_ids = {2, 0};
  row.num_prompt_tokens = 1;
  row.sampling.presence_penalty = 1.5;  // over the output: token 0
  EXPECT_EQ(run_sampler({row}).token_ids[0], 2);
  row.sampling.repetition_penalty = 1.5;  // over the prompt as well: token 2
  EXPECT_EQ(run_sampler({row}).token_ids[0], 1);
  row.sampling.repetition_penalty = 1.0;
  row.token_ids = {0, 2, 2};
  row.sampling.presence_penalty = 0.0;
  row.sampling.frequency_penalty = 0.04;  // once would not do
  EXPECT_EQ(run_sampler({row}).token_ids[0], 2);
  row.sampling.frequency_penalty = 0.06;
  EXPECT_EQ(run_sampler({row}).token_ids[0], 1);
}

TEST_P(Task4_3_Sampler, LogProbabilitiesAreThoseOfTheRawLogits) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 30; ++round) {
    const int64_t vocab = random.integer(2, 300);
    std::vector<Row> rows;
    for (int r = 0; r < 70; ++r) rows.push_back(random_row(random, vocab));
    const Answer answer = run_sampler(rows);
    for (size_t r = 0; r < rows.size(); ++r) {
      const int64_t k = rows[r].sampling.logprobs.value_or(-1);
      const PositionLogprobs& position = answer.logprobs[r];
      if (k < 0) {
        EXPECT_TRUE(position.top.empty());
        continue;
      }
      double sum = 0;
      for (float x : rows[r].logits) sum += std::exp(static_cast<double>(x));
      auto expected = [&](int32_t token) {
        return rows[r].logits[static_cast<size_t>(token)] - std::log(sum);
      };
      EXPECT_EQ(position.chosen.token_id, answer.token_ids[r]);
      EXPECT_NEAR(position.chosen.logprob, expected(position.chosen.token_id), 1e-5);
      std::vector<int32_t> order(static_cast<size_t>(vocab));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return rows[r].logits[static_cast<size_t>(a)] > rows[r].logits[static_cast<size_t>(b)];
      });
      ASSERT_EQ(static_cast<int64_t>(position.top.size()), std::min(k, vocab));
      for (size_t i = 0; i < position.top.size(); ++i) {
        EXPECT_EQ(position.top[i].token_id, order[i]);
        EXPECT_NEAR(position.top[i].logprob, expected(order[i]), 1e-5);
      }
    }
  }
}

TEST_P(Task4_3_Sampler, DrawsFollowTheDistribution) {
  const std::vector<double> p{0.5, 0.25, 0.125, 0.0625, 0.0625};
  constexpr int kDraws = 64000;
  std::vector<int64_t> counts(p.size());
  Row row;
  for (double value : p) row.logits.push_back(static_cast<float>(std::log(value)));
  // Seeds, then places in the output: both must be independent draws.
  for (int part = 0; part < 2; ++part) {
    std::vector<Row> rows(kDraws / 2, row);
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].sampling.seed = part == 0 ? r : 12345;
      if (part == 1) rows[r].num_prompt_tokens = 1 - static_cast<int64_t>(r);  // r tokens of output
    }
    for (int32_t token : run_sampler(rows).token_ids) ++counts[static_cast<size_t>(token)];
  }
  double chi_square = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * kDraws;
    chi_square +=
        (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) / expected;
  }
  EXPECT_LT(chi_square, 23.5);  // four degrees of freedom: one in ten thousand lies above
}

TEST_P(Task4_3_Sampler, ScratchMemoryDoesNotGrowWithTheBatch) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t vocab = on_cpu() ? 2000 : 200;
  auto peak = [&](int64_t count) {
    std::vector<Row> rows;
    for (int64_t r = 0; r < count; ++r) {
      rows.push_back(random_row(random, vocab));
      rows.back().sampling.logprobs = 5;
    }
    return run_sampler(rows).peak_bytes;
  };
  const int64_t chunk = on_cpu() ? Sampler::kRows : Sampler::kDeviceRows;
  const int64_t once = peak(chunk);
  EXPECT_LE(peak(5 * chunk), once + once / 4);
}

// A processor comes before the penalties and sees every row once, whatever the chunks.
class BanEvenTokens final : public LogitsProcessor {
 public:
  explicit BanEvenTokens(bool by_mask) : by_mask_(by_mask) {}
  bool needs_tokens(const SamplingParams&) const override { return false; }
  void edit(const BatchSequence&, LogitsEdits& edits) override {
    ++num_rows;
    if (by_mask_)
      edits.allow_only(std::vector<uint32_t>(2, 0xaaaaaaaau));
    else
      for (int32_t id = 0; id < 50; id += 2) edits.forbid(id);
  }
  int64_t num_rows = 0;

 private:
  bool by_mask_;
};

TEST_P(Task4_3_Sampler, LogitsProcessorsEditTheRowsButNotTheLogProbabilities) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::vector<Row> rows;
  for (int64_t r = 0; r < 2 * Sampler::kRows + 1; ++r) rows.push_back(random_row(random, 50));
  for (Row& row : rows) row.sampling.logprobs = 50;
  for (const bool by_mask : {false, true}) {
    const auto processor = std::make_shared<BanEvenTokens>(by_mask);
    const Answer answer = run_sampler(rows, processor);
    EXPECT_EQ(processor->num_rows, std::ssize(rows));
    for (int32_t token : answer.token_ids) EXPECT_EQ(token % 2, 1);
    for (const PositionLogprobs& position : answer.logprobs)
      for (const TokenLogprob& top : position.top) EXPECT_GT(top.logprob, -100.0f);
  }
}

}  // namespace
}  // namespace ladder
