// One engine that several users reach over a socket each: what one does, or what becomes of it, is nothing to the others.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step6_engine/process/open_files.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::becomes_idle;
using testing::endless_engine;
using testing::endless_request;
using testing::expected_tokens;
using testing::output_of;
using testing::token_request;

class SharedEngine {
 public:
  explicit SharedEngine(std::unique_ptr<Engine> engine, bool tells_turns = true,
                        EngineClientOptions options = {}, bool forgets_turns = false)
      : config_(engine->scheduler().config()), turns_(tells_turns ? &listeners_ : nullptr) {
    if (!forgets_turns) options.on_turn = [this] { listeners_.announce(); };
    client_ = std::make_unique<ThreadEngineClient>(std::move(engine), std::move(options));
  }

  testing::ClientPointer connect(EngineClientOptions options = {}) {
    ServeEngineOptions serve{
        .config = config_, .turns = turns_, .id_prefix = fmt::format("{}:", num_users_.fetch_add(1))};
    return testing::client_of_server(
        [this, serve](MessageSocket& socket) { serve_engine(socket, *client_, serve); }, config_,
        std::move(options));
  }
  EngineClient& client() { return *client_; }

 private:
  const SchedulerConfig config_;
  TurnListeners listeners_;
  TurnListeners* const turns_;
  std::atomic<int> num_users_ = 0;
  std::unique_ptr<ThreadEngineClient> client_;
};

// With a client that tells turns, and of one that does not.
class Task6_9_SharedEngine : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Turns, Task6_9_SharedEngine, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "told" : "untold"; });

TEST_P(Task6_9_SharedEngine, UsersMayCallTheirRequestsByTheSameNames) {
  SharedEngine engine(testing::fake_engine(), GetParam());
  const auto one = engine.connect(), two = engine.connect();
  std::vector<std::pair<Request, RequestStream>> streams;
  for (int i = 0; i < 20; ++i)
    for (const auto* user : {&one, &two}) {
      Request request =
          token_request({i, user == &one ? 1 : 2, 3}, 10 + i, i % 2 == 0 ? std::to_string(i) : "");
      RequestStream stream = (*user)->submit(request);
      streams.emplace_back(std::move(request), std::move(stream));
    }
  for (auto& [request, stream] : streams) {
    const RequestOutput output = output_of(stream);
    EXPECT_EQ(output.request_id, stream.request_id()) << "not the name that the engine knows it by";
    EXPECT_EQ(output.completions.at(0).token_ids,
              expected_tokens(request.prompt_token_ids, request.sampling.max_tokens.value()));
  }
  EXPECT_TRUE(becomes_idle(engine.client()));
  EXPECT_EQ(engine.client().stats().metrics.num_requests_finished, 40);
}

