// Several API servers in front of one engine: what a client sees, and what becomes of it when processes are killed.
//
// Each test starts `ladder serve` anew, which takes most of its time.
#ifdef LADDER_HAS_SERVER
#include <algorithm>
#include <atomic>
#include <future>

#include "tests/cli/running_server.h"
#include "tests/step6_engine/process/open_files.h"

namespace ladder::testing {
namespace {

std::vector<std::string> with_servers(int count, std::vector<std::string> more = {}) {
  more.push_back("--api-server-count=" + std::to_string(count));
  more.push_back("--num-kv-blocks=1024");
  return more;
}

Json body(int64_t max_tokens, bool stream, int64_t seed = 1) {
  return {{"prompt", "One day"}, {"max_tokens", max_tokens}, {"ignore_eos", true},
          {"seed", seed},        {"temperature", 1.0},       {"stream", stream}};
}

std::string text_of(const std::string& answer) {
  const Json json = Json::parse(body_of(answer), nullptr, false);
  return json.is_object() && json.contains("choices") ? json["choices"][0]["text"].get<std::string>()
                                                      : answer;
}

// While the others are stopped this server alone takes connections.
class OnlyThisOne {
 public:
  OnlyThisOne(const RunningServer& server, int pid) {
    for (const int other : server.children("api-server"))
      if (other != pid) others_.push_back(other);
    for (const int other : others_) ::kill(other, SIGSTOP);
    for (const int other : others_) EXPECT_TRUE(eventually([other] { return process_state(other) == 'T'; }));
  }
  ~OnlyThisOne() {
    for (const int other : others_) ::kill(other, SIGCONT);
  }

