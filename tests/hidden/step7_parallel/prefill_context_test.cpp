// Task 7.12: shares of random steps on any number of ranks; engines on random grids, with random prompts and steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "step7_parallel/context/prefill_rows.h"
#include "tests/step7_parallel/engine_on_grid.h"

namespace ladder {
namespace {

TEST(Hidden7_12_Rows, AreEachOnOneRankAndAboutAsManyOnEach) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    const int ranks = static_cast<int>(random.integer(1, 9));
    const int64_t longest = random.one_of<int64_t>({1, 3, 2 * ranks + 1, 1000});
    std::vector<int32_t> starts{0};
    for (int64_t count = random.integer(1, 60); count > 0; --count)
      starts.push_back(starts.back() + static_cast<int32_t>(random.integer(0, longest)));
    const auto shares = share_out_rows(starts, ranks);
    ASSERT_EQ(std::ssize(shares), ranks);
    std::vector<int> holders(static_cast<size_t>(starts.back()), 0);
    int64_t least = starts.back(), most = 0;
    for (const auto& spans : shares) {
      for (const auto& [sequence, tokens] : spans)
        for (int64_t p = tokens.begin; p < tokens.end; ++p)
          ++holders.at(static_cast<size_t>(starts[static_cast<size_t>(sequence)] + p));
      least = std::min(least, num_rows(spans));
      most = std::max(most, num_rows(spans));
    }
    ASSERT_EQ(std::count(holders.begin(), holders.end(), 1), starts.back());
    ASSERT_LE(most - least, 2) << ranks << " ranks, " << ::testing::PrintToString(starts);
  }
}

TEST(Hidden7_12_Engine, AnswersWhatOneRankAnswers) {
  testing::Random random(testing::fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3; ++round) {
    EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 96);
    options.runner.batch.block_size = random.one_of<int64_t>({4, 16});
    options.runner.batch.max_num_batched_tokens = random.integer(7, 60);
    std::vector<Request> requests;
    const std::vector<int32_t> common(static_cast<size_t>(random.integer(1, 40)), 700);
    for (int i = 0; i < 12; ++i) {
      Request& request = requests.emplace_back();
      if (i % 2 == 0) request.prompt_token_ids = common;
      for (int64_t more = random.integer(1, 40); more > 0; --more)
        request.prompt_token_ids.push_back(static_cast<int32_t>(random.integer(300, 2000)));
      request.sampling.temperature = 0.0;
      request.sampling.max_tokens = random.integer(1, 10);
      request.sampling.ignore_eos = true;
      request.sampling.logprobs = 2;
    }
    const testing::Grid grid{1, static_cast<int>(random.integer(1, 2)),
                             static_cast<int>(random.integer(2, 5))};
    const auto expected = testing::engine_with(options)->generate(requests);
    const auto outputs = testing::engine_with(testing::on_grid(options, grid))->generate(requests);
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_TRUE(testing::answers_as_one_rank(
          expected[i], outputs[i], grid,
          fmt::format("pipeline {} x context {}, request {}", grid.pp, grid.cp, i)));
  }
}

}  // namespace
}  // namespace ladder
