// Tasks 6.4 and 6.9: what the engine's loop is told: pause, stop, forget the cache; and how much may wait for it.
#include <atomic>
#include <ctime>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/engine_client_fixture.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::becomes_idle;
using testing::endless_engine;
using testing::endless_request;
using testing::EngineClientTest;
using testing::expected_tokens;
using testing::fake_engine;
using testing::Gate;
using testing::long_config;
using testing::output_of;
using testing::token_request;

TEST_P(EngineClientTest, APausedEngineStandsStillAndLosesNothing) {
  std::atomic<int64_t> num_calls = 0;
  const ClientPointer client =
      make_client(endless_engine([&](std::string_view, int64_t) { ++num_calls; }, 2));
  RequestStream stream = client->submit(endless_request());
  std::vector<int32_t> tokens;
  const auto read = [&](std::optional<StreamUpdate> update) {
    ASSERT_TRUE(update.has_value());
    for (const CompletionUpdate& news : update->updates)
      tokens.insert(tokens.end(), news.token_ids.begin(), news.token_ids.end());
  };
  read(stream.next());
  client->pause();
  client->pause();
  EXPECT_TRUE(client->stats().paused);
  const int64_t calls_then = num_calls;
  EXPECT_EQ(calls_then % 2, 0) << "a step was left in flight";
  RequestStream later = client->submit(token_request({3}, 5));
  RequestStream aborted = client->submit(token_request({4}, 5));
  client->abort(aborted.request_id());
  EXPECT_EQ(output_of(aborted).completions[0].finish_reason, FinishReason::abort) << "aborts need no step";
  while (std::optional<StreamUpdate> update = stream.next(20ms)) read(std::move(update));
  EXPECT_EQ(num_calls, calls_then);
  const size_t num_then = tokens.size();

  client->resume();
  EXPECT_EQ(output_of(later).completions[0].token_ids, (std::vector<int32_t>{4, 5, 6, 7, 8}));
  read(stream.next());
  EXPECT_GT(tokens.size(), num_then);
  for (size_t i = 0; i < tokens.size(); ++i)
    ASSERT_EQ(tokens[i], (i == 0 ? 3 : tokens[i - 1]) % 900 + 1)
        << "token " << i << " is lost or comes twice";
  EXPECT_FALSE(client->stats().paused);
}