TEST_P(Task6_9_SharedEngine, AUserThatGoesTakesItsOwnRequestsWithIt) {
  SharedEngine engine(endless_engine(), GetParam());
  const auto stays = engine.connect();
  RequestStream living = stays->submit(endless_request("a"));
  ASSERT_TRUE(living.next(60s)) << "it runs";
  {
    const auto goes = engine.connect();
    RequestStream stream = goes->submit(endless_request("a"));
    ASSERT_TRUE(stream.next(60s)) << "it runs";
    RequestStream other = goes->submit(endless_request());
    ASSERT_TRUE(other.next(60s));
    EXPECT_EQ(engine.client().stats().num_requests, 3);
  }
  for (int i = 0; i < 60'000 && engine.client().stats().scheduler.num_running > 1; ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(engine.client().stats().num_requests, 1);
  EXPECT_EQ(engine.client().stats().scheduler.num_running, 1);
  living.next(60s);
  ASSERT_TRUE(living.next(60s)) << "it still runs";
  stays->abort("a");
  EXPECT_EQ(output_of(living).completions.at(0).finish_reason, FinishReason::abort);
  EXPECT_TRUE(becomes_idle(engine.client()));
  EXPECT_EQ(engine.client().stats().scheduler.num_used_blocks, 0);
}

TEST_P(Task6_9_SharedEngine, AUsersStopDrainsItsOwnRequestsAndStopsNobodyElse) {
  SharedEngine engine(endless_engine([](std::string_view call, int64_t) {
                        if (call == "submit") std::this_thread::sleep_for(1ms);
                      }),
                      GetParam());
  const auto stays = engine.connect(), stops = engine.connect();
  RequestStream living = stays->submit(endless_request());
  RequestStream ends = stops->submit(token_request({1}, 50)), endless = stops->submit(endless_request());
  auto stopping = std::async(std::launch::async, [&] { stops->stop(60s); });
  EXPECT_EQ(output_of(ends).completions.at(0).finish_reason, FinishReason::length) << "there was time for it";
  stops->stop();  // and for the other one there is no more
  stopping.get();
  EXPECT_EQ(output_of(endless).completions.at(0).finish_reason, FinishReason::abort);
  EXPECT_THROW(stops->submit(token_request({1}, 1)), EngineUnavailable);
  EXPECT_TRUE(stops->stats().stopped);
  EXPECT_FALSE(stays->stats().stopped);
  EXPECT_EQ(output_of(stays->submit(token_request({1}, 5))).completions.at(0).finish_reason,
            FinishReason::length);
  ASSERT_TRUE(living.next(60s));
}

TEST_P(Task6_9_SharedEngine, EveryUserIsToldTheSameNumbers) {
  SharedEngine engine(testing::fake_engine(), GetParam());
  const auto one = engine.connect(), two = engine.connect();
  output_of(one->submit(token_request({1, 2}, 7)));
  output_of(two->submit(token_request({1, 2, 3}, 8)));
  ASSERT_TRUE(becomes_idle(engine.client())) << "a reader may be ahead of the numbers of its last step";
  const auto numbers = [](const EngineClient& user) {
    const EngineStats stats = user.stats();
    return std::vector<int64_t>{stats.metrics.num_steps, stats.metrics.num_requests_finished,
                                stats.metrics.num_output_tokens, stats.scheduler.num_used_blocks};
  };
  const std::vector<int64_t> expected = numbers(engine.client());
  EXPECT_EQ(expected[2], 15);
  for (int i = 0; i < 60'000 && (numbers(*one) != expected || numbers(*two) != expected); ++i)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(numbers(*one), expected);
  EXPECT_EQ(numbers(*two), expected);
}

// Users that know nothing of each other ask at the same time; the engine takes no step meanwhile, so nobody is told
// anew how much waits.
TEST_P(Task6_9_SharedEngine, TheQueueIsBoundedForAllUsersTogether) {
  constexpr int64_t kBound = 10;
  testing::Gate gate;
  SharedEngine engine(endless_engine(gate.fault()), GetParam(), {.max_num_queued_reqs = kBound});
  const auto first = engine.connect();
  RequestStream running = first->submit(endless_request());
  gate.wait_until_reached();
  std::atomic<int64_t> num_taken = 0, num_refused = 0;
  std::vector<std::future<void>> users;
  for (int user = 0; user < 3; ++user)
    users.push_back(std::async(std::launch::async, [&] {
      const auto client = engine.connect({.max_num_queued_reqs = kBound, .queue_is_shared = true});
      std::vector<RequestStream> streams;
      for (int i = 0; i < 2 * kBound; ++i) try {
          streams.push_back(client->submit(endless_request()));
          ++num_taken;
        } catch (const QueueFull& full) {
          EXPECT_NE(std::string(full.what()).find("max_num_queued_reqs"), std::string::npos);
          ++num_refused;
        }
      EXPECT_EQ(client->stats().num_requests, std::ssize(streams)) << "a refused one is forgotten";
      // All three have asked before one of them goes, and before the engine goes on.
      while (num_taken + num_refused < 3 * 2 * kBound) std::this_thread::sleep_for(1ms);
      gate.open();
    }));
  for (auto& user : users) user.get();
  // The one that runs counts until the scheduler has told of its step.
  EXPECT_GE(num_taken, kBound - 1);
  EXPECT_LE(num_taken, kBound);
  EXPECT_EQ(num_taken + num_refused, 3 * 2 * kBound);
}

// As it is with what ends a request between the turns of several engines.
TEST(Task6_9_SharedEngines, NewsThatNoTurnFollowsIsToldAllTheSame) {
  SharedEngine engine(testing::fake_engine(), true, {}, /*forgets_turns=*/true);
  const auto user = engine.connect();
  const RequestOutput output = output_of(user->submit(token_request({1, 2}, 3)));
  EXPECT_EQ(output.completions.at(0).token_ids, expected_tokens({1, 2}, 3));
}

TEST(Task6_9_SharedEngines, TheEnginesDeathIsToldToEveryUser) {
  SharedEngine engine(endless_engine([](std::string_view call, int64_t step) {
    if (call == "submit" && step == 30) throw std::runtime_error("burnt");
  }));
  const auto one = engine.connect(), two = engine.connect();
  RequestStream first = one->submit(endless_request());
  output_of(first);
  for (int i = 0; i < 60'000 && two->stats().error.empty(); ++i) std::this_thread::sleep_for(1ms);
  for (const auto* user : {&one, &two}) {
    EXPECT_EQ((*user)->stats().error, engine.client().stats().error);
    EXPECT_THROW((*user)->submit(token_request({1}, 1)), EngineUnavailable);
  }
  EXPECT_NE(one->stats().error, "");
}

// Before its user has heard of it.
TEST(Task6_9_SharedEngines, WhyARequestIsNotTakenIsSaidBySubmit) {
  testing::Gate gate;
  SharedEngine engine(endless_engine(gate.fault()));
  const auto one = engine.connect({.queue_is_shared = true}), two = engine.connect({.queue_is_shared = true});
  RequestStream running = one->submit(endless_request());
  gate.wait_until_reached();
  std::thread stop([&] { engine.client().stop(); });
  while (!engine.client().stats().stopped) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(two->stats().stopped) << "it does not know";
  EXPECT_THROW(two->submit(token_request({1}, 1)), EngineUnavailable);
  EXPECT_EQ(two->stats().num_requests, 0);
  gate.open();
  stop.join();
}

// A stream may call once more after it was dropped, and by then its server is gone.
TEST_P(Task6_9_SharedEngine, UsersThatComeAndGoLeaveNothing) {
  SharedEngine engine(endless_engine(), GetParam());
  const int files = testing::num_open_files(), threads = testing::num_threads();
  for (int i = 0; i < 30; ++i) {
    const auto user = engine.connect();
    std::vector<RequestStream> streams;
    for (int k = 0; k < 8; ++k) streams.push_back(user->submit(endless_request()));
    if (i % 3 != 0) streams[0].next(60s);
  }
  EXPECT_TRUE(becomes_idle(engine.client()));
  EXPECT_EQ(testing::num_open_files(), files);
  EXPECT_TRUE(testing::threads_end(threads));
}

}  // namespace
}  // namespace ladder
