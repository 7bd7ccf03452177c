#pragma once
// What every EngineClient does: requests and their streams. Included by the tests of each, which say over which clients the
// cases run.
#include <atomic>
#include <optional>
#include <random>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::becomes_idle;
using testing::endless_engine;
using testing::endless_request;
using testing::EngineClientTest;
using testing::expected_tokens;
using testing::fake_config;
using testing::fake_engine;
using testing::Gate;
using testing::long_config;
using testing::output_of;
using testing::token_request;

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

TEST_P(EngineClientTest, ASlowReaderKeepsNobodyWaitingAndMissesNothing) {
  const ClientPointer client = make_client(fake_engine());
  RequestStream slow = client->submit(token_request({1, 2}, 50));
  RequestStream fast = client->submit(token_request({3, 4}, 55));
  output_of(fast);
  // A turn that is told in one message may bring the end of one request before the last tokens of another; a request
  // that was submitted when all had ended ends after them.
  ASSERT_TRUE(becomes_idle(*client));
  output_of(client->submit(token_request({5}, 1)));
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
