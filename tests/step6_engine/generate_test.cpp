// Task 6.1: generate() that ends early, and generate() beside other requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/fake_engine.h"

namespace ladder {
namespace {

using testing::expect_books_closed;
using testing::expected_tokens;
using testing::make_engine;
using testing::token_request;

class Task6_1_Generate : public ::testing::TestWithParam<int> {};  // steps in flight

TEST_P(Task6_1_Generate, AnAbortOfItsOwnRequestInAStepEndsThatRequest) {
  Engine engine = make_engine(GetParam());
  int num_steps = 0;
  const std::vector<RequestOutput> outputs = engine.generate(
      {token_request({1, 2}, 40, "stays"), token_request({3, 4}, 40, "goes")}, [&](const StepResult&) {
        if (++num_steps == 5) engine.abort("goes");
        ASSERT_LT(num_steps, 100) << "it spins";
      });
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].completions[0].token_ids, expected_tokens({1, 2}, 40));
  EXPECT_EQ(outputs[1].completions[0].token_ids, expected_tokens({3, 4}, 5));
  EXPECT_EQ(outputs[1].completions[0].finish_reason, FinishReason::abort);
  EXPECT_FALSE(engine.has_unfinished());
  expect_books_closed(engine.scheduler());
}

TEST_P(Task6_1_Generate, AllOfItsRequestsMayBeAborted) {
  Engine engine = make_engine(GetParam());
  const std::vector<RequestOutput> outputs = engine.generate(
      {token_request({1, 2}, 40, "a"), token_request({3, 4}, 40, "b")}, [&](const StepResult&) {
        engine.abort("a");
        engine.abort("b");
      });
  for (const RequestOutput& output : outputs)
    EXPECT_EQ(output.completions.at(0).finish_reason, FinishReason::abort);
  EXPECT_FALSE(engine.has_unfinished());
  expect_books_closed(engine.scheduler());
}

TEST_P(Task6_1_Generate, AThrowInAStepLeavesNoneOfItsRequestsBehind) {
  Engine engine = make_engine(GetParam());
  int num_steps = 0;
  const auto throws_late = [&](const StepResult&) {
    if (++num_steps == 4) throw std::runtime_error("the terminal is gone");
  };
  EXPECT_THROW(engine.generate({token_request({1, 2}, 40), token_request({3, 4}, 2)}, throws_late),
               std::runtime_error);
  EXPECT_FALSE(engine.dead()) << "it was not the engine's error";
  EXPECT_FALSE(engine.has_unfinished());
  expect_books_closed(engine.scheduler());
  EXPECT_EQ(engine.generate({token_request({1, 2}, 4)})[0].completions[0].token_ids,
            expected_tokens({1, 2}, 4));
}

TEST_P(Task6_1_Generate, ABadRequestLeavesNoneOfItsRequestsBehind) {
  Engine engine = make_engine(GetParam());
  EXPECT_THROW(engine.generate({token_request({1, 2}, 4, "a"), token_request({3}, 4, "a")}), Error);
  EXPECT_FALSE(engine.has_unfinished());
  EXPECT_EQ(engine.metrics().num_steps, 0);
  expect_books_closed(engine.scheduler());
}

// An output of each request that was added before, once, with all its updates, however generate() ended.
TEST_P(Task6_1_Generate, OutputsOfRequestsAddedBeforeAreHandedOutByTheNextStep) {
  for (const bool throws : {false, true}) {
    SCOPED_TRACE(throws);
    Engine engine = make_engine(GetParam());
    engine.add_request(token_request({1, 2, 3}, 3, "ends inside"));
    engine.add_request(token_request({2, 2, 2}, 30, "aborted inside"));
    engine.add_request(token_request({4, 5, 6}, 40, "ends later"));
    int num_steps = 0;
    const auto on_step = [&](const StepResult&) {
      if (++num_steps == 6) engine.abort("aborted inside");
      if (num_steps == 8 && throws) throw std::runtime_error("enough");
    };
    try {
      engine.generate({token_request({7, 8, 9}, 12, "own")}, on_step);
      EXPECT_FALSE(throws);
    } catch (const std::runtime_error&) {
      EXPECT_TRUE(throws);
    }

    std::map<RequestId, std::vector<int32_t>> updates;
    std::map<RequestId, RequestOutput> finished;
    while (engine.has_unfinished()) {
      StepResult result = engine.step();
      for (const CompletionUpdate& update : result.updates) {
        std::vector<int32_t>& tokens = updates[update.request_id];
        tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
      }
      for (RequestOutput& output : result.finished)
        EXPECT_TRUE(finished.emplace(output.request_id, std::move(output)).second) << "handed out twice";
    }
    ASSERT_EQ(finished.size(), 3u);
    const auto tokens_of = [&](const RequestId& id) { return finished.at(id).completions[0].token_ids; };
    EXPECT_EQ(tokens_of("ends inside"), expected_tokens({1, 2, 3}, 3));
    EXPECT_EQ(tokens_of("aborted inside"), expected_tokens({2, 2, 2}, 6));
    EXPECT_EQ(finished.at("aborted inside").completions[0].finish_reason, FinishReason::abort);
    EXPECT_EQ(tokens_of("ends later"), expected_tokens({4, 5, 6}, 40));
    for (const auto& [id, output] : finished) EXPECT_EQ(updates[id], output.completions[0].token_ids) << id;
    expect_books_closed(engine.scheduler());
  }
}

TEST_P(Task6_1_Generate, AStepInsideOfOnStepIsAnErrorAndNotALoopWithoutEnd) {
  Engine engine = make_engine(GetParam());
  const auto steps = [&](const StepResult&) {
    while (engine.has_unfinished()) engine.step();
  };
  EXPECT_THROW(engine.generate({token_request({1, 2}, 10)}, steps), Error);
  EXPECT_FALSE(engine.has_unfinished());
}

INSTANTIATE_TEST_SUITE_P(Depth, Task6_1_Generate, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace ladder
