// Tasks 6.4 and 6.9: the engine's thread, and the same engine behind a socket, over an executor without a model.
// Whoever uses an EngineClient must not see which one it is.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/remote/make_client.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::expected_tokens;
using testing::fake_config;
using testing::FakeExecutor;
using testing::token_request;

std::unique_ptr<Engine> fake_engine(int max_in_flight = 1, FakeExecutor::Fault fault = {},
                                    SchedulerConfig config = fake_config()) {
  return std::make_unique<Engine>(
      std::make_unique<FakeExecutor>(testing::mixed, max_in_flight, std::move(fault)), config, nullptr);
}

// Holds the loop in its next submit() until it is let go. Shared with the executor.
class Gate {
 public:
  FakeExecutor::Fault fault() {
    return [this](std::string_view call, int64_t) {
      std::unique_lock lock(mutex_);
      if (call != "submit" || !closed_) return;
      ++num_waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !closed_; });
      --num_waiting_;
    };
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = true;
  int num_waiting_ = 0;
};

// A request that runs long enough to be caught in the middle: 2^20 tokens.
SchedulerConfig long_config() {
  SchedulerConfig config = fake_config();
  config.batch.max_model_len = int64_t{1} << 20;
  config.batch.num_kv_blocks = int64_t{1} << 19;
  config.enable_prefix_caching = false;
  return config;
}
Request endless_request(RequestId id = {}) {
  return token_request({1, 2, 3}, int64_t{1} << 20, std::move(id));
}
// Cheap for long sequences.
std::unique_ptr<Engine> endless_engine(FakeExecutor::Fault fault = {}, int max_in_flight = 1,
                                       SchedulerConfig config = long_config()) {
  return std::make_unique<Engine>(
      std::make_unique<FakeExecutor>(
          [](const std::vector<int32_t>& token_ids, int64_t) { return token_ids.back() % 900 + 1; },
          max_in_flight, std::move(fault)),
      std::move(config), nullptr);
}

// The stream's output, or an exception that fails the test, where RequestStream::output() would wait for ever.
RequestOutput output_of(RequestStream& stream) {
  while (!stream.ended()) {
    std::optional<StreamUpdate> update = stream.next(60s);
    if (!update) throw std::runtime_error("request " + stream.request_id() + ": nothing came for a minute");
    if (update->output) return std::move(*update->output);
  }
  throw std::runtime_error("request " + stream.request_id() + ": its output was read before");
}
RequestOutput output_of(RequestStream&& stream) {
  return output_of(stream);
}

class EngineClientTest : public ::testing::TestWithParam<testing::MakeClient> {
 protected:
  using ClientPointer = testing::ClientPointer;
  ClientPointer make_client(std::unique_ptr<Engine> engine, EngineClientOptions options = {}) {
    return GetParam()(std::move(engine), std::move(options));
  }
};

INSTANTIATE_TEST_SUITE_P(Task6_4_Thread, EngineClientTest, ::testing::Values(testing::client_in_this_process),
                         [](const auto&) { return "InThisProcess"; });
INSTANTIATE_TEST_SUITE_P(Task6_9_Socket, EngineClientTest, ::testing::Values(testing::client_over_a_socket),
                         [](const auto&) { return "OverASocket"; });

TEST_P(EngineClientTest, AStreamHasEveryTokenOnceAndEndsWithTheOutput) {
  for (int depth : {1, 2, 3}) {
    const ClientPointer client = make_client(fake_engine(depth));
    Request request = token_request({1, 2, 3, 4}, 20);
    request.sampling.n = 2;
    request.sampling.logprobs = 0;
    RequestStream stream = client->submit(request);
    std::vector<std::vector<int32_t>> tokens(2);
    std::optional<RequestOutput> output;
    while (std::optional<StreamUpdate> update = stream.next()) {
      EXPECT_FALSE(output.has_value()) << "something after the end";
      for (const CompletionUpdate& news : update->updates) {
        auto& list = tokens.at(static_cast<size_t>(news.completion));
        list.insert(list.end(), news.token_ids.begin(), news.token_ids.end());
        EXPECT_EQ(news.logprobs.size(), news.token_ids.size());
      }
      if (update->output) output = std::move(update->output);
    }
    EXPECT_TRUE(stream.ended());
    EXPECT_FALSE(stream.next(0s).has_value());
    ASSERT_TRUE(output.has_value());
    EXPECT_EQ(output->request_id, stream.request_id());
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(tokens[i], expected_tokens({1, 2, 3, 4}, 20));
      EXPECT_EQ(output->completions.at(i).token_ids, tokens[i]);
    }
    EXPECT_THROW(stream.output(), Error);
    EXPECT_EQ(client->stats().num_requests, 0);
  }
}

