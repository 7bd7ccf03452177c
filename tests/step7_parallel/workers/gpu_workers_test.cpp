// Worker processes with a GPU each answer what one rank answers: graphs, asynchronous steps and our own all-reduce on.
#include <gtest/gtest.h>

#include "tests/step7_parallel/workers/worker_program.h"

namespace ladder {
namespace {

using testing::engine_with;
using testing::Grid;

class GpuWorkers : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string reason;
    gpus_ = cuda_device_count(&reason);
    if (gpus_ < 2) GTEST_SKIP() << "two GPUs are needed and there are " << gpus_ << ": " << reason;
  }
  int gpus_ = 0;
};

// In f32 stages change no bit of what one GPU answers, and tensor ranks no token that is no near tie.
TEST_P(GpuWorkers, AnswerWhatOneRankAnswers) {
  const auto checkpoint = testing::load_golden(testing::golden_folder() / GetParam());
  const DecoderSpec spec = load_decoder_spec(checkpoint.directory);
  const std::vector<Request> requests = testing::greedy_requests(checkpoint);
  const EngineOptions one =
      testing::small_options(checkpoint.directory, DeviceType::cuda, checkpoint.max_model_len);
  const auto alone = engine_with(one)->generate(requests);
  for (const Grid grid :
       {Grid{2, 1}, Grid{1, 2}, Grid{4, 1}, Grid{1, 4}, Grid{2, 2}, Grid{2, 1, 2}, Grid{8, 1}}) {
    const int ranks = grid.tp * grid.pp * grid.cp;
    // A start takes seconds: of two ranks only where there are no more.
    if (ranks > gpus_ || (ranks == 2 && gpus_ > 2) || !testing::fits(spec, grid)) continue;
    const std::unique_ptr<Engine> engine = engine_with(testing::on_workers(testing::on_grid(one, grid)));
    for (const char* cache : {"cold", "warm"}) {
      const auto outputs = engine->generate(requests);
      for (size_t i = 0; i < outputs.size(); ++i)
        EXPECT_TRUE(testing::answers_as_one_rank(
            alone[i], outputs[i], grid,
            fmt::format("{}, tensor {} x pipeline {} x context {}, {} cache, prompt {}", checkpoint.name,
                        grid.tp, grid.pp, grid.cp, cache, i)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, GpuWorkers,
                         ::testing::ValuesIn(testing::golden_names(testing::golden_folder())),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ladder
