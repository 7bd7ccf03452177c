// Task 7.7: several engines behind the functions of one.
#include "step7_parallel/data/data_parallel_client.h"

#include "tests/step6_engine/engine_client_cases.h"
#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/data/door_engines.h"

namespace ladder {
namespace {

using testing::becomes;
using testing::FakeExecutor;
using testing::Faults;
using testing::options_for;

testing::ClientPointer client_behind_a_door(std::unique_ptr<Engine> engine, EngineClientOptions options) {
  auto given = std::make_shared<std::unique_ptr<Engine>>(std::move(engine));
  DataParallelOptions door = options_for(1, [given](int) {
    LADDER_CHECK(*given != nullptr, "there is one engine");
    return std::move(*given);
  });
  door.max_num_queued_reqs = options.max_num_queued_reqs;
  door.max_num_queued_tokens = options.max_num_queued_tokens;
  return {new DataParallelClient(std::move(door)), std::default_delete<EngineClient>()};
}

INSTANTIATE_TEST_SUITE_P(Task7_7_Door, EngineClientTest, ::testing::Values(client_behind_a_door),
                         [](const auto&) { return "BehindADoor"; });

// Lines that replicas log.
class Log {
 public:
  std::function<void(const std::string&)> writer() {
    return [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  int count(const std::string& part) {
    std::lock_guard lock(mutex_);
    return static_cast<int>(std::ranges::count_if(
        lines_, [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

std::vector<int64_t> requests_of(DataParallelClient& client) {
  std::vector<int64_t> requests;
  for (const EngineStats& stats : client.replica_stats()) requests.push_back(stats.num_requests);
  return requests;
}

TEST(Task7_7_Door, EveryAnswerIsOneEnginesWhateverTheBalancer) {
  for (const BalancerRow& row : balancers()) {
    SCOPED_TRACE(row.name);
    for (const int num_replicas : {1, 2, 3}) {
      DataParallelOptions options = options_for(num_replicas, [](int) { return fake_engine(2); });
      options.balancer = row.name;
      DataParallelClient client(std::move(options));
      std::vector<RequestStream> streams;
      for (int32_t i = 0; i < 40; ++i)
        streams.push_back(client.submit(token_request({i % 7, i}, 1 + i % 20)));
      for (int32_t i = 0; i < 40; ++i)
        EXPECT_EQ(output_of(streams[static_cast<size_t>(i)]).completions.at(0).token_ids,
                  expected_tokens({i % 7, i}, 1 + i % 20));
      EXPECT_TRUE(becomes_idle(client));
      EXPECT_EQ(client.stats().metrics.num_requests_finished, 40);
    }
  }
}

TEST(Task7_7_Door, ADecisionSeesTheRequestsThatWereSentBefore) {
  DataParallelOptions options = options_for(3, [](int) { return endless_engine(); });
  options.balancer = "queue_length";
  DataParallelClient client(std::move(options));
  client.pause();
  std::vector<RequestStream> streams;
  for (int i = 0; i < 12; ++i) streams.push_back(client.submit(endless_request()));
  EXPECT_EQ(requests_of(client), std::vector<int64_t>({4, 4, 4}));
}

TEST(Task7_7_Door, NumbersAreSumsOfTheReplicas) {
  DataParallelClient client(options_for(3, [](int) { return fake_engine(); }));
  for (int i = 0; i < 10; ++i) output_of(client.submit(token_request({1, 2, 3}, 5)));
  ASSERT_TRUE(becomes_idle(client));
  const std::vector<EngineStats> each = client.replica_stats();
  ASSERT_EQ(each.size(), 3u);
  EngineStats sum;
  for (const EngineStats& one : each) add_stats(sum, one);
  EXPECT_EQ(each[0].metrics.num_requests_finished, 4);
  EXPECT_EQ(each[1].metrics.num_requests_finished, 3);
  const EngineStats all = client.stats();
  EXPECT_EQ(all.metrics.num_output_tokens, 50);
  EXPECT_EQ(all.metrics.num_output_tokens, sum.metrics.num_output_tokens);
  EXPECT_EQ(all.metrics.serving.time_to_first_token.counts, sum.metrics.serving.time_to_first_token.counts);
  EXPECT_EQ(all.scheduler.num_blocks, 3 * fake_config().batch.num_kv_blocks);
  EXPECT_EQ(all.num_replicas, 3);
  EXPECT_EQ(all.num_live_replicas, 3);
}

TEST(Task7_7_Door, TheQueueIsBoundedForAllReplicasTogether) {
  std::array<Gate, 2> gates;
  DataParallelOptions options =
      options_for(2, [&](int number) { return fake_engine(1, gates[static_cast<size_t>(number)].fault()); });
  options.max_num_queued_reqs = 4;
  DataParallelClient client(std::move(options));
  std::vector<RequestStream> streams;
  for (int i = 0; i < 2; ++i) streams.push_back(client.submit(token_request({1}, 3)));
  for (Gate& gate : gates) gate.wait_until_reached();
  EXPECT_THROW(
      {
        for (int i = 0; i < 9; ++i) streams.push_back(client.submit(token_request({1}, 3)));
      },
      QueueFull);
  EXPECT_GE(streams.size(), 4u);
  EXPECT_LE(streams.size(), 6u);
  EXPECT_FALSE(client.stats().queue_full.empty());
  for (Gate& gate : gates) gate.open();
  for (RequestStream& stream : streams) EXPECT_EQ(output_of(stream).completions[0].token_ids.size(), 3u);
}

TEST(Task7_7_Door, ADeathEndsWhatHadBegunAndSendsTheRestElsewhere) {
  Faults faults;
  Gate gate;
  Log log;
  DataParallelOptions options = options_for(2, [&](int number) {
    return number == 0 ? endless_engine(faults.of(0)) : endless_engine(faults.of(1));
  });
  options.log = log.writer();
  DataParallelClient client(std::move(options));
  client.pause();
  RequestStream begun = client.submit(endless_request());  // replica 0
  RequestStream other = client.submit(endless_request());  // replica 1
  client.resume();
  begun.next();
  other.next();
  client.pause();
  faults.broken[0] = true;
  RequestStream not_begun = client.submit(token_request({5}, 3));  // replica 0, before its death
  client.resume();
  const RequestOutput output = output_of(begun);
  EXPECT_EQ(output.completions[0].finish_reason, FinishReason::error);
  EXPECT_EQ(output.completions[0].error, "the lamp went out");
  EXPECT_FALSE(output.completions[0].token_ids.empty());
  EXPECT_EQ(output_of(not_begun).completions[0].finish_reason, FinishReason::length);
  EXPECT_TRUE(other.next().has_value());  // undisturbed
  EXPECT_TRUE(becomes([&] { return client.stats().num_live_replicas == 2; }));
  EXPECT_EQ(faults.num_started[0], 2);
  EXPECT_EQ(faults.num_started[1], 1);
  EXPECT_EQ(log.count("replica 0: the lamp went out; it is started again in 0.0 s"), 1);
  EXPECT_EQ(log.count("replica 0: serves again"), 1);
  EXPECT_TRUE(client.stats().error.empty());
  // It takes its share again.
  std::vector<RequestStream> more;
  for (int i = 0; i < 4; ++i) more.push_back(client.submit(endless_request()));
  EXPECT_EQ(requests_of(client), std::vector<int64_t>({2, 3}));
}

// The engine that gets a request first dies behind its eighth token; where the answer is streamed, not before its reader
// has got something: a replica that dies unread is no loss to a reader, and the door begins anew there too.
TEST(Task7_7_Door, AnAnswerThatIsReadWholeBeginsAnewElsewhere) {
  for (const bool output_only : {true, false}) {
    SCOPED_TRACE(output_only);
    std::atomic<int> num_reached = 0;
    std::atomic<bool> is_read = output_only;
    DataParallelClient client(options_for(2, [&](int) {
      return std::make_unique<Engine>(
          std::make_unique<FakeExecutor>([&](const std::vector<int32_t>& ids, int64_t) {
            if (ids.size() == 9 && num_reached++ == 0) {
              is_read.wait(false);
              throw std::runtime_error("the lamp went out");
            }
            return ids.back() + 1;
          }),
          fake_config(), nullptr);
    }));
    Request request = token_request({1}, 20);
    request.output_only = output_only;
    RequestStream stream = client.submit(request);
    int64_t num_streamed = 0;
    std::optional<RequestOutput> output;
    while (std::optional<StreamUpdate> update = stream.next()) {
      is_read = true;
      is_read.notify_all();
      for (const CompletionUpdate& one : update->updates) num_streamed += std::ssize(one.token_ids);
      if (update->output) output = std::move(update->output);
    }
    ASSERT_TRUE(output.has_value());
    const CompletionOutput& answer = output->completions.at(0);
    EXPECT_EQ(answer.finish_reason, output_only ? FinishReason::length : FinishReason::error);
    EXPECT_EQ(std::ssize(answer.token_ids), output_only ? 20 : 8);
    EXPECT_EQ(num_streamed, output_only ? 0 : 8);
    EXPECT_EQ(num_reached, output_only ? 2 : 1);
    const auto& num_ended = client.stats().metrics.serving.num_completions_ended;
    EXPECT_EQ(num_ended[static_cast<size_t>(answer.finish_reason)], 1);
    EXPECT_EQ(num_ended[static_cast<size_t>(FinishReason::error)], output_only ? 0 : 1);
  }
}

TEST(Task7_7_Door, ARequestThatKillsEnginesKillsTwoOfThem) {
  std::atomic<int> num_deaths = 0;
  DataParallelOptions options = options_for(4, [&](int) {
    return std::make_unique<Engine>(
        std::make_unique<FakeExecutor>([&](const std::vector<int32_t>& ids, int64_t) {
          if (ids[0] == 666) {
            ++num_deaths;
            throw std::runtime_error("poison");
          }
          return ids.back() + 1;
        }),
        fake_config(), nullptr);
  });
  DataParallelClient client(std::move(options));
  const RequestOutput output = output_of(client.submit(token_request({666}, 5)));
  EXPECT_EQ(output.completions[0].finish_reason, FinishReason::error);
  EXPECT_EQ(output.completions[0].error, "poison");
  EXPECT_EQ(num_deaths, 2);
  EXPECT_EQ(output_of(client.submit(token_request({1}, 2))).completions[0].token_ids,
            std::vector<int32_t>({2, 3}));
}

// An engine that dies between the door's decision and its submit(): it has taken nothing.
class RefusesOnce final : public EngineClient {
 public:
  RefusesOnce(std::unique_ptr<EngineClient> engine, std::atomic<bool>& refuses)
      : engine_(std::move(engine)), refuses_(refuses) {}
  RequestStream submit(const Request& request, std::function<void()> on_ready) override {
    if (refuses_.exchange(false)) throw EngineUnavailable("the engine has died");
    return engine_->submit(request, std::move(on_ready));
  }
  void abort(const RequestId& id) override { engine_->abort(id); }
  EngineStats stats() const override { return engine_->stats(); }
  void pause() override { engine_->pause(); }
  void resume() override { engine_->resume(); }
  bool reset_prefix_cache() override { return engine_->reset_prefix_cache(); }
  void stop(std::chrono::milliseconds drain) override { engine_->stop(drain); }

 private:
  const std::unique_ptr<EngineClient> engine_;
  std::atomic<bool>& refuses_;
};

TEST(Task7_7_Door, AReplicaThatRefusesARequestIsNoAttemptAtIt) {
  std::atomic<bool> refuses = true;
  Faults faults;
  DataParallelOptions options = options_for(3, [&](int number) { return fake_engine(1, faults.of(number)); });
  options.start = [&, start = std::move(options.start)](int number) {
    StartedEngine started = start(number);
    if (number == 0) started.client = std::make_unique<RefusesOnce>(std::move(started.client), refuses);
    return started;
  };
  DataParallelClient client(std::move(options));
  faults.broken[1] = true;
  const RequestOutput output = output_of(client.submit(token_request({5}, 3)));  // 0 refuses, 1 dies
  EXPECT_FALSE(refuses || faults.broken[1]);
  EXPECT_EQ(output.completions[0].finish_reason, FinishReason::length) << output.completions[0].error;
  EXPECT_EQ(output.completions[0].token_ids, expected_tokens({5}, 3));
}

TEST(Task7_7_Door, NumbersGoOnWhereAReplicaWasStartedAgain) {
  Faults faults;
  DataParallelOptions options = options_for(1, [&](int number) { return fake_engine(1, faults.of(number)); });
  options.first_pause = options.max_pause = 500ms;  // what is tried again finds none that lives
  DataParallelClient client(std::move(options));
  for (int i = 0; i < 3; ++i) output_of(client.submit(token_request({1, 2}, 4)));
  ASSERT_TRUE(becomes_idle(client));
  const int64_t num_steps = client.stats().metrics.num_steps;
  faults.broken[0] = true;
  EXPECT_EQ(output_of(client.submit(token_request({1}, 4))).completions[0].finish_reason,
            FinishReason::error);
  EXPECT_TRUE(becomes([&] { return faults.num_started[0] == 2 && client.stats().num_live_replicas == 1; }));
  EXPECT_EQ(output_of(client.submit(token_request({3}, 4))).completions[0].token_ids,
            expected_tokens({3}, 4));
  ASSERT_TRUE(becomes_idle(client));
  EXPECT_EQ(client.stats().metrics.num_output_tokens, 16);
  EXPECT_GT(client.stats().metrics.num_steps, num_steps);
  EXPECT_EQ(client.stats().scheduler.num_blocks, fake_config().batch.num_kv_blocks) << "a dead one has none";
}

TEST(Task7_7_Door, WhileNoneLivesThatIsWhatASubmitterHears) {
  Faults faults;
  std::atomic<bool> can_start = true;
  DataParallelOptions options = options_for(2, [&](int number) {
    LADDER_CHECK(can_start, "no lamp");
    return fake_engine(1, faults.of(number));
  });
  Log log;
  options.log = log.writer();
  DataParallelClient client(std::move(options));
  can_start = false;
  for (auto& broken : faults.broken) broken = true;
  output_of(client.submit(token_request({1}, 2)));  // by one and then the other
  EXPECT_TRUE(becomes([&] { return client.stats().num_live_replicas == 0; }));
  EXPECT_THROW(client.submit(token_request({1}, 2)), EngineUnavailable);
  EXPECT_EQ(client.stats().num_requests, 0);
  EXPECT_TRUE(becomes([&] { return log.count("replica 1: no lamp; it is started again") > 3; }))
      << "it gave up";
  EXPECT_EQ(client.replica_stats()[1].error, "no lamp");
  for (auto& broken : faults.broken) broken = false;
  can_start = true;
  EXPECT_TRUE(becomes([&] { return client.stats().num_live_replicas == 2; }));
  EXPECT_EQ(output_of(client.submit(token_request({3}, 4))).completions[0].token_ids,
            expected_tokens({3}, 4));
}

TEST(Task7_7_Door, APauseHoldsForAReplicaThatIsStartedMeanwhile) {
  Faults faults;
  DataParallelClient client(options_for(1, [&](int number) { return endless_engine(faults.of(number)); }));
  RequestStream stream = client.submit(endless_request());
  stream.next();
  faults.broken[0] = true;
  output_of(stream);
  client.pause();
  ASSERT_TRUE(becomes([&] { return faults.num_started[0] == 2 && client.stats().num_live_replicas == 1; }));
  RequestStream next = client.submit(token_request({1}, 2));
  EXPECT_FALSE(next.next(20ms).has_value());
  client.resume();
  EXPECT_EQ(output_of(next).completions[0].token_ids.size(), 2u);
}

TEST(Task7_7_Door, AReplicaThatMakesNoStepIsNotWaitedFor) {
  Gate gate;
  DataParallelOptions options = options_for(
      2, [&](int number) { return number == 0 ? endless_engine(gate.fault()) : endless_engine(); });
  options.stuck_after = 1s;
  Log log;
  options.log = log.writer();
  DataParallelClient client(std::move(options));
  RequestStream stuck = client.submit(endless_request());
  gate.wait_until_reached();
  EXPECT_TRUE(becomes([&] { return client.stats().num_live_replicas == 1; }));
  for (int i = 0; i < 3; ++i) output_of(client.submit(token_request({1}, 2)));
  gate.open();  // an engine in a thread of this process can only be waited for
  EXPECT_TRUE(becomes([&] { return client.stats().num_live_replicas == 2; }));
  EXPECT_EQ(log.count("replica 0: no step has ended for 1.0 s"), 1);
}

TEST(Task7_7_Door, WhatPreventsTheFirstStartIsThrown) {
  std::atomic<int> num_tries = 0;
  try {
    DataParallelClient client(options_for(3, [&](int number) {
      ++num_tries;
      LADDER_CHECK(number != 1, "replica 1 has no room");
      return fake_engine();
    }));
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "replica 1 has no room");
  }
  EXPECT_EQ(num_tries, 3);
  DataParallelOptions options = options_for(1, [](int) { return fake_engine(); });
  options.balancer = "best";
  EXPECT_THROW(DataParallelClient{std::move(options)}, Error);
}

// Two of three engines die again and again under requests of many threads.
TEST(Task7_7_Door, EveryRequestIsAnsweredOnceWhateverDies) {
  constexpr int kThreads = 4, kRequests = 150;
  Faults faults;
  DataParallelOptions options = options_for(3, [&](int number) { return fake_engine(2, faults.of(number)); });
  options.first_pause = 1ms;
  options.max_pause = 2ms;
  DataParallelClient client(std::move(options));
  testing::Random seeds;
  SCOPED_TRACE(seeds.describe());
  const auto seed = static_cast<uint32_t>(seeds.integer(0, 1 << 30));
  std::atomic<bool> done = false;
  std::atomic<int> num_whole = 0, num_failed = 0, num_aborted = 0;
  std::thread killer([&] {
    std::mt19937 random(seed);
    while (!done) {
      faults.broken[random() % 2] = true;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
    for (auto& broken : faults.broken) broken = false;
  });
  std::vector<std::thread> users;
  for (int thread = 0; thread < kThreads; ++thread)
    users.emplace_back([&, thread] {
      std::mt19937 random(seed + 1 + static_cast<uint32_t>(thread));
      for (int i = 0; i < kRequests; ++i) {
        Request request = token_request({thread, static_cast<int32_t>(random() % 5)},
                                        1 + static_cast<int64_t>(random() % 25));
        request.output_only = random() % 4 == 0;
        RequestStream stream = client.submit(request);
        if (random() % 8 == 0) client.abort(stream.request_id());
        std::vector<int32_t> streamed;
        bool failed = false;
        std::optional<RequestOutput> output;
        while (std::optional<StreamUpdate> update = stream.next()) {
          EXPECT_FALSE(output.has_value());
          for (const CompletionUpdate& one : update->updates) {
            failed = failed || one.finish_reason == FinishReason::error;
            streamed.insert(streamed.end(), one.token_ids.begin(), one.token_ids.end());
          }
          if (update->output) output = std::move(update->output);
        }
        const CompletionOutput& answer = output.value().completions.at(0);
        if (request.output_only)
          EXPECT_TRUE(streamed.empty());
        else
          EXPECT_EQ(answer.token_ids, streamed) << "a token twice, or of two tries";
        EXPECT_TRUE(!failed || answer.finish_reason == FinishReason::error)
            << "a failure that was mended was told";
        const auto expected = expected_tokens(request.prompt_token_ids, *request.sampling.max_tokens);
        ASSERT_LE(answer.token_ids.size(), expected.size());
        EXPECT_TRUE(std::ranges::equal(answer.token_ids, std::span(expected).first(answer.token_ids.size())));
        num_whole += answer.finish_reason == FinishReason::length;
        num_failed += answer.finish_reason == FinishReason::error;
        num_aborted += answer.finish_reason == FinishReason::abort;
      }
    });
  for (std::thread& user : users) user.join();
  done = true;
  killer.join();
  EXPECT_EQ(num_whole + num_failed + num_aborted, kThreads * kRequests);
  const auto& num_ended = client.stats().metrics.serving.num_completions_ended;
  EXPECT_EQ(num_ended[static_cast<size_t>(FinishReason::length)], num_whole);
  EXPECT_EQ(num_ended[static_cast<size_t>(FinishReason::error)], num_failed);
  EXPECT_EQ(num_ended[static_cast<size_t>(FinishReason::abort)], num_aborted);
  EXPECT_GT(num_whole, kThreads * kRequests / 4);
  EXPECT_GT(faults.num_started[0] + faults.num_started[1], 4) << "nothing died";
  EXPECT_TRUE(becomes_idle(client));
  EXPECT_TRUE(becomes([&] { return client.stats().num_live_replicas == 3; }));
  EXPECT_EQ(client.stats().scheduler.num_used_blocks, 0);
}

}  // namespace
}  // namespace ladder