TEST_P(EngineClientTest, ABadRequestIsToldToItsSubmitterAndToNobodyElse) {
  Gate gate;
  const ClientPointer client = make_client(fake_engine(1, gate.fault()));
  RequestStream good = client->submit(token_request({1}, 4, "a"));
  gate.wait_until_reached();  // none of these waits for the step that is being computed
  EXPECT_THROW(client->submit(token_request({}, 4)), Error);
  EXPECT_THROW(client->submit(token_request({1}, 0)), Error);
  EXPECT_THROW(client->submit(token_request({testing::kFakeVocab}, 4)), Error);
  EXPECT_THROW(client->submit(token_request({1}, 4, "a")), Error);
  Request logged = token_request({1}, 4);
  logged.sampling.logprobs = -1;
  EXPECT_THROW(client->submit(logged), Error);
  EXPECT_EQ(client->stats().num_requests, 1);
  gate.open();
  EXPECT_EQ(output_of(good).completions[0].token_ids, expected_tokens({1}, 4));
  EXPECT_EQ(output_of(client->submit(token_request({1}, 4, "a"))).completions[0].token_ids.size(), 4u)
      << "its id is free again as soon as the end was read";
}

TEST_P(EngineClientTest, AbortBeforeTheFirstStepAndTwiceAndAfterTheEnd) {
  SchedulerConfig one_at_a_time = long_config();
  one_at_a_time.batch.max_num_seqs = 1;
  const ClientPointer client = make_client(endless_engine({}, 1, one_at_a_time));
  RequestStream first = client->submit(endless_request());
  RequestStream waiting = client->submit(token_request({2}, 4, "w"));
  client->abort("w");
  client->abort("w");
  client->abort("unknown");
  const RequestOutput output = output_of(waiting);
  EXPECT_EQ(output.completions[0].finish_reason, FinishReason::abort);
  EXPECT_TRUE(output.completions[0].token_ids.empty());
  EXPECT_EQ(output.prompt_token_ids, (std::vector<int32_t>{2}));
  client->abort(first.request_id());
  EXPECT_EQ(output_of(first).completions[0].finish_reason, FinishReason::abort);
  client->abort(first.request_id());
  EXPECT_EQ(output_of(client->submit(token_request({1, 1}, 4))).completions[0].token_ids,
            (std::vector<int32_t>{2, 3, 4, 5}));
}

TEST_P(EngineClientTest, AbortInTheMiddleKeepsWhatWasGenerated) {
  const ClientPointer client = make_client(endless_engine());
  RequestStream stream = client->submit(endless_request());
  size_t num_tokens = stream.next()->updates.at(0).token_ids.size();
  client->abort(stream.request_id());
  while (std::optional<StreamUpdate> update = stream.next()) {
    for (const CompletionUpdate& news : update->updates) num_tokens += news.token_ids.size();
    if (!update->output) continue;
    EXPECT_EQ(update->output->completions[0].finish_reason, FinishReason::abort);
    EXPECT_EQ(update->output->completions[0].token_ids.size(), num_tokens);
  }
  EXPECT_GE(num_tokens, 1u);
}

// Waits until no request is left, neither in the client nor, a turn of the loop later, in the scheduler.
::testing::AssertionResult becomes_idle(const EngineClient& client) {
  for (const auto begin = StreamBuffer::Clock::now(); StreamBuffer::Clock::now() - begin < 60s;) {
    const EngineStats stats = client.stats();
    if (stats.num_requests + stats.scheduler.num_running + stats.scheduler.num_waiting == 0)
      return ::testing::AssertionSuccess();
    std::this_thread::sleep_for(1ms);
  }
  return ::testing::AssertionFailure() << "requests are left after a minute";
}