 private:
  std::vector<int> others_;
};

// A stream of which the first token has come.
RawClient begun_stream(const RunningServer& server, int64_t max_tokens) {
  RawClient client(server.port());
  EXPECT_TRUE(client.send(RunningServer::completion(body(max_tokens, true))));
  EXPECT_TRUE(client.receive_until("data: ")) << client.got();
  return client;
}

TEST(Cli_ApiServers, AnswersAreThoseOfOneServer) {
  constexpr int kRequests = 24;
  std::vector<std::string> expected;
  for (const int count : {1, 2, 4}) {
    RunningServer server(with_servers(count));
    ASSERT_TRUE(server.ready());
    EXPECT_EQ(server.children("api-server").size(), count == 1 ? 0u : static_cast<size_t>(count));
    std::vector<std::future<std::string>> answers;
    for (int i = 0; i < kRequests; ++i)
      answers.push_back(std::async(std::launch::async,
                                   [&server, i] { return text_of(server.post(body(8 + i, false, i))); }));
    std::vector<std::string> texts;
    for (auto& answer : answers) texts.push_back(answer.get());
    if (count == 1) expected = texts;
    EXPECT_EQ(texts, expected) << count;
    for (const int one : server.children("api-server")) {  // all of them tell the same
      const OnlyThisOne only(server, one);
      EXPECT_EQ(text_of(server.post(body(8, false, 0))), expected[0]);
      EXPECT_EQ(status_of(server.get("/health")), 200);
    }
    const double num_answers = kRequests + (count == 1 ? 0 : count);
    for (const int one : server.children("api-server")) {
      const OnlyThisOne only(server, one);
      EXPECT_TRUE(eventually([&] { return server.metric("request_success_total") == num_answers; }));
      EXPECT_EQ(server.metric("num_requests_running"), 0);
      EXPECT_NE(server.get("/metrics").find("process_open_fds"), std::string::npos);
    }
  }
}

TEST(Cli_ApiServers, AKilledServerTakesItsOwnRequestsAloneAndIsStartedAgain) {
  RunningServer server(with_servers(2));
  ASSERT_TRUE(server.ready());
  const std::vector<int> pids = server.children("api-server");
  ASSERT_EQ(pids.size(), 2u);
  std::vector<RawClient> lost, kept;
  {
    const OnlyThisOne only(server, pids[0]);
    for (int i = 0; i < 3; ++i) lost.push_back(begun_stream(server, 1500));
  }
  {
    const OnlyThisOne only(server, pids[1]);
    for (int i = 0; i < 3; ++i) kept.push_back(begun_stream(server, 300));
    ::kill(pids[0], SIGKILL);  // while it is stopped: nothing of it is sent meanwhile
  }
  EXPECT_EQ(status_of(server.post(body(4, false))), 200) << "the other one answers";
  for (RawClient& client : lost)
    EXPECT_EQ(client.rest().find("[DONE]"), std::string::npos) << "it had no time to be whole";
  for (RawClient& client : kept) EXPECT_TRUE(client.receive_until("[DONE]", 240s)) << client.got();
  EXPECT_TRUE(eventually([&] {
    return server.metric(
               "request_success_total{model_name=\"tinyworld\",engine=\"0\",finished_reason=\"abort\"}") == 3;
  }));
  EXPECT_TRUE(eventually([&] { return server.metric("kv_cache_usage_perc") == 0; }));
  EXPECT_EQ(server.metric("num_requests_running") + server.metric("num_requests_waiting"), 0);

  EXPECT_TRUE(eventually([&] { return server.children("api-server").size() == 2; }));
  for (const int one : server.children("api-server")) {
    EXPECT_NE(one, pids[0]);
    const OnlyThisOne only(server, one);
    EXPECT_EQ(status_of(server.post(body(4, false))), 200) << "the new one too";
  }
  const std::string said = server.err();
  EXPECT_NE(said.find("ladder: API server"), said.npos) << said;
  EXPECT_NE(said.find("(pid " + std::to_string(pids[0]) + ") was ended by SIGKILL"), said.npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(Cli_ApiServers, AServerToldToStopDrainsAllOfThem) {
  for (const bool engine_process : {false, true}) {
    std::vector<std::string> flags = {"--drain-timeout=300"};  // however long 400 tokens take here
    if (engine_process) flags.push_back("--engine-process");
    RunningServer server(with_servers(2, flags));
    ASSERT_TRUE(server.ready());
    std::vector<RawClient> streams;
    for (const int one : server.children("api-server")) {
      const OnlyThisOne only(server, one);
      streams.push_back(begun_stream(server, 400));
    }
    server.kill(SIGTERM);
    EXPECT_TRUE(eventually([&] { return !RawClient(server.port()).connected(); })) << "nobody new is taken";
    for (RawClient& stream : streams) {
      while (stream.receive(0ms)) {
      }
      EXPECT_EQ(stream.got().find("[DONE]"), std::string::npos) << "while the others are still answered";
      EXPECT_TRUE(stream.receive_until("[DONE]", 240s)) << stream.got();
      EXPECT_NE(stream.got().find("\"finish_reason\":\"length\""), std::string::npos);
    }
    EXPECT_EQ(server.exit_code(), 0) << server.err();
    EXPECT_TRUE(children_of(server.pid()).empty());
  }
}

TEST(Cli_ApiServers, DrainingHasAnEnd) {
  RunningServer server(with_servers(2, {"--drain-timeout=0.2"}));
  ASSERT_TRUE(server.ready());
  RawClient stream = begun_stream(server, 1900);
  server.kill(SIGTERM);
  EXPECT_TRUE(stream.receive_until("\"finish_reason\":\"abort\"")) << stream.got();
  EXPECT_EQ(server.exit_code(), 0) << server.err();
}

TEST(Cli_ApiServers, AKilledParentLeavesNoServer) {
  RunningServer server(with_servers(2, {"--engine-process"}));
  ASSERT_TRUE(server.ready());
  const std::set<int> children = children_of(server.pid());
  ASSERT_EQ(children.size(), 3u);
  RawClient stream = begun_stream(server, 1900);
  server.kill(SIGKILL);
  for (const int child : children)
    EXPECT_TRUE(eventually([child] { return process_state(child) == 0 || process_state(child) == 'Z'; }))
        << child;
  EXPECT_TRUE(eventually([&] { return !RawClient(server.port()).connected(); })) << "the port is free";
}

// The engine computes one sequence at a time, so after the first one everything waits.
TEST(Cli_ApiServers, TheQueueIsBoundedForAllServersTogether) {
  RunningServer server(with_servers(3, {"--max-num-seqs=1", "--max-num-queued-reqs=4"}));
  ASSERT_TRUE(server.ready());
  RawClient running = begun_stream(server, 2000);
  constexpr int kRequests = 40;
  std::vector<RawClient> clients;
  for (int i = 0; i < kRequests; ++i) clients.emplace_back(server.port());
  for (RawClient& client : clients) client.send(RunningServer::completion(body(4, false)));
  int64_t num_refused = 0;
  EXPECT_TRUE(eventually([&] {
    num_refused = 0;
    for (RawClient& client : clients) {
      if (!client.closed()) client.receive(0ms);
      num_refused += status_of(client.got()) == 429;
    }
    return num_refused == kRequests - 4;
  })) << num_refused
      << " were refused";
  running.close();
  for (RawClient& client : clients) {
    const int status = status_of(client.answer());
    num_refused -= status == 429;
    EXPECT_TRUE(status == 200 || status == 429) << status;
  }
  EXPECT_EQ(num_refused, 0) << "and those that waited were answered";
}

TEST(Cli_ApiServers, EveryServerTellsOfTheEnginesDeathAndTheParentSaysItOnce) {
  RunningServer server(with_servers(2, {"--engine-process"}));
  ASSERT_TRUE(server.ready());
  const std::vector<int> engine = server.children("engine-process");
  ASSERT_EQ(engine.size(), 1u);
  RawClient stream = begun_stream(server, 1900);
  ::kill(engine[0], SIGKILL);
  EXPECT_TRUE(stream.receive_until("[DONE]")) << stream.got();
  EXPECT_NE(stream.got().find("the engine has failed"), std::string::npos) << stream.got();
  for (const int one : server.children("api-server")) {
    const OnlyThisOne only(server, one);
    EXPECT_TRUE(eventually([&] { return status_of(server.get("/health")) == 503; }));
    EXPECT_EQ(status_of(server.post(body(4, false))), 503);
  }
  EXPECT_TRUE(eventually([&] { return server.err().find("the engine has died") != std::string::npos; }));
  const std::string said = server.err();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0);
}

// Whoever starts the program hears of it, once, and nothing listens.
TEST(Cli_ApiServers, WhatKeepsAServerFromServingIsTheUsersError) {
  const std::vector<std::string> serve = {"serve", "--port=0", "--num-kv-blocks=64", "--api-server-count=3"};
  for (const auto& [flags, word] : {std::pair<std::vector<std::string>, std::string>{
                                        {"--ssl-certfile=/none", "--ssl-keyfile=/none"}, "/none"},
                                    {{"--root-path=llm"}, "--root-path"},
                                    {{"--host=no such host"}, "--host"}}) {
    std::vector<std::string> words = serve;
    words.insert(words.end(), flags.begin(), flags.end());
    expect_refused(run_binary(words), word);
  }
  expect_refused(run_binary({"serve", "--api-server-count=0"}), "--api-server-count");
}

TEST(Cli_ApiServers, IsNoCommandForUsers) {
  EXPECT_EQ(run_binary({"--help"}).out.find("api-server"), std::string::npos);
  const BinaryResult result = run_binary({"api-server", "--fd", "700"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--fd 700: expected a connected socket"), std::string::npos) << result.err;
}

// A key from the environment is not for everybody to see who looks at processes.
TEST(Cli_ApiServers, AKeyOfTheEnvironmentStaysThere) {
  setenv("LADDER_API_KEY", "a-secret", 1);
  RunningServer server(with_servers(2));
  unsetenv("LADDER_API_KEY");
  ASSERT_TRUE(server.ready());
  EXPECT_EQ(status_of(server.post(body(4, false))), 401);
  for (const int child : server.children("api-server"))
    EXPECT_EQ(read_file("/proc/" + std::to_string(child) + "/cmdline").find("a-secret"), std::string::npos);
}

}  // namespace
}  // namespace ladder::testing
#endif
