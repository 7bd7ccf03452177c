#include "step8_advanced/quantization/quantizer/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step8_advanced/quantization/quantizer/safetensors_writer.h"
#include "tests/support/reference_model.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::filesystem::path golden() {
  return testing::source_folder() / "tests" / "goldens" / "qwen3_tied";  // a vocabulary of 131
}

std::unique_ptr<Model> load(const std::filesystem::path& folder) {
  return load_model(OpContext{}, folder, load_decoder_spec(folder), ModelOptions{});
}

std::vector<TokenIds> random_texts(int count, int longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenIds> texts;
  for (int i = 0; i < count; ++i) {
    TokenIds ids(2 + random() % (longest - 1));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 131);
    texts.push_back(ids);
  }
  return texts;
}

double sum_of(std::span<const ClusterSums> clusters, double ClusterSums::*member) {
  double sum = 0;
  for (const ClusterSums& cluster : clusters) sum += cluster.*member;
  return sum;
}

// The golden model with every element of its last norm scaled.
void write_other_model(const TemporaryFolder& folder, float factor) {
  std::filesystem::copy_file(golden() / "config.json", folder / "config.json");
  const Checkpoint checkpoint(golden());
  std::vector<NamedTensor> tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    Tensor tensor = entry.tensor();
    if (entry.info->name == "model.norm.weight") {
      tensor = tensor.to(DType::f32);
      for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] *= factor;
    }
    tensors.push_back({entry.info->name, tensor});
  }
  write_checkpoint(folder.path(), tensors);
}

TEST(Task8_5_Windows, OfADocumentFollowOneAnother) {
  const std::vector<TokenIds> documents = {{1, 2, 3, 4, 5, 6, 7}, {8}, {}, {9, 10, 11}};
  const std::vector<TextWindow> windows = cut_windows(documents, 3);
  ASSERT_EQ(windows.size(), 3u);  // 7 and 8 alone predict nothing
  EXPECT_EQ(windows[0].ids, (TokenIds{1, 2, 3}));
  EXPECT_EQ(windows[1].ids, (TokenIds{4, 5, 6}));
  EXPECT_EQ(windows[2].ids, (TokenIds{9, 10, 11}));
  EXPECT_EQ(windows[1].cluster, 0);
  EXPECT_EQ(windows[2].cluster, 3);
}

TEST(Task8_5_Windows, OfOneDocumentAreClusters) {
  const std::vector<TokenIds> one = {{1, 2, 3, 4, 5}};
  const std::vector<TextWindow> windows = cut_windows(one, 2);
  ASSERT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows[1].cluster, 1);
  EXPECT_THROW(cut_windows(one, 1), Error);
}

TEST(Task8_5_Texts, LinesAreDocumentsAndJoinedOneText) {
  TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(testing::source_folder() / "models" / "tinyworld");
  testing::write_file(folder / "a.jsonl",
                      "{\"text\": \"One town.\"}\n\n{\"prompt\": \"Two.\", \"answer\": 3}\n");
  testing::write_file(folder / "a.txt", "One town.\n\nTwo.");
  const auto apart = read_texts(folder / "a.jsonl", &tokenizer, 3072, false);
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_EQ(tokenizer.decode(apart[1]), "Two.");
  const auto joined = read_texts(folder / "a.jsonl", &tokenizer, 3072, true);
  EXPECT_EQ(joined, read_texts(folder / "a.txt", &tokenizer, 3072, false));
  EXPECT_EQ(read_texts(folder / "a.jsonl", &tokenizer, 3072, false, 1).size(), 1u);
}

TEST(Task8_5_Texts, MistakesAreNamedWithTheirLine) {
  TemporaryFolder folder;
  const auto expect = [&](const std::string& content, const std::string& word) {
    testing::write_file(folder / "a.jsonl", content);
    try {
      read_texts(folder / "a.jsonl", nullptr, 131, false);
      ADD_FAILURE() << content;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(word));
    }
  };
  expect("{\"prompt_token_ids\": [1]}\n{\"words\": 3}\n", "a.jsonl:2");
  expect("{\"prompt_token_ids\": [1, 131]}", "131");
  expect("{\"prompt_token_ids\": 7}", "prompt_token_ids");
  expect("{\"text\": \"a\"}", "tokenizer");
  expect("", "nothing in it");
  expect("[1]", "a.jsonl:1");
  testing::write_file(folder / "latin.txt", "caf\xe9");
  try {
    read_texts(folder / "latin.txt", nullptr, 131, false);
    ADD_FAILURE() << "Latin-1";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(HasSubstr("latin.txt"), HasSubstr("UTF-8"), HasSubstr("at 3")));
  }
}

TEST(Task8_5_Eval, TheErrorIsTakenBetweenClusters) {
  // Means 1 and 4 of 2 and 1 tokens: the mean is 2, the clusters are 2 and 2 off.
  const std::vector<ClusterSums> clusters = {{.cluster = 0, .tokens = 2, .nll = 2},
                                             {.cluster = 1, .tokens = 1, .nll = 4}};
  const auto nll = [](const ClusterSums& sums) { return sums.nll; };
  const Estimate two = estimate(clusters, nll);
  EXPECT_DOUBLE_EQ(two.mean, 2);
  EXPECT_DOUBLE_EQ(two.standard_error, std::sqrt(2.0 / 1 * (4 + 4)) / 3);
  const Estimate one = estimate(std::span(clusters).first(1), nll);
  EXPECT_DOUBLE_EQ(one.mean, 1);
  EXPECT_TRUE(std::isnan(one.standard_error));
}

