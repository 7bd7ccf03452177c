// Many clients of `ladder serve --disaggregate 1P1D`, while the server that computes prompts is killed, at any time and in the
// middle of transfers: every request is answered as by one server alone, since the other one can compute what does not come,
// and nothing is left behind.
//
// LADDER_SOAK_REQUESTS: how many, with kills until the last of them and clients that leave early; else a few hundred and one
// kill in the middle of a transfer (tools/long_check.sh asks for 10,000).
#ifdef LADDER_HAS_SERVER
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "tests/cli/soak_answers.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/support/memory_files.h"
#include "tests/support/narrow_model.h"
#include "tests/support/numerics.h"

namespace ladder::testing {
namespace {

constexpr int kClients = 8;

std::vector<std::string> flags_of_both() {
  return {"--model=" + narrow_model().string(), "--load-format=dummy", "--num-kv-blocks=512",
          "--max-model-len=512"};
}

// One that nobody has sent before: else the server that goes on may know its prompt already.
Json random_request(std::mt19937_64& random, int64_t number) {
  std::string prompt = "Story " + std::to_string(number) + ":";
  for (uint64_t words = 8 + random() % 80; words > 0; --words)
    prompt += " word" + std::to_string(random() % 50);
  return {{"prompt", prompt},   {"max_tokens", 1 + random() % 12},
          {"ignore_eos", true}, {"temperature", static_cast<double>(random() % 2)},
          {"seed", number},     {"stream", random() % 2 == 0}};
}

// One of the servers, as they are seen from outside; `index`: among those of its role.
class Part {
 public:
  Part(const RunningServer& router, const std::string& role, int index = 0)
      : router_(router), word_(role == "prefill" ? "--kv-role=producer" : "--kv-role=consumer") {
    const std::string metrics = body_of(router.get("/metrics"));
    const std::string mark = "backend_up{role=\"" + role + "\",url=\"http://127.0.0.1:";
    size_t at = metrics.find(mark);
    for (; index > 0 && at != metrics.npos; --index) at = metrics.find(mark, at + 1);
    EXPECT_NE(at, metrics.npos) << metrics;
    if (at != metrics.npos) port_ = static_cast<uint16_t>(std::stoi(metrics.substr(at + mark.size())));
  }

  int pid() const {  // of the only one of its role; 0: it is being started
    const std::vector<int> found = router_.children(word_);
    return found.size() == 1 ? found[0] : 0;
  }
  // Of its only engine; -1: it does not answer.
  double metric(const std::string& name) const {
    RawClient client(port_);
    client.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    const std::string text = client.answer(), mark = "\nladder:" + name + "{";
    const size_t at = text.find(mark);
    return at == text.npos ? -1 : std::stod(text.substr(text.find("} ", at) + 2));
  }
  // What an engine holds that has nothing to do.
  bool holds_nothing() const {
    for (const char* name : {"num_requests_running", "num_requests_waiting", "num_requests_waiting_for_kv",
                             "num_held_kv_blocks", "kv_cache_usage_perc"})
      if (metric(name) != 0) return false;
    return true;
  }

 private:
  const RunningServer& router_;
  const std::string word_;
  uint16_t port_ = 0;
};

struct Counts {
  std::atomic<int64_t> answered = 0, left = 0, killed = 0, killed_in_transfer = 0;
};

// Stops the one that computes prompts while the other one reads from it. False: it did not come to that.
bool stop_in_a_transfer(int producer, const Part& consumer, std::mt19937_64& random) {
  uint64_t most_pause = 0;  // longer and longer: a busy machine may need it to begin a transfer
  return eventually([&] {
    ::kill(producer, SIGSTOP);
    // Twice: what is told may be of a moment ago, and a load that was through by then does not stay.
    const auto loads = [&] { return consumer.metric("num_requests_waiting_for_kv") > 0; };
    if (eventually(loads, 50ms)) {
      std::this_thread::sleep_for(50ms);
      if (loads()) return true;
    }
    ::kill(producer, SIGCONT);
    most_pause += 5000;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % most_pause));
    return false;
  });
}

