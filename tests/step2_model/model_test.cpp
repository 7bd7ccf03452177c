// Task 2.4: the decoder against transformers, alone, chunked, batched, sharded and in half precision.
#include "step2_model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using testing::bitwise_equal;
using testing::close_to;
using testing::golden_names;
using testing::GoldenCheckpoint;
using testing::GoldenPrompt;
using testing::load_golden;
using testing::ModelSession;
using testing::Random;
using testing::to_double;

using Chunk = ModelSession::Chunk;

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens";
constexpr double kOracleBound = 1e-4;  // logits, relative, in f32
constexpr double kNearTie = 1e-4;      // two best logits of the oracle that rounding may swap

std::unique_ptr<Model> load(const OpContext& ctx, const GoldenCheckpoint& golden, DType dtype = DType::f32) {
  ModelOptions options;
  options.dtype = dtype;
  options.max_model_len = golden.max_model_len;
  return load_model(ctx, golden.directory, load_decoder_spec(golden.directory), options);
}

std::vector<int32_t> slice(const std::vector<int32_t>& ids, size_t begin, size_t count) {
  return {ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(begin + count)};
}

int32_t best_token(const Tensor& logits, int64_t row) {
  const float* values = logits.data<float>() + row * logits.dim(1);
  return static_cast<int32_t>(std::max_element(values, values + logits.dim(1)) - values);
}

// The prompt and the oracle's continuation but for its last token: everything the model is ever given.
std::vector<int32_t> teacher_forced(const GoldenPrompt& prompt) {
  std::vector<int32_t> ids = prompt.token_ids;
  ids.insert(ids.end(), prompt.greedy_token_ids.begin(), prompt.greedy_token_ids.end() - 1);
  return ids;
}

void expect_golden_logits(const GoldenPrompt& prompt, const Tensor& logits, double bound) {
  for (size_t i = 0; i < prompt.logit_positions.size(); ++i)
    EXPECT_TRUE(close_to(to_double(logits.select(0, prompt.logit_positions[i])), prompt.logits[i],
                         logits.dim(1), bound))
        << prompt.token_ids.size() << " tokens, position " << prompt.logit_positions[i];
}

class Task2_4_Decoder : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    golden_ = load_golden(kGoldens / GetParam());
    set_num_threads(1);  // these models are too small to be worth a second one
  }
  void TearDown() override { set_num_threads(threads_); }
  const int threads_ = num_threads();
  GoldenCheckpoint golden_;
};

TEST_P(Task2_4_Decoder, LogitsEqualTransformers) {
  const auto model = load({}, golden_);
  const std::vector<int32_t>& eos = model->spec().eos_token_ids;
  EXPECT_EQ(std::set<int32_t>(eos.begin(), eos.end()),
            std::set<int32_t>(golden_.eos_token_ids.begin(), golden_.eos_token_ids.end()));
  for (const GoldenPrompt& prompt : golden_.prompts) {
    ModelSession session(*model, {});
    expect_golden_logits(prompt, session.step({{0, prompt.token_ids}}), kOracleBound);
  }
}

TEST_P(Task2_4_Decoder, GreedyTokensEqualTransformers) {
  const auto model = load({}, golden_);
  for (const GoldenPrompt& prompt : golden_.prompts) {
    ModelSession session(*model, {});
    const Tensor logits = session.step({{0, prompt.token_ids}});
    std::vector<int32_t> tokens = {best_token(logits, logits.dim(0) - 1)};
    while (tokens.size() < prompt.greedy_token_ids.size())
      tokens.push_back(best_token(session.step({{0, {tokens.back()}}}), 0));
    EXPECT_EQ(tokens, prompt.greedy_token_ids) << prompt.token_ids.size() << " tokens";
  }
}

TEST_P(Task2_4_Decoder, ChunksChangeNoBit) {
  const auto model = load({}, golden_);
  for (const GoldenPrompt& prompt : golden_.prompts) {
    const std::vector<int32_t> ids = teacher_forced(prompt);
    ModelSession whole(*model, {});
    const Tensor reference = whole.step({{0, ids}});
    for (const size_t chunk : {1, 3, 7}) {
      ModelSession session(*model, {}, /*block_size=*/static_cast<int64_t>(chunk) + 1, 160, /*seed=*/chunk);
      for (size_t begin = 0; begin < ids.size(); begin += chunk) {
        const size_t count = std::min(chunk, ids.size() - begin);
        const Tensor part = session.step({{0, slice(ids, begin, count)}});
        ASSERT_TRUE(bitwise_equal(
            part, reference.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(count))))
            << "chunks of " << chunk << ", at " << begin;
      }
    }
  }
}

