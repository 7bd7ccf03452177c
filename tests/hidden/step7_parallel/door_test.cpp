// Task 7.7.door: fleets of drawn sizes, a replica that dies, and what readers hear.
#include <gtest/gtest.h>

#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/data/door_engines.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using namespace ladder::testing;

// All of a stream, by the updates: the tokens of each completion, and how often it was said that one has failed.
struct Heard {
  std::vector<std::vector<int32_t>> tokens;
  int num_failures = 0;
  RequestOutput output;
};
Heard hear(RequestStream& stream, size_t num_completions = 1) {
  Heard heard;
  heard.tokens.resize(num_completions);
  while (!stream.ended()) {
    std::optional<StreamUpdate> update = stream.next(60s);
    if (!update) throw std::runtime_error("nothing came for a minute");
    for (const CompletionUpdate& one : update->updates) {
      auto& tokens = heard.tokens.at(static_cast<size_t>(one.completion));
      tokens.insert(tokens.end(), one.token_ids.begin(), one.token_ids.end());
      heard.num_failures += one.finish_reason == FinishReason::error;
    }
    if (update->output) heard.output = std::move(*update->output);
  }
  return heard;
}

// Of requests that wait in a paused fleet; then one replica dies in its first step, and lives again.
TEST(Hidden7_7_Door, WhatNobodyHasReadIsAnsweredByAnother) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 10; ++round) {
    const auto num_replicas = static_cast<int>(random.integer(2, 5));
    Faults faults;
    DataParallelOptions options = options_for(num_replicas, [&](int number) {
      return fake_engine(static_cast<int>(random.integer(1, 3)), faults.of(number));
    });
    options.balancer = random.one_of<std::string>({"round_robin", "queue_length", "prefix_aware"});
    DataParallelClient client(std::move(options));
    client.pause();
    std::vector<Request> requests;
    std::vector<RequestStream> streams;
    for (int64_t i = random.integer(1, 20); i > 0; --i) {
      requests.push_back(
          token_request({1, static_cast<int32_t>(random.integer(0, 900))}, random.integer(1, 30)));
      requests.back().sampling.n = static_cast<int32_t>(random.integer(1, 3));
      streams.push_back(client.submit(requests.back()));
    }
    faults.broken[static_cast<size_t>(random.integer(0, num_replicas - 1))] = true;
    client.resume();
    for (size_t i = 0; i < streams.size(); ++i) {
      const auto num_completions = static_cast<size_t>(requests[i].sampling.n);
      const Heard heard = hear(streams[i], num_completions);
      EXPECT_EQ(heard.num_failures, 0) << "of a try that another one has mended";
      ASSERT_EQ(heard.output.completions.size(), num_completions);
      for (size_t c = 0; c < num_completions; ++c) {
        EXPECT_EQ(heard.tokens[c],
                  expected_tokens(requests[i].prompt_token_ids, *requests[i].sampling.max_tokens));
        EXPECT_EQ(heard.output.completions[c].token_ids, heard.tokens[c]);
        EXPECT_EQ(heard.output.completions[c].finish_reason, FinishReason::length);
      }
    }
    EXPECT_TRUE(becomes_idle(client));
    EXPECT_EQ(client.stats().scheduler.num_used_blocks, 0);
  }
}

TEST(Hidden7_7_Door, HalfAnAnswerEndsWithAnErrorAndWhatItHad) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 5; ++round) {
    const auto num_replicas = static_cast<int>(random.integer(2, 4));
    Faults faults;
    DataParallelClient client(
        options_for(num_replicas, [&](int number) { return endless_engine(faults.of(number)); }));
    std::vector<RequestStream> streams;  // the i-th is replica i's
    for (int i = 0; i < num_replicas; ++i) streams.push_back(client.submit(endless_request()));
    std::vector<std::vector<int32_t>> begun;
    for (RequestStream& stream : streams) begun.push_back(stream.next(60s).value().updates.at(0).token_ids);
    const auto dead = static_cast<size_t>(random.integer(0, num_replicas - 1));
    faults.broken[dead] = true;
    const Heard heard = hear(streams[dead]);
    std::vector<int32_t> tokens = begun[dead];
    tokens.insert(tokens.end(), heard.tokens[0].begin(), heard.tokens[0].end());
    EXPECT_EQ(heard.num_failures, 1);
    EXPECT_EQ(heard.output.completions.at(0).finish_reason, FinishReason::error);
    EXPECT_EQ(heard.output.completions[0].error, "the lamp went out");
    EXPECT_EQ(heard.output.completions[0].token_ids, tokens);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (i == dead) continue;
      EXPECT_TRUE(streams[i].next(60s).has_value()) << "replica " << i << " does not go on";
      client.abort(streams[i].request_id());
      EXPECT_EQ(hear(streams[i]).output.completions.at(0).finish_reason, FinishReason::abort);
    }
  }
}

