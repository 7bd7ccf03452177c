// The workload of sessions: what turns are made of and when they are sent; and what balancers make of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <sstream>
#include <vector>

#include "cli/bench/session_load.h"
#include "step1_layers/core/error.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/cli/program.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/support/temporary_folder.h"

namespace ladder::testing {
namespace {

using Tokens = std::vector<int32_t>;
using Clock = std::chrono::steady_clock;

// Keeps every prompt, and how it continues what was said in a turn that had ended by then.
class WatchedClient final : public EngineClient {
 public:
  struct Ended {
    Tokens tokens;  // prompt and answer
    int64_t session = 0, turn = 0;
    Clock::time_point time;
  };
  struct Sent {
    Tokens prompt;
    int64_t session = 0, turn = 0;  // by what it continues
    double seconds = 0;             // since that ended
  };

  RequestStream submit(const Request& request, std::function<void()> on_ready) override {
    Sent sent{.prompt = request.prompt_token_ids};
    const auto before = std::ranges::find_if(ended_, [&](const Ended& ended) {
      return sent.prompt.size() > ended.tokens.size() &&
             std::ranges::equal(ended.tokens, std::span(sent.prompt).first(ended.tokens.size()));
    });
    if (before == ended_.end()) {
      sent.session = num_sessions++;
    } else {
      sent.session = before->session;
      sent.turn = before->turn + 1;
      sent.seconds = std::chrono::duration<double>(Clock::now() - before->time).count();
      ended_.erase(before);
    }
    all.push_back(sent);
    most_under_way = std::max(most_under_way, ++num_under_way_);
    return inner_.submit(request, std::move(on_ready));
  }
  void on_output(const RequestOutput& output) {
    const auto sent = std::ranges::find(all, output.prompt_token_ids, &Sent::prompt);
    ASSERT_NE(sent, all.end());
    Tokens tokens = output.prompt_token_ids;
    const Tokens& answer = output.completions.at(0).token_ids;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    ended_.push_back({tokens, sent->session, sent->turn, Clock::now()});
    --num_under_way_;
  }
  void abort(const RequestId& id) override { inner_.abort(id); }
  EngineStats stats() const override { return inner_.stats(); }
  void pause() override { inner_.pause(); }
  void resume() override { inner_.resume(); }
  bool reset_prefix_cache() override { return inner_.reset_prefix_cache(); }
  void stop(std::chrono::milliseconds drain) override { inner_.stop(drain); }

  std::vector<Sent> all;  // in the order in which they came
  int64_t num_sessions = 0, most_under_way = 0;