TEST(Cli_DisaggregatedSoak, EveryRequestIsAnsweredAsByOneServerWhenAPrefillServerIsKilled) {
  const char* said = std::getenv("LADDER_SOAK_REQUESTS");
  const int64_t num_requests = said != nullptr ? std::atoll(said) : 96;
  const bool is_long = said != nullptr;
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::set<std::string> shm = files_of_memory();
  RunningServer alone(flags_of_both());
  std::vector<std::string> flags = flags_of_both();
  flags.insert(flags.end(), {"--disaggregate=1P1D", "--min-remote-tokens=1", "--drain-timeout=5"});
  RunningServer server(flags);
  ASSERT_TRUE(alone.ready() && server.ready());
  const Part producer(server, "prefill"), consumer(server, "decode");

  Counts counts;
  std::atomic<int64_t> num_asked = 0;
  std::atomic<bool> is_out =
      false;  // the prefill server: most clients wait, or nearly all requests would do without it
  const auto goes_on = [&] { return num_asked < num_requests && !::testing::Test::HasFailure(); };
  std::vector<std::thread> clients;
  for (uint64_t i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      std::mt19937_64 random(seed + i);
      for (int64_t number = num_asked++; number < num_requests && !::testing::Test::HasFailure();
           number = num_asked++) {
        if (random() % 16 != 0) eventually([&] { return !is_out || ::testing::Test::HasFailure(); }, 120s);
        Json body = random_request(random, number);
        RawClient client(server.port());
        client.send(RunningServer::completion(body));
        if (is_long && random() % 8 == 0) {  // it leaves: at once, or in the middle
          if (random() % 2 == 0) client.receive(std::chrono::milliseconds(random() % 50));
          ++counts.left;
          continue;
        }
        client.rest(std::chrono::seconds(120));
        const Answer answer = read_answer(client.got(), body["stream"]);
        body["stream"] = false;
        const Answer expected = read_answer(alone.post(body), false);
        EXPECT_TRUE(answer.whole && !answer.error) << client.got() << server.err();
        EXPECT_EQ(answer.num_ends, 1) << client.got();
        EXPECT_EQ(answer.text, expected.text) << body;
        ++counts.answered;
      }
    });
  std::thread kills([&] {
    std::mt19937_64 random(seed + kClients);
    do {
      // The next one when some have been answered with it.
      const int64_t enough = counts.answered + (is_long ? 300 : 2 * kClients);
      eventually([&] { return counts.answered >= enough || !goes_on(); }, 120s);
      const int pid = producer.pid();
      if (pid == 0 || !goes_on()) continue;
      if (is_long) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
      if (!is_long || random() % 2 == 0)
        counts.killed_in_transfer += stop_in_a_transfer(pid, consumer, random);
      is_out = true;
      ::kill(pid, SIGKILL);
      ++counts.killed;
      EXPECT_TRUE(eventually(
          [&] { return producer.pid() != pid && producer.metric("num_requests_running") >= 0; }, 120s))
          << server.err();
      is_out = false;
    } while (is_long && goes_on());
  });
  for (std::thread& client : clients) client.join();
  kills.join();
  EXPECT_EQ(counts.answered + counts.left, num_requests);
  EXPECT_GT(counts.killed_in_transfer, 0);
  EXPECT_GT(server.metric("router_transfers_total"), static_cast<double>(num_requests) / 2);
  const double at_once = server.metric("router_at_once_transfers_total"),
               withdrawn = server.metric("router_withdrawn_total");
  EXPECT_GT(at_once, 0);

  // The books. What was kept for clients that have left comes back with its lease.
  EXPECT_TRUE(eventually([&] { return consumer.holds_nothing(); }));
  EXPECT_TRUE(eventually([&] { return producer.holds_nothing(); }, 90s));
  // A load that was killed fails, unless all but the last word had come.
  if (is_long) EXPECT_GT(consumer.metric("kv_transfer_failed_loads_total"), 0);
  EXPECT_GT(consumer.metric("external_prefix_cache_hits_total"), 0);

  const std::set<int> children = children_of(server.pid());
  server.kill(SIGTERM);
  EXPECT_EQ(server.exit_code(), 0) << server.err();
  for (const int child : children) EXPECT_EQ(process_state(child), 0) << child;
  EXPECT_EQ(files_of_memory(), shm);
  std::printf(
      "%ld requests: %ld answered, %ld left early; %ld times the prefill server was killed, %ld of them in a transfer; %.0f were "
      "told to both servers at once, %.0f of them in vain\n",
      static_cast<long>(num_requests), static_cast<long>(counts.answered), static_cast<long>(counts.left),
      static_cast<long>(counts.killed), static_cast<long>(counts.killed_in_transfer), at_once + withdrawn,
      withdrawn);
}

