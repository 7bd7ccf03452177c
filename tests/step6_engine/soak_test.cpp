// Task 6.1: an engine used at random, where one thing begins before another is done:
// requests of every kind, aborts, generate() in between, callbacks that throw, and in the end often an
// executor that fails. Every request has one output, whose tokens are the right ones, and the books balance.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>

#include "step1_layers/core/error.h"
#include "tests/step5_scheduler/harness.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::expected_tokens;
using testing::Random;

class Soak {
 public:
  Soak(Random& random, int max_in_flight, int64_t failing_step)
      : random_(random),
        engine_(std::make_unique<testing::FakeExecutor>(
                    testing::mixed, max_in_flight,
                    [this, failing_step](std::string_view call, int64_t step) {
                      if (step == failing_step && call == failing_call_) throw std::runtime_error("failed");
                    }),
                cramped(random), nullptr) {
    if (random.integer(0, 1) == 0) failing_call_ = "submit";
  }

  void run(int num_actions) {
    try {
      for (int i = 0; i < num_actions && !::testing::Test::HasFailure(); ++i) act();
      while (engine_.has_unfinished() && !::testing::Test::HasFailure()) step();
    } catch (const std::runtime_error& error) {
      ASSERT_STREQ(error.what(), "failed");
      ASSERT_TRUE(engine_.dead());
      take(engine_.take_results());
    }
    EXPECT_TRUE(pending_.empty()) << pending_.size() << " requests have no output";
    testing::expect_books_closed(engine_.scheduler());
  }

  int64_t num_ended[5] = {};  // by reason
  bool died() const { return engine_.dead(); }

 private:
  static SchedulerConfig cramped(Random& random) {
    SchedulerConfig config = testing::fake_config();
    config.batch.num_kv_blocks = 16;  // exactly one sequence of max_model_len
    config.policy = random.integer(0, 1) == 0 ? SchedulingPolicy::fcfs : SchedulingPolicy::priority;
    return config;
  }

  Request random_request() {
    std::vector<int32_t> prompt(static_cast<size_t>(random_.integer(1, 24)));
    for (int32_t& id : prompt) id = static_cast<int32_t>(random_.integer(0, 2));
    Request request = testing::token_request(std::move(prompt), random_.integer(1, 30));
    if (random_.integer(0, 2) == 0) request.request_id = "mine " + std::to_string(next_id_++);
    request.sampling.priority = static_cast<int32_t>(random_.integer(-2, 2));
    if (random_.integer(0, 4) == 0) request.sampling.n = random_.integer(2, 5);
    return request;
  }

  void add() {
    const Request request = random_request();
    const RequestId id = engine_.add_request(request);
    ASSERT_TRUE(pending_.emplace(id, request).second);
  }

  void abort_one() {
    if (pending_.empty()) return engine_.abort("unknown");
    auto victim = pending_.begin();
    std::advance(victim, random_.integer(0, std::ssize(pending_) - 1));
    engine_.abort(victim->first);
  }

  void step() { take(engine_.step()); }

  void take(const StepResult& result) {
    for (const RequestOutput& output : result.finished) {
      const auto position = pending_.find(output.request_id);
      ASSERT_NE(position, pending_.end()) << output.request_id << " has ended twice, or was never there";
      check(position->second, output);
      pending_.erase(position);
    }
  }

  void check(const Request& request, const RequestOutput& output) {
    const int64_t all = *request.sampling.max_tokens;
    const std::vector<int32_t> expected = expected_tokens(request.prompt_token_ids, all);
    ASSERT_EQ(std::ssize(output.completions), request.sampling.n);
    for (const CompletionOutput& completion : output.completions) {
      const auto count = std::ssize(completion.token_ids);
      ASSERT_LE(count, all);
      EXPECT_TRUE(std::equal(completion.token_ids.begin(), completion.token_ids.end(), expected.begin()));
      EXPECT_NE(completion.finish_reason, FinishReason::none);
      EXPECT_EQ(count == all, completion.finish_reason == FinishReason::length) << count << " of " << all;
      EXPECT_EQ(completion.error, completion.finish_reason == FinishReason::error ? "failed" : "");
      ++num_ended[static_cast<size_t>(completion.finish_reason)];
    }
  }

  void generate() {
    std::vector<Request> requests(static_cast<size_t>(random_.integer(1, 4)));
    for (Request& request : requests) request = random_request();
    struct Thrown {};
    try {
      const std::vector<RequestOutput> outputs = engine_.generate(requests, [&](const StepResult& result) {
        const int64_t what = random_.integer(0, 30);
        if (what == 0) throw Thrown();
        if (what == 1) add();
        if (what == 2) abort_one();
        if (what == 3 && !result.updates.empty()) engine_.abort(result.updates[0].request_id);
      });
      ASSERT_EQ(outputs.size(), requests.size());
      for (size_t i = 0; i < outputs.size(); ++i) check(requests[i], outputs[i]);
    } catch (const Thrown&) {
    }
  }

  void act() {
    switch (random_.integer(0, 9)) {
      case 0:
      case 1:
        return add();
      case 2:
        return abort_one();
      case 3:
        if (random_.integer(0, 3) == 0) generate();
        return;
      case 4: {
        const bool held = engine_.scheduler().blocks().num_used_blocks() > 0;
        EXPECT_EQ(engine_.reset_prefix_cache(), !held);
        return expect_books_balance(engine_.scheduler());
      }
      case 5:
        return take(random_.integer(0, 1) == 0 ? engine_.take_results() : engine_.collect_step());
      default:
        if (engine_.has_unfinished()) step();
    }
  }

  Random& random_;
  std::string failing_call_ = "collect";
  Engine engine_;
  int64_t next_id_ = 0;
  std::map<RequestId, Request> pending_;  // added, and no output has come
};

TEST(Task6_1_Soak, EveryRequestHasOneRightOutputAndTheBooksBalance) {
  Random random;
  SCOPED_TRACE(random.describe());
  int64_t num_ended[5] = {}, num_died = 0;
  for (int run = 0; run < 60 && !HasFailure(); ++run) {
    Soak soak(random, static_cast<int>(random.integer(1, 3)), run % 3 == 0 ? random.integer(0, 150) : -1);
    soak.run(300);
    for (size_t i = 0; i < 5; ++i) num_ended[i] += soak.num_ended[i];
    num_died += soak.died();
  }
  // None of it is vacuous.
  EXPECT_GT(num_ended[static_cast<size_t>(FinishReason::length)], 1000);
  EXPECT_GT(num_ended[static_cast<size_t>(FinishReason::abort)], 200);
  EXPECT_GT(num_ended[static_cast<size_t>(FinishReason::error)], 10);
  EXPECT_GT(num_died, 10);
}

}  // namespace
}  // namespace ladder
