// Task 6.1: an engine whose executor or scheduler fails is dead, says why, and holds nothing.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/fake_engine.h"

namespace ladder {
namespace {

using testing::expect_books_closed;
using testing::expected_tokens;
using testing::fake_config;
using testing::FakeExecutor;
using testing::token_request;

// What `call` throws; empty: nothing.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

// A wrong answer is the scheduler's error.
class WrongAnswers final : public Executor {
 public:
  explicit WrongAnswers(int64_t right) : right_(right), inner_(testing::mixed) {}
  Ticket submit(const SchedulerOutput& step) override { return inner_.submit(step); }
  StepOutput collect(Ticket ticket) override {
    StepOutput output = inner_.collect(ticket);
    if (right_-- <= 0) output.sequences.back().id += 1000;
    return output;
  }

 private:
  int64_t right_;
  FakeExecutor inner_;
};

struct Failure {
  std::string call;
  int max_in_flight = 1;
};

class Task6_1_DeadEngine : public ::testing::TestWithParam<Failure> {
 protected:
  // The sixth step fails, and every one after it in another way.
  std::unique_ptr<Executor> make_executor() const {
    if (GetParam().call == "update") return std::make_unique<WrongAnswers>(5);
    return std::make_unique<FakeExecutor>(
        testing::mixed, GetParam().max_in_flight,
        [call = GetParam().call, num_failures = 0](std::string_view now, int64_t step) mutable {
          if (num_failures > 0) throw std::runtime_error("step " + std::to_string(step) + ": a consequence");
          if (now == call && step == 5 && ++num_failures > 0) throw std::runtime_error("the lamp went out");
        });
  }
  std::string first_error() const {
    return GetParam().call == "update" ? "" : "the lamp went out";  // the scheduler's own words are its own
  }
};

TEST_P(Task6_1_DeadEngine, SaysTheFirstErrorFromThenOnAndHoldsNothing) {
  Engine engine(make_executor(), fake_config(), nullptr);
  Request several = token_request({1, 2, 3, 4, 5, 6}, 40, "three");
  several.sampling.n = 3;
  engine.add_request(several);
  engine.add_request(token_request({7}, 2, "done"));
  engine.add_request(token_request({5, 4, 3}, 40, "one"));
  engine.add_request(token_request({5, 4, 3}, 40, "aborted"));
  std::map<RequestId, RequestOutput> outputs;
  std::string error;
  for (int i = 0; i < 20 && error.empty(); ++i)
    error = error_of([&] {
      if (i == 1) engine.abort("aborted");
      for (RequestOutput& output : engine.step().finished)
        outputs.emplace(output.request_id, std::move(output));
    });
  ASSERT_FALSE(error.empty()) << "no step failed";
  if (!first_error().empty()) {
    EXPECT_EQ(error, first_error());
  }
  EXPECT_TRUE(engine.dead());
  EXPECT_EQ(engine.error(), error);

  // Every request has its output, those that died with what they had.
  EXPECT_TRUE(engine.has_unfinished()) << "there are outputs to be taken";
  for (RequestOutput& output : engine.take_results().finished) {
    for (const CompletionOutput& completion : output.completions)
      if (completion.finish_reason == FinishReason::error) {
        EXPECT_EQ(completion.error, error);
      }
    EXPECT_TRUE(outputs.emplace(output.request_id, std::move(output)).second);
  }
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_EQ(outputs.at("done").completions[0].finish_reason, FinishReason::length);
  EXPECT_EQ(outputs.at("aborted").completions[0].finish_reason, FinishReason::abort);
  const auto num_tokens = std::ssize(outputs.at("one").completions[0].token_ids);
  EXPECT_GE(num_tokens, 1);
  EXPECT_EQ(outputs.at("one").completions[0].token_ids, expected_tokens({5, 4, 3}, num_tokens));
  EXPECT_EQ(outputs.at("one").completions[0].finish_reason, FinishReason::error);
  EXPECT_EQ(outputs.at("three").completions.size(), 3u);

  // From now on the same, and nothing grows.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { engine.step(); }), error);
    EXPECT_EQ(error_of([&] { engine.collect_step(); }), error);
    EXPECT_EQ(error_of([&] { engine.add_request(token_request({1}, 2)); }), error);
    EXPECT_EQ(error_of([&] { engine.generate({token_request({1}, 2)}); }), error);
    engine.abort("one");
  }
  EXPECT_FALSE(engine.has_unfinished());
  EXPECT_EQ(engine.num_steps_in_flight(), 0);
  expect_books_closed(engine.scheduler());
}

TEST_P(Task6_1_DeadEngine, GenerateThrowsTheErrorAndKeepsTheOthersOutputs) {
  Engine engine(make_executor(), fake_config(), nullptr);
  engine.add_request(token_request({5, 4, 3}, 40, "before"));
  const std::string error = error_of([&] { engine.generate({token_request({1, 2, 3}, 40, "own")}); });
  EXPECT_FALSE(error.empty());
  EXPECT_EQ(engine.error(), error);
  const StepResult rest = engine.take_results();
  ASSERT_EQ(rest.finished.size(), 1u);
  EXPECT_EQ(rest.finished[0].request_id, "before");
  EXPECT_EQ(rest.finished[0].completions[0].finish_reason, FinishReason::error);
  EXPECT_EQ(rest.finished[0].completions[0].error, error);
  for (const CompletionUpdate& update : rest.updates) EXPECT_EQ(update.request_id, "before");
  expect_books_closed(engine.scheduler());
}

INSTANTIATE_TEST_SUITE_P(Calls, Task6_1_DeadEngine,
                         ::testing::Values(Failure{"submit", 1}, Failure{"submit", 2}, Failure{"submit", 3},
                                           Failure{"collect", 1}, Failure{"collect", 2},
                                           Failure{"collect", 3}, Failure{"update", 1}),
                         [](const auto& info) {
                           return info.param.call + "_" + std::to_string(info.param.max_in_flight);
                         });

TEST(Task6_1_Engine, ItsDestructorWaitsForTheStepsInFlight) {
  int num_submitted = 0, num_collected = 0;
  {
    Engine engine = testing::make_engine(
        3, fake_config(), testing::mixed,
        [&](std::string_view call, int64_t) { ++(call == "submit" ? num_submitted : num_collected); });
    engine.add_request(token_request({1, 2, 3}, 40));
    engine.step();
    EXPECT_LT(num_collected, num_submitted);
  }
  EXPECT_EQ(num_collected, num_submitted);
}

}  // namespace
}  // namespace ladder