// More replicas than tries: who kills engines ends after two of them, and all that were there serve again.
TEST(Hidden7_7_Door, APoisonKillsTwoHoweverManyThereAre) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  const auto num_replicas = static_cast<int>(random.integer(3, 6)),
             poison = static_cast<int>(random.integer(1, 800));
  std::atomic<int> num_deaths = 0;
  DataParallelClient client(options_for(num_replicas, [&](int) {
    return std::make_unique<Engine>(
        std::make_unique<FakeExecutor>([&](const std::vector<int32_t>& ids, int64_t num_prompt_tokens) {
          if (ids[0] == poison) {
            ++num_deaths;
            throw std::runtime_error("bitter");
          }
          return mixed(ids, num_prompt_tokens);
        }),
        fake_config(), nullptr);
  }));
  for (int dose = 1; dose <= 3; ++dose) {
    ASSERT_TRUE(becomes([&] { return client.stats().num_live_replicas == num_replicas; }));
    RequestStream stream = client.submit(token_request({poison, dose}, 5));
    const Heard heard = hear(stream);
    EXPECT_EQ(heard.num_failures, 1);
    EXPECT_EQ(heard.output.completions.at(0).error, "bitter");
    EXPECT_EQ(num_deaths, 2 * dose);
    EXPECT_EQ(output_of(client.submit(token_request({900, dose}, 4))).completions.at(0).token_ids,
              expected_tokens({900, dose}, 4));
  }
}

// Nothing is taken while the fleet stands still; then by turns of its own, whichever replica it comes from.
TEST(Hidden7_7_Door, AReaderThatIsCalledHearsAllOfIt) {
  Random random(fresh_seed());
  SCOPED_TRACE(random.describe());
  DataParallelClient client(
      options_for(static_cast<int>(random.integer(1, 4)), [](int) { return fake_engine(2); }));
  struct Reader {
    std::atomic<int> num_calls = 0;
    Request request;
    std::optional<RequestStream> stream;
  };
  std::vector<std::unique_ptr<Reader>> readers;
  for (int32_t i = 0; i < 30; ++i) {
    auto& reader = *readers.emplace_back(std::make_unique<Reader>());
    reader.request = token_request({i, static_cast<int32_t>(random.integer(0, 900))}, random.integer(1, 30));
    reader.stream = client.submit(reader.request, [&reader] { ++reader.num_calls; });
  }
  for (const auto& reader : readers) {
    std::vector<int32_t> tokens;
    for (int read = 0; !reader->stream->ended();) {
      ASSERT_TRUE(becomes([&] { return reader->num_calls > read; })) << "nobody calls";
      read = reader->num_calls;
      while (const std::optional<StreamUpdate> update = reader->stream->next(0ns))
        for (const CompletionUpdate& one : update->updates)
          tokens.insert(tokens.end(), one.token_ids.begin(), one.token_ids.end());
    }
    EXPECT_EQ(tokens,
              expected_tokens(reader->request.prompt_token_ids, *reader->request.sampling.max_tokens));
  }
}

// Whoever has gone meanwhile is not sent to another replica.
TEST(Hidden7_7_Door, WhatWasAbortedIsNotTriedAgain) {
  Faults faults;
  DataParallelClient client(options_for(2, [&](int number) { return fake_engine(1, faults.of(number)); }));
  client.pause();
  std::vector<RequestStream> streams;
  for (int32_t i = 0; i < 8; ++i) streams.push_back(client.submit(token_request({7, i}, 20)));
  for (size_t i = 0; i < 8; i += 2) client.abort(streams[i].request_id());
  faults.broken[0] = true;
  client.resume();
  for (int32_t i = 0; i < 8; ++i) {
    const CompletionOutput answer = hear(streams[static_cast<size_t>(i)]).output.completions.at(0);
    if (i % 2 == 0) {
      EXPECT_NE(answer.finish_reason, FinishReason::length) << "request " << i;
    } else {
      EXPECT_EQ(answer.token_ids, expected_tokens({7, i}, 20));
    }
  }
  EXPECT_TRUE(becomes_idle(client));
}

}  // namespace
}  // namespace ladder