// What nobody has seen of an answer is begun anew at another server, and a stream ends with an error. Without the router nobody asks
// its servers any more: they end with it.
TEST(Cli_DisaggregatedSoak, EveryRequestEndsWhenADecodeServerIsKilledAndAllServersEndWithTheRouter) {
  constexpr int64_t kRequests = 64;
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RunningServer alone(flags_of_both());
  std::vector<std::string> flags = flags_of_both();
  flags.insert(flags.end(), {"--disaggregate=1P2D", "--min-remote-tokens=1", "--kv-lease=2"});
  RunningServer server(flags);
  ASSERT_TRUE(alone.ready() && server.ready());

  std::atomic<int64_t> num_asked = 0, num_answered = 0, num_cut = 0;
  std::vector<std::thread> clients;
  for (uint64_t i = 0; i < kClients; ++i)
    clients.emplace_back([&, i] {
      std::mt19937_64 random(seed + i);
      for (int64_t number = num_asked++; number < kRequests && !::testing::Test::HasFailure();
           number = num_asked++) {
        Json body = random_request(random, number);
        RawClient client(server.port());
        client.send(RunningServer::completion(body));
        client.rest(std::chrono::seconds(120));
        const bool stream = body["stream"];
        const Answer answer = read_answer(client.got(), stream);
        body["stream"] = false;
        const std::string expected = read_answer(alone.post(body), false).text;
        EXPECT_TRUE(answer.whole) << client.got() << server.err();
        if (answer.error) {
          EXPECT_TRUE(stream) << "nobody had seen it: " << client.got();
          EXPECT_TRUE(expected.starts_with(answer.text)) << answer.text << " of " << expected;
          ++num_cut;
        } else {
          EXPECT_EQ(answer.text, expected) << body;
          ++num_answered;
        }
      }
    });
  std::mt19937_64 random(seed + kClients);
  eventually([&] { return num_answered >= kClients || num_asked >= kRequests; }, 120s);
  const std::vector<int> decoders = server.children("--kv-role=consumer");
  EXPECT_EQ(decoders.size(), 2u);
  const int victim = decoders.size() == 2 ? decoders[random() % 2] : 0;
  if (victim > 1) ::kill(victim, SIGKILL);
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_answered + num_cut, kRequests);
  EXPECT_TRUE(eventually(
      [&] {
        const std::vector<int> now = server.children("--kv-role=consumer");
        return now.size() == 2 && std::ranges::find(now, victim) == now.end();
      },
      120s))
      << server.err();
  for (const Part& part : {Part(server, "prefill"), Part(server, "decode", 0), Part(server, "decode", 1)})
    EXPECT_TRUE(eventually([&] { return part.holds_nothing(); }, 90s));

  const std::set<int> children = children_of(server.pid());
  EXPECT_EQ(children.size(), 3u);
  server.kill(SIGKILL);
  for (const int child : children)
    EXPECT_TRUE(eventually([&] { return process_state(child) == 0 || process_state(child) == 'Z'; }));
}

// Caches hold one prompt each, and a prompt may reach its prefill server before one that the router has asked for earlier, and told
// to a decode server, which has kept its room for it. So it is where many come at once.
TEST(Cli_DisaggregatedSoak, ServersWithRoomForOnePromptEachDoNotStandStill) {
  constexpr size_t kAtOnce = 12;
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<std::string> flags = {"--model=" + narrow_model().string(), "--load-format=dummy",
                                    "--num-kv-blocks=16", "--max-model-len=256"};
  RunningServer alone(flags);
  flags.insert(flags.end(), {"--disaggregate=2P2D", "--min-remote-tokens=1", "--kv-load-timeout=3600"});
  RunningServer server(flags);
  ASSERT_TRUE(alone.ready() && server.ready());

  std::mt19937_64 random(seed);
  std::vector<Json> bodies(kAtOnce);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (Json& body : bodies) {
    std::vector<uint64_t> prompt(200);
    for (uint64_t& id : prompt) id = 300 + random() % 1'700;
    body = {{"prompt", prompt}, {"max_tokens", 4}, {"ignore_eos", true}, {"temperature", 0}};
    clients.push_back(std::make_unique<RawClient>(server.port()));
  }
  for (size_t i = 0; i < kAtOnce; ++i) clients[i]->send(RunningServer::completion(bodies[i]));
  for (size_t i = 0; i < kAtOnce; ++i) {
    const Answer answer = read_answer(clients[i]->rest(std::chrono::seconds(120)), false);
    ASSERT_TRUE(answer.whole && !answer.error) << clients[i]->got() << server.err();
    EXPECT_EQ(answer.text, read_answer(alone.post(bodies[i]), false).text);
  }
  EXPECT_GT(server.metric("router_at_once_transfers_total"), 0);
}

}  // namespace
}  // namespace ladder::testing
#endif