TEST_P(EngineClientTest, AStreamThatIsDroppedAbortsItsRequest) {
  const ClientPointer client = make_client(endless_engine());
  {
    RequestStream stream = client->submit(endless_request("x"));
    stream.next();
    RequestStream moved = std::move(stream);  // no drop
    EXPECT_TRUE(moved.next().has_value());
    moved = client->submit(endless_request("y"));  // drops x
    EXPECT_EQ(moved.next()->updates.at(0).request_id, "y");
  }
  EXPECT_TRUE(becomes_idle(*client));
}

TEST_P(EngineClientTest, DestructionEndsEveryStreamWithAbort) {
  std::vector<RequestStream> streams;
  {
    const ClientPointer client = make_client(endless_engine());
    for (int i = 0; i < 20; ++i) streams.push_back(client->submit(endless_request()));
    streams[0].next();
  }
  for (RequestStream& stream : streams) {
    EXPECT_EQ(output_of(stream).completions.at(0).finish_reason, FinishReason::abort);
    EXPECT_TRUE(stream.ended());
  }
}

TEST_P(EngineClientTest, ADeadEngineEndsEveryStreamWithItsErrorAndTakesNoMore) {
  std::atomic<bool> broken = false;
  const ClientPointer client = make_client(endless_engine([&](std::string_view, int64_t) {
    if (broken) throw std::runtime_error("the lamp went out");
  }));
  std::vector<RequestStream> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(client->submit(endless_request()));
  streams[0].next();
  broken = true;
  for (RequestStream& stream : streams) {
    const RequestOutput output = output_of(stream);
    EXPECT_EQ(output.completions.at(0).finish_reason, FinishReason::error);
    EXPECT_EQ(output.completions.at(0).error, "the lamp went out");
  }
  broken = false;
  try {
    client->submit(endless_request());
    FAIL() << "accepted";
  } catch (const EngineUnavailable& error) {
    EXPECT_STREQ(error.what(), "the lamp went out");
  }
  EXPECT_EQ(client->stats().error, "the lamp went out");
  EXPECT_EQ(client->stats().num_requests, 0);
  EXPECT_EQ(client->stats().scheduler.num_used_blocks, 0);
  client->abort("unknown");
  client->pause();  // none of these hangs
  client->resume();
  client->stop(1h);
}

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

TEST_P(EngineClientTest, ASlowReaderKeepsNobodyWaitingAndMissesNothing) {
  const ClientPointer client = make_client(fake_engine());
  RequestStream slow = client->submit(token_request({1, 2}, 50));
  RequestStream fast = client->submit(token_request({3, 4}, 55));
  output_of(fast);
  const std::optional<StreamUpdate> all = slow.next();
  ASSERT_TRUE(all.has_value());
  ASSERT_EQ(all->updates.size(), 1u) << "one update for each completion, however late it is read";
  EXPECT_EQ(all->updates[0].token_ids, expected_tokens({1, 2}, 50));
  ASSERT_TRUE(all->output.has_value());
  EXPECT_TRUE(slow.ended());
}

TEST_P(EngineClientTest, OnReadyIsCalledWhenThereIsSomethingAfterNothing) {
  std::mutex mutex;
  std::condition_variable called;
  int num_calls = 0;
  const ClientPointer client = make_client(fake_engine());
  RequestStream stream = client->submit(token_request({1, 2}, 30), [&] {
    std::lock_guard lock(mutex);
    ++num_calls;
    called.notify_one();
  });
  // An event loop: sleep until called, then read what there is without waiting.
  std::vector<int32_t> tokens;
  int num_seen = 0;
  while (!stream.ended()) {
    {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(called.wait_for(lock, 60s, [&] { return num_calls > num_seen; })) << "there was no call";
      num_seen = num_calls;
    }
    while (std::optional<StreamUpdate> update = stream.next(0s))
      for (const CompletionUpdate& news : update->updates)
        tokens.insert(tokens.end(), news.token_ids.begin(), news.token_ids.end());
  }
  EXPECT_EQ(tokens, expected_tokens({1, 2}, 30));
}

TEST_P(EngineClientTest, OnReadyMayNotWaitForTheLoopItRunsOn) {
  std::atomic<int> num_refused = 0;
  const ClientPointer client = make_client(fake_engine());
  std::vector<std::function<void()>> calls = {[&] { client->pause(); }, [&] { client->reset_prefix_cache(); },
                                              [&] { client->stop(); }};
  for (const auto& call : calls) {
    client
        ->submit(token_request({1}, 1),
                 [&] {
                   try {
                     call();
                   } catch (const Error&) {
                     ++num_refused;
                   }
                 })
        .output();
  }
  client->stop();
  EXPECT_GE(num_refused, 3);
}

