// Task 8.2: models that other programs quantized and wrote, against the logits of a reader in double precision
// (tools/goldens/make_quantized_checkpoints.py).
#include <gtest/gtest.h>

#include "step1_layers/distributed/local_group.h"
#include "step2_model/model.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/linear/quantized_makers.h"
#include "tests/support/golden_checkpoint.h"
#include "tests/support/model_session.h"
#include "tests/support/numerics.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens/quantized";

class Task8_2_Goldens : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Checkpoints, Task8_2_Goldens, ::testing::ValuesIn(testing::golden_names(kGoldens)),
                         [](const auto& info) { return info.param; });

void expect_logits(const OpContext& ctx, const testing::GoldenCheckpoint& golden) {
  ModelOptions options;
  options.makers.linear_method = make_quantized_linear_methods();
  const auto model = load_model(ctx, golden.directory, load_decoder_spec(golden.directory), options);
  testing::ModelSession session(*model, ctx);
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const testing::GoldenPrompt& prompt = golden.prompts[i];
    const Tensor logits = session.step({{static_cast<int>(i), prompt.token_ids}});
    if (!logits.defined()) continue;  // not the first rank
    for (size_t j = 0; j < prompt.logit_positions.size(); ++j)
      EXPECT_TRUE(testing::close_to(testing::to_double(logits.narrow(0, prompt.logit_positions[j], 1)),
                                    prompt.logits[j], logits.dim(1), 1e-4))
          << "prompt " << i << ", position " << prompt.logit_positions[j];
  }
}

// On two ranks too, unless each of them rounds its own features by their own scale.
TEST_P(Task8_2_Goldens, GiveTheLogitsOfTheOracle) {
  const testing::GoldenCheckpoint golden = testing::load_golden(kGoldens / GetParam());
  expect_logits({}, golden);
  const QuantizationConfig config =
      QuantizationConfig::parse(load_decoder_spec(golden.directory).quantization_config, GetParam());
  for (const QuantizationGroup& group : config.groups())
    if (group.linear.scheme.input_activations && group.linear.scheme.input_activations->dynamic) return;
  run_ranks(2, [&](int, const ParallelContext& parallel) {
    OpContext ctx;
    ctx.parallel = &parallel;
    expect_logits(ctx, golden);
  });
}

}  // namespace
}  // namespace ladder