// A worker process that dies while nobody asks for anything: the next request should not be the one that finds out.
TEST_P(EngineClientTest, AnIdleEngineWhoseExecutorFailsIsKnownToBeDead) {
  std::unique_ptr<Engine> engine = endless_engine();
  auto& executor = dynamic_cast<testing::FakeExecutor&>(engine->executor());
  const ClientPointer client = make_client(std::move(engine));
  EXPECT_EQ(client->stats().error, "");
  executor.failed_by_itself = true;
  for (int i = 0; i < 60'000 && client->stats().error.empty(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(client->stats().error, "the executor is gone");
  EXPECT_THROW(client->submit(token_request({3}, 5)), EngineUnavailable);
}

TEST_P(EngineClientTest, TheLoopSleepsWhereThereIsNothingToDo) {
  const auto processor_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const ClientPointer client = make_client(endless_engine());
  const double begin = processor_seconds();
  std::this_thread::sleep_for(150ms);
  EXPECT_LT(processor_seconds() - begin, 0.05) << "idle";
  RequestStream stream = client->submit(endless_request());
  stream.next();
  client->pause();
  const double paused = processor_seconds();
  std::this_thread::sleep_for(150ms);
  EXPECT_LT(processor_seconds() - paused, 0.05) << "paused";
}

TEST_P(EngineClientTest, AFullQueueIsSaidAndEmptiesAgain) {
  Gate gate;
  const ClientPointer client = make_client(fake_engine(1, gate.fault()), {.max_num_queued_reqs = 3});
  RequestStream first = client->submit(token_request({1}, 4));
  gate.wait_until_reached();
  std::vector<RequestStream> waiting;
  EXPECT_THROW(
      {
        for (int i = 0; i < 4; ++i) waiting.push_back(client->submit(token_request({2}, 4)));
      },
      QueueFull);
  EXPECT_GE(waiting.size(), 2u);
  gate.open();
  for (RequestStream& stream : waiting) output_of(stream);
  output_of(first);
  EXPECT_EQ(output_of(client->submit(token_request({1}, 4))).completions[0].token_ids.size(), 4u);
}

// Those that wait in the scheduler count as well as those that it has yet to see.
TEST_P(EngineClientTest, AQueueFullOfTokensIsSaidAndEmptiesAgain) {
  SchedulerConfig one_at_a_time = long_config();
  one_at_a_time.batch.max_num_seqs = 1;
  const ClientPointer client =
      make_client(endless_engine({}, 1, one_at_a_time), {.max_num_queued_tokens = 10});
  RequestStream first = client->submit(endless_request());
  first.next();  // it runs; soon the statistics know it
  for (int i = 0; i < 10'000 && client->stats().queued.num_sequences > 0; ++i)
    std::this_thread::sleep_for(1ms);
  ASSERT_EQ(client->stats().queued.num_sequences, 0) << "it was taken, and is still counted";
  Request four = token_request({1, 2}, 4);
  four.sampling.n = 2;
  std::vector<RequestStream> waiting;
  for (int i = 0; i < 2; ++i) waiting.push_back(client->submit(four));
  EXPECT_EQ(client->stats().queue_full, "");
  waiting.push_back(client->submit(token_request({1, 2}, 4)));
  for (const auto begin = StreamBuffer::Clock::now(); StreamBuffer::Clock::now() - begin < 20ms;) {
    const EngineStats stats = client->stats();
    ASSERT_EQ(stats.queued.num_sequences, 5);
    ASSERT_EQ(stats.queued.num_tokens, 10);
    ASSERT_NE(stats.queue_full.find("10 tokens"), std::string::npos) << stats.queue_full;
    EXPECT_THROW(client->submit(token_request({1}, 4)), QueueFull);
  }
  EXPECT_EQ(client->stats().num_requests, 4);
  client->abort(first.request_id());
  for (RequestStream& stream : waiting) output_of(stream);
  output_of(first);
  EXPECT_TRUE(becomes_idle(*client));
  EXPECT_EQ(output_of(client->submit(token_request({1}, 4))).completions[0].token_ids.size(), 4u);
}

// While requests are on their way to the engine its statistics change: those of the way and those of the engine are
// one sum, in which none is twice.
TEST_P(EngineClientTest, NoMoreAreWaitingThanThereAre) {
  const ClientPointer client = make_client(fake_engine(), {.max_num_queued_tokens = int64_t{1} << 40});
  std::vector<RequestStream> streams;
  for (int i = 0; i < 3000; ++i) {
    streams.push_back(client->submit(token_request({1, 2}, 2)));
    const EngineStats stats = client->stats();
    ASSERT_LE(stats.queued.num_sequences, stats.num_requests) << "request " << i;
    ASSERT_EQ(stats.queued.num_tokens, 2 * stats.queued.num_sequences) << "request " << i;
  }
  for (RequestStream& stream : streams) output_of(stream);
}

TEST_P(EngineClientTest, StopDrainsWhatItHasAndTakesNoMore) {
  Gate gate;
  const ClientPointer client = make_client(fake_engine(1, gate.fault()));
  std::vector<RequestStream> streams;
  for (int i = 0; i < 12; ++i) streams.push_back(client->submit(token_request({1, 2}, 20)));
  gate.wait_until_reached();
  std::thread stopper([&] { client->stop(1h); });
  while (!client->stats().stopped) std::this_thread::sleep_for(1ms);
  EXPECT_THROW(client->submit(token_request({1}, 4)), EngineUnavailable);
  gate.open();
  stopper.join();
  for (RequestStream& stream : streams)
    EXPECT_EQ(output_of(stream).completions[0].token_ids, expected_tokens({1, 2}, 20));
  EXPECT_THROW(client->pause(), EngineUnavailable);
  client->stop();
}

TEST_P(EngineClientTest, ASecondStopCutsTheDrainingShort) {
  const ClientPointer client = make_client(endless_engine());
  RequestStream stream = client->submit(endless_request());
  stream.next();
  std::thread stopper([&] { client->stop(1h); });
  while (!client->stats().stopped) std::this_thread::sleep_for(1ms);
  client->stop(0ms);
  stopper.join();
  EXPECT_EQ(output_of(stream).completions[0].finish_reason, FinishReason::abort);
}

TEST_P(EngineClientTest, ThePrefixCacheIsForgottenOnlyWhereNobodyHoldsIt) {
  const ClientPointer client = make_client(fake_engine());
  const std::vector<int32_t> prompt(21, 7);
  const auto num_cached = [&] {
    return output_of(client->submit(token_request(prompt, 3))).metrics.num_cached_tokens;
  };
  EXPECT_EQ(num_cached(), 0);
  EXPECT_EQ(num_cached(), 20);
  EXPECT_TRUE(client->reset_prefix_cache());
  EXPECT_EQ(num_cached(), 0);

  const ClientPointer busy = make_client(endless_engine());
  RequestStream stream = busy->submit(endless_request());
  stream.next();
  EXPECT_FALSE(busy->reset_prefix_cache());
}

}  // namespace
}  // namespace ladder
