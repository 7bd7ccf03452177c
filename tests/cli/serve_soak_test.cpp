// Many clients of `ladder serve` with several replicas and several API servers, some of which leave early, while processes
// are killed at random: every request is answered or its client is told, none twice, and nothing is left behind.
//
// LADDER_SOAK_REQUESTS: how many; a few hundred unless it says so (tools/long_check.sh asks for 20,000).
#ifdef LADDER_HAS_SERVER
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>

#include "tests/cli/soak_answers.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/support/memory_files.h"
#include "tests/support/numerics.h"

namespace ladder::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kClients = 16;
constexpr int kKinds = 32;  // of requests, each with its one right answer

Json request_of(int kind) {
  return {{"prompt", kind % 2 == 0 ? "One day" : "The favourite food of"},
          {"max_tokens", 2 + kind},
          {"ignore_eos", true},
          {"temperature", kind % 3 == 0 ? 0.0 : 1.0},
          {"seed", kind}};
}

// Kills processes, of which one is left to answer, and knows when it last did.
class Killer {
 public:
  explicit Killer(const RunningServer& server) : server_(server) {}

  void kill_one(const std::string& command) {
    const std::vector<int> found = server_.children(command);
    if (found.size() < 2) return;
    if (command == "engine-process" &&
        server_.get("/health").find("\"live_replicas\":2") == std::string::npos)
      return;
    last_ = Clock::now();
    ::kill(found[num_killed_ % found.size()], SIGKILL);
    last_ = Clock::now();
    ++num_killed_;
  }
  // Whether what began then may have been hit.
  bool may_have_hit(Clock::time_point begin) const { return last_.load() > begin - std::chrono::seconds(2); }
  size_t num_killed() const { return num_killed_; }

 private:
  const RunningServer& server_;
  std::atomic<Clock::time_point> last_{Clock::time_point{}};
  std::atomic<size_t> num_killed_ = 0;
};

struct Counts {
  std::atomic<int64_t> answered = 0, failed = 0, lost = 0, left = 0;
};

class Client {
 public:
  Client(const RunningServer& server, const std::vector<std::string>& expected, uint64_t seed)
      : server_(server), expected_(expected), random_(seed) {}

  void ask(const Killer& killer, Counts& counts) {
    const int kind = static_cast<int>(random_() % kKinds);
    const bool stream = random_() % 2 == 0;
    Json body = request_of(kind);
    body["stream"] = stream;
    const auto begin = Clock::now();
    RawClient client(server_.port());
    ASSERT_TRUE(client.connected()) << "somebody always listens";
    client.send(RunningServer::completion(body));
    if (random_() % 8 == 0) {  // it leaves: at once, or in the middle
      if (random_() % 2 == 0) client.receive(std::chrono::milliseconds(random_() % 50));
      ++counts.left;
      return;
    }
    client.rest(std::chrono::seconds(120));
    const Answer answer = read_answer(client.got(), stream);
    if (answer.whole && !answer.error) {
      EXPECT_EQ(answer.text, expected_[static_cast<size_t>(kind)]);
      EXPECT_EQ(answer.num_ends, 1) << client.got();
      ++counts.answered;
      return;
    }
    EXPECT_TRUE(killer.may_have_hit(begin)) << "nobody was killed; got: " << client.got();
    EXPECT_LE(answer.num_ends, 1) << client.got();
    ++(answer.whole ? counts.failed : counts.lost);
  }

 private:
  const RunningServer& server_;
  const std::vector<std::string>& expected_;
  std::mt19937_64 random_;
};

TEST(Cli_ServeSoak, EveryRequestIsAnsweredOnceOrItsClientIsToldWhoeverIsKilled) {
  const char* said = std::getenv("LADDER_SOAK_REQUESTS");
  const int64_t num_requests = said != nullptr ? std::atoll(said) : 300;
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::set<std::string> shm = files_of_memory();
  RunningServer server({"--api-server-count=2", "--data-parallel-size=2", "--data-parallel-backend=mp",
                        "--num-kv-blocks=512"});
  ASSERT_TRUE(server.ready());
  std::vector<std::string> expected;
  for (int kind = 0; kind < kKinds; ++kind) {
    const Json answer = Json::parse(body_of(server.post(request_of(kind))), nullptr, false);
    ASSERT_TRUE(answer.is_object() && answer.contains("choices"));
    expected.push_back(answer["choices"][0]["text"]);
  }

  Killer killer(server);
  Counts counts;
  std::atomic<int64_t> num_asked = 0;
  std::vector<std::thread> clients;
  for (uint64_t i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      Client client(server, expected, seed + i);
      while (num_asked++ < num_requests && !::testing::Test::HasFailure()) client.ask(killer, counts);
    });
  std::thread kills([&] {
    std::mt19937_64 random(seed);
    while (num_asked < num_requests && !::testing::Test::HasFailure()) {
      // The next one when some have been answered since: where a start takes long, kills may not outrun it.
      const int64_t enough = counts.answered + kClients;
      std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 900));
      if (!eventually([&] { return counts.answered >= enough || num_asked >= num_requests; }, 60s)) continue;
      killer.kill_one(random() % 2 == 0 ? "api-server" : "engine-process");
    }
  });
  for (std::thread& client : clients) client.join();
  kills.join();
  EXPECT_EQ(counts.answered + counts.failed + counts.lost + counts.left, num_requests);
  // A kill can cost one request of each client, and as many are answered before it; one in eight leaves by itself.
  EXPECT_GT(counts.answered, num_requests / 3);

  // The books, and that all are back.
  for (const char* command :
       {"api-server", "engine-process"})  // a replica that was killed often waits for a minute
    EXPECT_TRUE(eventually([&] { return server.children(command).size() == 2; }, 90s)) << command;
  EXPECT_TRUE(eventually([&] {
    return server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0 &&
           server.metric("kv_cache_usage_perc") == 0;
  })) << body_of(server.get("/metrics"));
  EXPECT_EQ(status_of(server.get("/health")), 200);
  EXPECT_TRUE(eventually(
      [&] { return server.get("/health").find("\"live_replicas\":2") != std::string::npos; }, 90s));
  for (int kind = 0; kind < kKinds; ++kind) {
    const Json answer = Json::parse(body_of(server.post(request_of(kind))), nullptr, false);
    EXPECT_TRUE(answer.is_object() && answer["choices"][0]["text"] == expected[static_cast<size_t>(kind)]);
  }

  const std::set<int> children = children_of(server.pid());
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
  for (const int child : children) EXPECT_EQ(process_state(child), 0) << child;
  EXPECT_FALSE(RawClient(server.port()).connected());
  EXPECT_EQ(files_of_memory(), shm);
  std::printf(
      "%ld requests: %ld answered, %ld failed, %ld lost with a server, %ld left early; %zu processes killed\n",
      static_cast<long>(num_requests), static_cast<long>(counts.answered), static_cast<long>(counts.failed),
      static_cast<long>(counts.lost), static_cast<long>(counts.left), killer.num_killed());
}

}  // namespace
}  // namespace ladder::testing
#endif