TEST_P(Task2_4_Decoder, CompanyChangesNoBit) {
  const auto model = load({}, golden_);
  const Random random;
  SCOPED_TRACE(random.describe());
  std::mt19937_64 engine(random.seed());
  std::vector<std::vector<int32_t>> ids;
  std::vector<Tensor> alone;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    ids.push_back(teacher_forced(prompt));
    ModelSession session(*model, {});
    alone.push_back(session.step({{0, ids.back()}}));
  }
  // All sequences together, in steps of random sequences in random order with random numbers of tokens.
  ModelSession session(*model, {}, 4, 400);
  std::vector<size_t> done(ids.size());
  for (bool more = true; more;) {
    std::vector<int> order(ids.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), engine);
    std::vector<Chunk> chunks;
    more = false;
    for (const int s : order) {
      const auto i = static_cast<size_t>(s);
      more = more || done[i] < ids[i].size();
      const size_t count = std::min<size_t>(engine() % 12, ids[i].size() - done[i]);
      if (count > 0) chunks.push_back({s, slice(ids[i], done[i], count)});
    }
    if (chunks.empty()) continue;
    const Tensor logits = session.step(chunks);
    int64_t row = 0;
    for (const Chunk& chunk : chunks) {
      const auto i = static_cast<size_t>(chunk.sequence);
      const auto count = static_cast<int64_t>(chunk.token_ids.size());
      ASSERT_TRUE(bitwise_equal(logits.narrow(0, row, count),
                                alone[i].narrow(0, static_cast<int64_t>(done[i]), count)))
          << "sequence " << chunk.sequence << " at " << done[i];
      row += count;
      done[i] += static_cast<size_t>(count);
    }
  }
}

TEST_P(Task2_4_Decoder, ThreadsChangeNoBit) {
  const auto model = load({}, golden_);
  const std::vector<int32_t> ids = teacher_forced(golden_.prompts.back());
  ModelSession session(*model, {});
  const Tensor reference = session.step({{0, ids}});
  for (const int count : {2, 3}) {
    set_num_threads(count);
    ModelSession again(*model, {});
    EXPECT_TRUE(bitwise_equal(again.step({{0, ids}}), reference)) << count << " threads";
  }
}

TEST_P(Task2_4_Decoder, LayerRangesChangeNoBit) {
  const auto model = load({}, golden_);
  const int64_t layers = model->spec().num_layers;
  const std::vector<int32_t> ids = teacher_forced(golden_.prompts.back());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ModelOptions options;
    options.dtype = dtype;
    options.max_model_len = golden_.max_model_len;
    const auto whole = load_model({}, golden_.directory, model->spec(), options);
    options.layer_end = 1;
    const auto first = load_model({}, golden_.directory, model->spec(), options);
    options.layer_begin = 1;
    options.layer_end = layers;
    const auto second = load_model({}, golden_.directory, model->spec(), options);
    EXPECT_EQ(first->kv_cache_specs().size(), 1u);
    EXPECT_EQ(second->kv_cache_specs().size(), static_cast<size_t>(layers - 1));

    ModelSession all(*whole, {}), front(*first, {}), back(*second, {});
    const Tensor expected = all.forward({{0, ids}});
    const Tensor got = back.forward({{0, ids}}, front.forward({{0, ids}}));
    EXPECT_TRUE(bitwise_equal(got, expected)) << dtype_name(dtype);
  }
}

// The oracle's token is the best of the row, or so near to it that rounding may decide.
void expect_same_or_near_tie(const Tensor& logits, int64_t row, int32_t expected) {
  const int32_t token = best_token(logits, row);
  if (token == expected) return;
  const double gap = logits.at<float>({row, token}) - logits.at<float>({row, expected});
  EXPECT_LE(gap, kNearTie) << "token " << token << " instead of " << expected;
  std::printf("near tie: token %d instead of %d, %.2g apart\n", token, expected, gap);
}