TEST_P(EngineClientTest, ATimeoutIsNotTheEnd) {
  Gate gate;
  const ClientPointer client = make_client(fake_engine(1, gate.fault()));
  RequestStream stream = client->submit(token_request({1}, 3));
  EXPECT_FALSE(stream.next(1ms).has_value());
  EXPECT_FALSE(stream.ended());
  gate.open();
  EXPECT_EQ(output_of(stream).completions[0].token_ids.size(), 3u);
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
  while (client->stats().queued.num_sequences > 0) std::this_thread::sleep_for(1ms);
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

// Many threads that submit, read, abort, drop, pause and ask, all at once; under a thread sanitizer too.
TEST_P(EngineClientTest, ManyThreadsAtRandom) {
  constexpr int kThreads = 8, kRequests = 60;
  SchedulerConfig config = fake_config();
  config.batch.num_kv_blocks = 32;
  config.policy = SchedulingPolicy::priority;
  const ClientPointer client = make_client(fake_engine(2, {}, config), {.max_num_queued_reqs = 60});
  std::atomic<int64_t> num_whole = 0, num_aborted = 0, num_dropped = 0, num_full = 0;
  testing::Random seeds;
  SCOPED_TRACE(seeds.describe());
  const auto seed = static_cast<uint32_t>(seeds.integer(0, 1 << 30));
  const auto use = [&](int thread) {
    std::mt19937 random(seed + static_cast<uint32_t>(thread));
    for (int i = 0; i < kRequests; ++i) {
      Request request = token_request({thread, static_cast<int32_t>(random() % 3)}, 1 + random() % 30);
      request.sampling.n = 1 + (random() % 4 == 0 ? 2 : 0);
      request.sampling.priority = static_cast<int32_t>(random() % 3);
      std::optional<RequestStream> stream;
      try {
        stream.emplace(client->submit(request));
      } catch (const QueueFull&) {
        ++num_full;
        continue;
      }
      std::optional<RequestOutput> whole;
      switch (random() % 6) {
        case 0:
          client->abort(stream->request_id());
          break;
        case 1:
          if (auto update = stream->next(std::chrono::microseconds(random() % 300)))
            whole = std::move(update->output);
          client->abort(stream->request_id());
          client->abort(std::to_string(random() % 100));  // another thread's, maybe
          break;
        case 2:
          stream->next(std::chrono::microseconds(random() % 300));
          stream.reset();
          ++num_dropped;
          continue;
        case 3:
          if (thread == 0) {
            client->pause();
            EXPECT_GE(client->stats().num_requests, 0);
            client->resume();
          }
          break;
        case 4:
          client->reset_prefix_cache();
          break;
        default:
          break;
      }
      const RequestOutput output = whole ? std::move(*whole) : output_of(*stream);
      EXPECT_EQ(output.request_id, stream->request_id());
      for (const CompletionOutput& completion : output.completions) {
        const auto expected = expected_tokens(request.prompt_token_ids, *request.sampling.max_tokens);
        ASSERT_LE(completion.token_ids.size(), expected.size());
        EXPECT_TRUE(std::equal(completion.token_ids.begin(), completion.token_ids.end(), expected.begin()));
        if (completion.finish_reason == FinishReason::length) {
          ++num_whole;
          EXPECT_EQ(completion.token_ids.size(), expected.size());
        } else {
          ++num_aborted;
          EXPECT_EQ(completion.finish_reason, FinishReason::abort);
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(use, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(num_whole, kThreads * kRequests / 4);
  EXPECT_GT(num_aborted, kThreads);
  EXPECT_GT(num_dropped, kThreads);
  EXPECT_TRUE(becomes_idle(*client));
  client->stop(1h);
  const EngineStats stats = client->stats();
  EXPECT_EQ(stats.scheduler.num_used_blocks, 0);
  EXPECT_EQ(stats.scheduler.num_running + stats.scheduler.num_waiting, 0);
}

}  // namespace
}  // namespace ladder