 private:
  ThreadEngineClient inner_{
      std::make_unique<Engine>(std::make_unique<FakeExecutor>(mixed, 1), fake_config(), nullptr)};
  std::vector<Ended> ended_;  // and not continued
  int64_t num_under_way_ = 0;
};

SessionLoad small_load(int64_t num_sessions, int64_t num_turns, int64_t max_concurrency,
                       double think_seconds = 0) {
  return {.sessions = make_growing_sessions(num_sessions, 3,
                                            {.num_turns = num_turns,
                                             .min_new_tokens = 2,
                                             .max_new_tokens = 7,
                                             .min_output = 1,
                                             .max_output = 8,
                                             .think_seconds = think_seconds}),
          .max_concurrency = max_concurrency,
          .vocab_size = kFakeVocab,
          .temperature = 0,
          .seed = 5};
}

void run(WatchedClient& client, const SessionLoad& load) {
  run_sessions(client, load, [&](const RequestOutput& output) { client.on_output(output); });
}

TEST(Cli_Sessions, ATurnIsAllThatWasSaidWithTheAnswerThatCameAndNewTokens) {
  WatchedClient client;
  const SessionLoad load = small_load(6, 4, 0);
  run(client, load);
  ASSERT_EQ(client.all.size(), 24u);
  EXPECT_EQ(client.num_sessions, 6) << "turns that continue nothing that was answered";
  for (const auto& sent : client.all) {
    const PlannedSession& plan = load.sessions.at(static_cast<size_t>(sent.session));
    int64_t expected = plan.at(static_cast<size_t>(sent.turn)).num_new_tokens;
    for (int64_t turn = 0; turn < sent.turn; ++turn)
      expected += plan[static_cast<size_t>(turn)].num_new_tokens + plan[static_cast<size_t>(turn)].num_output;
    EXPECT_EQ(std::ssize(sent.prompt), expected) << "session " << sent.session << ", turn " << sent.turn;
  }
}

TEST(Cli_Sessions, NoMoreAreUnderWayThanMayBe) {
  WatchedClient one, two, all;
  run(one, small_load(5, 3, 1));
  run(two, small_load(5, 3, 2));
  run(all, small_load(5, 3, 0));
  EXPECT_EQ(one.most_under_way, 1);
  EXPECT_EQ(two.most_under_way, 2);
  EXPECT_EQ(all.most_under_way, 5);
  for (size_t i = 0; i < one.all.size(); ++i) {
    EXPECT_EQ(one.all[i].session, static_cast<int64_t>(i / 3)) << "one after the other";
    EXPECT_EQ(one.all[i].turn, static_cast<int64_t>(i % 3));
  }
}

TEST(Cli_Sessions, WhatIsSaidDoesNotDependOnWhoIsFaster) {
  const auto prompts = [](int64_t max_concurrency) {
    WatchedClient client;
    run(client, small_load(5, 3, max_concurrency));
    std::vector<Tokens> prompts;
    for (const auto& sent : client.all) prompts.push_back(sent.prompt);
    std::ranges::sort(prompts);
    return prompts;
  };
  EXPECT_EQ(prompts(3), prompts(1));
  EXPECT_EQ(prompts(0), prompts(1));
}

TEST(Cli_Sessions, AUserThinksBeforeTheNextTurn) {
  WatchedClient client;
  const SessionLoad load = small_load(4, 3, 2, 0.02);
  run(client, load);
  ASSERT_EQ(client.all.size(), 12u);
  for (const auto& sent : client.all)
    if (sent.turn > 0) {
      EXPECT_GE(
          sent.seconds,
          load.sessions[static_cast<size_t>(sent.session)][static_cast<size_t>(sent.turn)].think_seconds);
    }
}

TEST(Cli_Sessions, WhatIsThrownEndsThem) {
  WatchedClient client;
  EXPECT_THROW(run_sessions(client, small_load(4, 3, 2), [](const RequestOutput&) { throw Error("enough"); }),
               Error);
  WatchedClient refusing;
  EXPECT_THROW(run(refusing, small_load(1, 30, 0)), Error) << "longer than max_model_len";
  EXPECT_GT(refusing.all.size(), 1u);
}

std::vector<std::string> throughput(std::vector<std::string> more) {
  std::vector<std::string> words = {"bench",     "throughput",   "--model",
                                    tinyworld(), "--device=cpu", "--num-kv-blocks=512"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kFiveSessions = {
    "--workload=sessions", "--sessions=5",        "--turns=3",           "--max-concurrency=1",
    "--min-prompt-len=60", "--max-prompt-len=80", "--min-output-len=10", "--max-output-len=20"};

// Of five sessions of three turns, one after the other.
Json measured(std::vector<std::string> more, const std::string& shown) {
  TemporaryFolder folder;
  const std::string json = (folder / "result.json").string();
  more.insert(more.end(), kFiveSessions.begin(), kFiveSessions.end());
  more.push_back("--json=" + json);
  const BinaryResult result = run_binary(throughput(more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find(shown), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("5 of 3 turns, 1 at a time"), std::string::npos) << result.out;
  return Json::parse(read_file(json)).at("results").at(0);
}

double hit_rate(const Json& result) {
  return result.at("cached_tokens").get<double>() / result.at("prompt_tokens").get<double>();
}

TEST(Cli_Sessions, OfOneEngineFindWhatWasSaidBefore) {
  const Json result = measured({}, "prompt tokens found in the cache");
  EXPECT_EQ(result.at("requests"), 15);
  // A third turn's prompt is two turns and its own words; whole blocks are found.
  EXPECT_GT(hit_rate(result), 0.4);
  EXPECT_LT(hit_rate(result), 0.7);
}

// In turn among two replicas, with one session at a time, a turn comes where the one before the last one was.
TEST(Cli_Sessions, ThePrefixAwareBalancerKeepsThemWhereTheirPromptIs) {
  const Json in_turn =
      measured({"--data-parallel-size=2", "--data-parallel-balancer=round_robin"}, "balanced by round_robin");
  const Json by_prefix = measured({"--data-parallel-size=2", "--data-parallel-balancer=prefix_aware"},
                                  "balanced by prefix_aware");
  EXPECT_EQ(by_prefix.at("prompt_tokens"), in_turn.at("prompt_tokens"));
  EXPECT_EQ(by_prefix.at("output_tokens"), in_turn.at("output_tokens"));
  EXPECT_GT(hit_rate(by_prefix), hit_rate(in_turn) + 0.2);
}

// The replicas' numbers are told after the answers.
TEST(Cli_Sessions, TheTableOfReplicasHasAllTokens) {
  const std::vector<std::string> small = {
      "--workload=sessions", "--sessions=3",       "--turns=1",          "--min-prompt-len=2",
      "--max-prompt-len=2",  "--min-output-len=1", "--max-output-len=9", "--data-parallel-size=2"};
  const BinaryResult result = run_binary(throughput(small));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  int64_t all = -1, sum = 0;
  std::istringstream lines(result.out);
  for (std::string line, word; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t number = 0, tokens = 0;
    if (line.starts_with("output tokens "))
      words >> word >> word >> all;
    else if (words >> number >> tokens)
      sum += tokens;
  }
  EXPECT_EQ(sum, all) << result.out;
}

// A file of no weights: that is said only where the sessions fit.
TEST(Cli_Sessions, ThatAreTooLongAreRefusedBeforeAModelIsLoaded) {
  TemporaryFolder folder;
  for (const auto& file : std::filesystem::directory_iterator(tinyworld()))
    if (file.path().extension() != ".safetensors")
      std::filesystem::copy(file.path(), folder.path() / file.path().filename());
  write_file(folder / "model.safetensors", std::string_view("\2\0\0\0\0\0\0\0{}", 10));
  const auto refused = [&](const char* replicas, const char* turns, const char* why) {
    expect_refused(run_binary({"bench", "throughput", "--model", folder.path().string(), "--device=cpu",
                               replicas, "--workload=sessions", "--max-model-len=400", "--min-prompt-len=50",
                               "--max-prompt-len=50", "--max-output-len=200", turns}),
                   why);
  };
  for (const char* replicas : {"--data-parallel-size=1", "--data-parallel-size=2"}) {
    refused(replicas, "--turns=9", "--max-model-len is 400");
    refused(replicas, "--turns=1", "the weights do not fit");
  }
}

TEST(Cli_Sessions, FlagsOfTheOtherWorkloadAreRefused) {
  expect_refused(run_binary(throughput({"--turns=3"})), "--turns");
  expect_refused(run_binary(throughput({"--max-concurrency=3", "--workload=independent"})),
                 "--max-concurrency");
  expect_refused(run_binary(throughput({"--workload=sessions", "--num-requests=3"})), "--num-requests");
  expect_refused(run_binary(throughput({"--workload=session"})), "--workload");
  expect_refused(run_binary(throughput({"--workload=sessions", "--sessions=0"})), "--sessions");
  expect_refused(run_binary(throughput({"--workload=sessions", "--think-time=-1"})), "--think-time");
  expect_refused(run_binary(throughput({"--workload=sessions", "--min-output-len=500"})),
                 "--max-output-len 384");
  expect_refused(run_binary(throughput({"--workload=sessions"})), "--max-model-len");
  expect_refused(run_binary(throughput({"--workload=sessions", "--communication-share"})),
                 "--communication-share: expected one engine");
  expect_refused(run_binary(throughput({"--communication-share"})), "--communication-share: on a CPU");
}

}  // namespace
}  // namespace ladder::testing