TEST_P(Task2_4_Decoder, TensorParallelRanksAgree) {
  const DecoderSpec spec = load_decoder_spec(golden_.directory);
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const auto run_rank = [&](int rank, const ParallelContext& parallel) {
      OpContext ctx;
      ctx.parallel = &parallel;
      const auto model = load(ctx, golden_);
      EXPECT_EQ(model->kv_cache_specs()[0].num_kv_heads, std::max<int64_t>(spec.num_kv_heads / ranks, 1));
      for (const GoldenPrompt& prompt : golden_.prompts) {
        ModelSession session(*model, ctx);
        const Tensor logits = session.step({{0, teacher_forced(prompt)}});
        EXPECT_EQ(logits.defined(), rank == 0);  // where tokens are drawn
        if (rank != 0) continue;
        expect_golden_logits(prompt, logits, kOracleBound);
        for (size_t i = 0; i < prompt.greedy_token_ids.size(); ++i)
          expect_same_or_near_tie(logits, static_cast<int64_t>(prompt.token_ids.size() + i) - 1,
                                  prompt.greedy_token_ids[i]);
      }
    };
    const bool dense_layers = spec.num_expert_layers() < spec.num_layers;
    const bool divides =
        spec.num_heads % ranks == 0 && (!dense_layers || spec.intermediate_size % ranks == 0) &&
        spec.experts.intermediate_size % ranks == 0 && spec.experts.shared_intermediate_size % ranks == 0 &&
        (spec.num_kv_heads % ranks == 0 || ranks % spec.num_kv_heads == 0);
    if (divides)
      run_ranks(ranks, run_rank);
    else
      EXPECT_THROW(run_ranks(ranks, run_rank), Error);
  }
}

TEST_P(Task2_4_Decoder, HalfPrecisionStaysNear) {
  // These weights make attention peaked and activations large, so rounding shows far more than in a trained
  // model: the bounds only say that nothing is lost or misplaced.
  struct Case {
    DType dtype;
    double bound;
  };
  for (const Case& one : {Case{DType::f16, 0.015}, Case{DType::bf16, 0.1}}) {
    const auto model = load({}, golden_, one.dtype);
    EXPECT_EQ(model->kv_cache_specs()[0].dtype, one.dtype);
    std::vector<double> errors;
    for (const GoldenPrompt& prompt : golden_.prompts) {
      ModelSession session(*model, {});
      const Tensor logits = session.step({{0, prompt.token_ids}});
      for (size_t i = 0; i < prompt.logit_positions.size(); ++i) {
        const auto got = to_double(logits.select(0, prompt.logit_positions[i]));
        double error = 0, norm = 0;
        for (size_t k = 0; k < got.size(); ++k) {
          error += (got[k] - prompt.logits[i][k]) * (got[k] - prompt.logits[i][k]);
          norm += prompt.logits[i][k] * prompt.logits[i][k];
        }
        errors.push_back(std::sqrt(error / norm));
      }
    }
    std::sort(errors.begin(), errors.end());
    // Rounding sends some tokens to another expert, and then their logits are far away: of experts the median counts.
    const double error = testing::has_experts(golden_.directory) ? errors[errors.size() / 2] : errors.back();
    EXPECT_LE(error, one.bound) << dtype_name(one.dtype);
    RecordProperty(std::string(dtype_name(one.dtype)), std::to_string(error));
  }
}

TEST_P(Task2_4_Decoder, HoldsItsParametersOnce) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto model = load({}, golden_, dtype);
    const DecoderSpec& spec = model->spec();
    EXPECT_EQ(model->weight_bytes(), spec.num_parameters() * dtype_size(dtype) +
                                         model->max_model_len() * spec.head_dim * dtype_size(DType::f32));
  }
}

// There is no row for a position that the model has not learned.
TEST(Task2_4_LearnedPositions, TextsLongerThanTheTableAreRefused) {
  const GoldenCheckpoint golden = load_golden(kGoldens / "opt_pre_norm");
  const DecoderSpec spec = load_decoder_spec(golden.directory);
  ModelOptions options;
  options.max_model_len = spec.max_position_embeddings;
  EXPECT_EQ(load_model({}, golden.directory, spec, options)->max_model_len(), spec.max_position_embeddings);
  ++options.max_model_len;
  try {
    load_model({}, golden.directory, spec, options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("the 64 positions that the model has learned"));
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task2_4_Decoder, ::testing::ValuesIn(golden_names(kGoldens, false)),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Task2_7_Experts, Task2_4_Decoder, ::testing::ValuesIn(golden_names(kGoldens, true)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ladder
