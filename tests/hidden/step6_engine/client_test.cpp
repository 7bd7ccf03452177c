// Task 6.4: streams read late or not at all, ends of all kinds, and a loop that sleeps.
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <stdexcept>
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;

std::unique_ptr<Engine> engine_of(SchedulerConfig config, int depth = 1, FakeExecutor::Fault fault = {}) {
  return std::make_unique<Engine>(std::make_unique<FakeExecutor>(mixed, depth, std::move(fault)), config,
                                  nullptr);
}

// A request of such an engine would run for minutes.
SchedulerConfig long_config() {
  SchedulerConfig config = fake_config();
  config.batch.max_model_len = 100'000;
  config.batch.num_kv_blocks = 50'000;
  return config;
}

// All of a stream, read after random pauses: its updates must be its output.
RequestOutput read_all(RequestStream& stream, Random& random) {
  std::vector<std::vector<int32_t>> tokens;
  while (!stream.ended()) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 300)));
    const std::optional<StreamUpdate> update = stream.next(60s);
    if (!update) throw std::runtime_error("nothing came for a minute");
    for (const CompletionUpdate& news : update->updates) {
      tokens.resize(std::max(tokens.size(), static_cast<size_t>(news.completion) + 1));
      auto& list = tokens[static_cast<size_t>(news.completion)];
      list.insert(list.end(), news.token_ids.begin(), news.token_ids.end());
    }
    if (!update->output) continue;
    for (size_t i = 0; i < update->output->completions.size(); ++i) {
      tokens.resize(std::max(tokens.size(), i + 1));
      EXPECT_EQ(tokens[i], update->output->completions[i].token_ids) << "updates are not the output";
    }
    return *update->output;
  }
  throw std::runtime_error("the end was read before");
}

TEST(Hidden6_4_Client, LateReadersMissNothingAndIdsAreFreeAtTheEnd) {
  Random random;
  SCOPED_TRACE(random.describe());
  ThreadEngineClient client(engine_of(fake_config(), static_cast<int>(random.integer(1, 3))));
  for (int round = 0; round < 40; ++round) {
    Request request =
        token_request({1, static_cast<int32_t>(random.integer(0, 9))}, random.integer(1, 50), "same");
    request.sampling.n = static_cast<int32_t>(random.integer(1, 3));
    RequestStream stream = client.submit(request);
    EXPECT_THROW(client.submit(token_request({}, 3)), Error);
    const RequestOutput output = read_all(stream, random);
    for (const CompletionOutput& completion : output.completions)
      EXPECT_EQ(completion.token_ids,
                expected_tokens(request.prompt_token_ids, *request.sampling.max_tokens));
  }
  EXPECT_EQ(client.stats().num_requests, 0);
}

TEST(Hidden6_4_Buffer, MergesAndCallsOnceForEachTimeItWasEmpty) {
  Random random;
  SCOPED_TRACE(random.describe());
  int calls = 0, expected_calls = 0;
  StreamBuffer buffer([&] { ++calls; });
  std::vector<std::vector<int32_t>> pushed(4), taken(4);
  bool empty = true;
  for (int32_t i = 0; i < 500; ++i) {
    if (random.integer(0, 3) == 0) {
      if (const auto update = buffer.take(StreamBuffer::Clock::now()))
        for (const CompletionUpdate& news : update->updates)
          taken[news.completion].insert(taken[news.completion].end(), news.token_ids.begin(),
                                        news.token_ids.end());
      EXPECT_EQ(taken, pushed);
      empty = true;
      continue;
    }
    CompletionUpdate update;
    update.completion = random.integer(0, 3);
    update.token_ids.assign(static_cast<size_t>(random.integer(1, 3)), i);
    pushed[update.completion].insert(pushed[update.completion].end(), update.token_ids.begin(),
                                     update.token_ids.end());
    buffer.push(std::move(update));
    expected_calls += empty;
    empty = false;
    ASSERT_EQ(calls, expected_calls);
  }
}

TEST(Hidden6_4_Client, StopDrainsAndThenAbortsWhatIsLeft) {
  Random random;
  SCOPED_TRACE(random.describe());
  {
    ThreadEngineClient client(engine_of(fake_config(), 2));
    std::vector<RequestStream> streams;
    const int64_t length = random.integer(5, 40);
    for (int i = 0; i < 10; ++i) streams.push_back(client.submit(token_request({1, 2, i}, length)));
    client.stop(1h);
    EXPECT_THROW(client.submit(token_request({1}, 1)), EngineUnavailable);
    for (int32_t i = 0; i < 10; ++i)
      EXPECT_EQ(read_all(streams[i], random).completions[0].token_ids, expected_tokens({1, 2, i}, length));
  }
  ThreadEngineClient client(engine_of(long_config(), static_cast<int>(random.integer(1, 3))));
  std::vector<RequestStream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(client.submit(token_request({1, i}, 90'000)));
  RequestStream first = client.submit(token_request({1}, 90'000));
  first.next();
  client.stop();
  EXPECT_EQ(first.output().completions[0].finish_reason, FinishReason::abort);
  for (RequestStream& stream : streams)
    EXPECT_EQ(read_all(stream, random).completions[0].finish_reason, FinishReason::abort);
}

TEST(Hidden6_4_Client, ADeadEngineEndsEveryStreamWithItsError) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 10; ++round) {
    const int64_t fatal = random.integer(0, 6);
    const std::string where = random.integer(0, 1) ? "submit" : "collect";
    ThreadEngineClient client(engine_of(fake_config(), static_cast<int>(random.integer(1, 3)),
                                        [fatal, where](std::string_view call, int64_t step) {
                                          if (call == where && step == fatal)
                                            throw std::runtime_error("no power");
                                        }));
    std::vector<RequestStream> streams;
    try {
      for (int i = 0; i < 4; ++i) streams.push_back(client.submit(token_request({1, i}, 40)));
    } catch (const EngineUnavailable&) {  // it died before
    }
    ASSERT_FALSE(streams.empty());
    for (RequestStream& stream : streams) {
      const CompletionOutput completion = read_all(stream, random).completions.at(0);
      EXPECT_EQ(completion.finish_reason, FinishReason::error);
      EXPECT_NE(completion.error.find("no power"), std::string::npos) << completion.error;
    }
    EXPECT_EQ(client.stats().error, "no power");
    EXPECT_THROW(client.submit(token_request({1}, 1)), EngineUnavailable);
  }
}

TEST(Hidden6_4_Client, PausedItSleepsAndGoesOnWhereItWas) {
  Random random;
  ThreadEngineClient client(engine_of(long_config()));
  RequestStream stream = client.submit(token_request({5}, 300));
  client.pause();
  const auto processor_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  const double before = processor_seconds();
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(processor_seconds() - before, 0.1) << "a paused loop is busy";
  client.resume();
  EXPECT_EQ(read_all(stream, random).completions[0].token_ids, expected_tokens({5}, 300));
}

}  // namespace
}  // namespace ladder
