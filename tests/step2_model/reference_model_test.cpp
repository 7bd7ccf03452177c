// The reference model of the tests against transformers: the two ends that the engine stands between.
#include "tests/support/reference_model.h"

#include <gtest/gtest.h>

#include "tests/support/golden_checkpoint.h"
#include "tests/support/source_folder.h"

namespace ladder {
namespace {

using testing::close_to;
using testing::golden_names;
using testing::GoldenCheckpoint;
using testing::load_golden;
using testing::ReferenceModel;

const std::filesystem::path kGoldens = testing::source_folder() / "tests/goldens";

class Task2_4_ReferenceModel : public ::testing::TestWithParam<std::string> {};

TEST_P(Task2_4_ReferenceModel, AgreesWithTransformers) {
  const GoldenCheckpoint golden = load_golden(kGoldens / GetParam());
  const ReferenceModel model(golden.directory, golden.max_model_len);
  for (const auto& prompt : golden.prompts) {
    const auto logits = model.logits(prompt.token_ids);
    for (size_t i = 0; i < prompt.logit_positions.size(); ++i)
      EXPECT_TRUE(close_to(logits[static_cast<size_t>(prompt.logit_positions[i])], prompt.logits[i],
                           model.spec().vocab_size, 2e-5))
          << prompt.token_ids.size() << " tokens, position " << prompt.logit_positions[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Task2_4_ReferenceModel, ::testing::ValuesIn(golden_names(kGoldens)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ladder
