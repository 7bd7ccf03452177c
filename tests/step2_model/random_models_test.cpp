// Task 2.4: models of random shape and kind against the reference model. The goldens hold the reference to
// transformers; here the engine is compared with itself on shapes that no golden file has.
#include <gtest/gtest.h>

#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"
#include "tests/step2_model/random_model.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using nlohmann::json;
using testing::close_to;
using testing::ModelSession;
using testing::Random;
using testing::random_config;
using testing::random_weights;
using testing::ReferenceModel;
using testing::TemporaryFolder;
using testing::to_double;
using testing::write_file;
using testing::write_safetensors;

// A checkpoint's config and the tensors that go with it.
using Config = json (*)(Random&);
using Weights = testing::NamedTensors (*)(Random&, const DecoderSpec&);

void expect_equal_to_the_reference(Config make_config, Weights make_weights, int rounds) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int threads = num_threads();
  set_num_threads(1);
  for (int round = 0; round < rounds; ++round) {
    TemporaryFolder folder;
    const json config = make_config(random);
    SCOPED_TRACE(config.dump());
    write_file(folder / "config.json", config.dump());
    const DecoderSpec spec = load_decoder_spec(folder.path());
    write_safetensors(folder / "model.safetensors", make_weights(random, spec));

    // A text whose experts are chosen by more than rounding: else two answers are right.
    std::vector<int32_t> ids(static_cast<size_t>(random.integer(1, 40)));
    std::vector<double> expected;
    double narrowest_choice = 0;
    for (int drawn = 0; narrowest_choice < 1e-4; ++drawn) {
      ASSERT_LT(drawn, 1000);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, spec.vocab_size - 1));
      const ReferenceModel reference(folder.path());
      expected.clear();
      for (const auto& row : reference.logits(ids)) expected.insert(expected.end(), row.begin(), row.end());
      narrowest_choice = reference.narrowest_choice();
    }

    auto check = [&](const OpContext& ctx) {
      const auto model = load_model(ctx, folder.path(), spec, {});
      ModelSession session(*model, ctx, /*block_size=*/3);
      const Tensor logits = session.step({{0, ids}});
      const bool draws_tokens = tp_group(ctx).rank() == 0;
      ASSERT_EQ(logits.defined(), draws_tokens);
      if (!draws_tokens) return;
      EXPECT_TRUE(close_to(to_double(logits), expected, spec.vocab_size, 1e-4));
    };
    check({});
    const ExpertsSpec& experts = spec.experts;
    const bool no_dense_layer = spec.num_expert_layers() == spec.num_layers;
    if (spec.num_heads % 2 == 0 && (no_dense_layer || spec.intermediate_size % 2 == 0) &&
        (experts.intermediate_size % 2 == 0 || spec.num_expert_layers() == 0) &&
        (experts.shared_intermediate_size % 2 == 0 || spec.num_expert_layers() == 0) &&
        (spec.num_kv_heads == 1 || spec.num_kv_heads % 2 == 0)) {
      SCOPED_TRACE("2 ranks");
      run_ranks(2, [&](int, const ParallelContext& parallel) {
        OpContext ctx;
        ctx.parallel = &parallel;
        check(ctx);
      });
    }
    if (::testing::Test::HasFailure()) break;
  }
  set_num_threads(threads);
}

TEST(Task2_4_RandomModels, EqualTheReference) {
  expect_equal_to_the_reference([](Random& random) { return random_config(random); }, random_weights, 40);
}

TEST(Task2_7_RandomModels, EqualTheReference) {
  expect_equal_to_the_reference([](Random& random) { return random_config(random, true); }, random_weights,
                                30);
}

TEST(Task2_4_RandomModels, OptEqualsTheReference) {
  expect_equal_to_the_reference(testing::random_opt_config, testing::random_opt_weights, 20);
}

}  // namespace
}  // namespace ladder