TEST(Task8_5_Eval, ARowsScoresAreThoseOfItsProbabilities) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 4);
  for (const float shift : {0.0f, 300.0f, -300.0f}) {  // e^300 is beyond float
    std::vector<float> logits(57), base(57);
    for (float& logit : logits) logit = normal(random) + shift;
    for (float& logit : base) logit = normal(random) - shift;
    const auto log_softmax = [](const std::vector<float>& row) {
      const double largest = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const float logit : row) sum += std::exp(logit - largest);
      std::vector<double> result;
      for (const float logit : row) result.push_back(logit - largest - std::log(sum));
      return result;
    };
    const std::vector<double> p = log_softmax(logits), q = log_softmax(base);
    double kl = 0;
    for (size_t i = 0; i < p.size(); ++i) kl += std::exp(q[i]) * (q[i] - p[i]);
    const RowScore score = score_row(logits, base, 11);
    EXPECT_NEAR(score.nll, -p[11], 1e-5 * std::fabs(p[11]));
    EXPECT_NEAR(score.base_nll, -q[11], 1e-5 * std::fabs(q[11]));
    EXPECT_NEAR(score.kl, kl, 1e-5 * kl);
    EXPECT_EQ(score.same_top, std::max_element(p.begin(), p.end()) - p.begin() ==
                                  std::max_element(q.begin(), q.end()) - q.begin());
    const RowScore itself = score_row(logits, logits, 11);
    EXPECT_EQ(itself.kl, 0);
    EXPECT_TRUE(itself.same_top);
    EXPECT_EQ(score_row(logits, {}, 11).nll, score.nll);
  }
}

// Every token but the first of a window, given those before it in the window.
TEST(Task8_5_Eval, NllIsTheReferencesOfEachWindow) {
  const std::vector<TokenIds> texts = random_texts(3, 40, 1);
  const std::vector<TextWindow> windows = cut_windows(texts, 17);
  const std::vector<ClusterSums> clusters = evaluate({}, *load(golden()), nullptr, windows, {});
  const testing::ReferenceModel reference(golden());
  double expected = 0;
  int64_t tokens = 0;
  for (const TextWindow& window : windows) {
    const auto logits = reference.logits(window.ids);
    for (size_t i = 0; i + 1 < window.ids.size(); ++i, ++tokens) {
      double sum = 0;
      for (const double logit : logits[i]) sum += std::exp(logit);
      expected += std::log(sum) - logits[i][static_cast<size_t>(window.ids[i + 1])];
    }
  }
  EXPECT_EQ(clusters.size(), texts.size());
  EXPECT_NEAR(sum_of(clusters, &ClusterSums::nll), expected, 1e-4 * expected);
  int64_t counted = 0;
  for (const ClusterSums& sums : clusters) counted += sums.tokens;
  EXPECT_EQ(counted, tokens);
}

TEST(Task8_5_Eval, AModelIsNoDistanceFromItself) {
  const auto model = load(golden()), base = load(golden());
  // More rows than the head takes at once.
  const std::vector<TextWindow> windows = cut_windows(random_texts(2, 200, 2), 150);
  for (const ClusterSums& sums : evaluate({}, *model, base.get(), windows, {})) {
    EXPECT_EQ(sums.kl, 0);
    EXPECT_EQ(sums.same_top, sums.tokens);
    EXPECT_EQ(sums.nll, sums.base_nll);
  }
}

TEST(Task8_5_Eval, AModelWithoutNumbersHasNoPerplexity) {
  TemporaryFolder folder;
  write_other_model(folder, std::numeric_limits<float>::quiet_NaN());
  const auto broken = load(folder.path()), model = load(golden());
  const std::vector<TextWindow> windows = cut_windows(random_texts(2, 20, 4), 16);
  const auto refusal = [&](Model& one, Model* base) -> std::string {
    try {
      evaluate({}, one, base, windows, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(refusal(*broken, nullptr), HasSubstr("the model's logits hold NaN"));
  EXPECT_THAT(refusal(*broken, model.get()), HasSubstr("the model's logits hold NaN"));
  EXPECT_THAT(refusal(*model, broken.get()), HasSubstr("the base's logits hold NaN"));
}

TEST(Task8_5_Eval, ADistanceIsThatOfTheBaseToTheModel) {
  TemporaryFolder folder;
  write_other_model(folder, 1.5f);
  const std::vector<TextWindow> windows = cut_windows(random_texts(2, 60, 3), 50);
  const auto clusters = evaluate({}, *load(folder.path()), load(golden()).get(), windows, {});
  const testing::ReferenceModel reference(golden()), other(folder.path());
  double kl = 0, base_nll = 0;
  for (const TextWindow& window : windows) {
    const auto base_logits = reference.logits(window.ids), logits = other.logits(window.ids);
    for (size_t row = 0; row + 1 < window.ids.size(); ++row) {
      double base_sum = 0, sum = 0;
      for (size_t i = 0; i < logits[row].size(); ++i) {
        base_sum += std::exp(base_logits[row][i]);
        sum += std::exp(logits[row][i]);
      }
      for (size_t i = 0; i < logits[row].size(); ++i)
        kl += std::exp(base_logits[row][i]) / base_sum *
              (base_logits[row][i] - std::log(base_sum) - logits[row][i] + std::log(sum));
      base_nll += std::log(base_sum) - base_logits[row][static_cast<size_t>(window.ids[row + 1])];
    }
  }
  EXPECT_GT(kl, 0.01);
  EXPECT_NEAR(sum_of(clusters, &ClusterSums::kl), kl, 1e-3 * kl);
  EXPECT_NEAR(sum_of(clusters, &ClusterSums::base_nll), base_nll, 1e-4 * base_nll);
}

}  // namespace
}  // namespace ladder
