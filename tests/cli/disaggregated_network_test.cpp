// Prompts on one host, answers on another: two servers in network namespaces, as users start them, and between them a cable, or
// a proxy that delays, stops or cuts what a transfer sends. Whatever the network does, the answer is that of one server
// alone, and no block stays.
#ifdef LADDER_HAS_SERVER
#include <cstdlib>
#include <functional>

#include "tests/cli/network_namespaces.h"
#include "tests/cli/soak_answers.h"
#include "tests/step7_parallel/hosts/tcp_proxy.h"
#include "tests/support/narrow_model.h"

namespace ladder::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Cli_DisaggregatedNetwork : public ::testing::Test {
 protected:
  enum Side { kPrompts, kAnswers };

  void SetUp() override {
    if (!network_.is_there())
      GTEST_SKIP() << "network namespaces are refused here (ip netns add, ip link add type veth)";
  }
  void start_servers(const std::string& load_timeout) {
    setenv("LADDER_SECRET", "the word", 1);
    const auto start = [&](Side side, std::vector<std::string> flags) {
      flags.insert(flags.end(),
                   {"--model=" + narrow_model().string(), "--load-format=dummy", "--num-kv-blocks=64",
                    "--max-model-len=512", "--kv-load-timeout=" + load_timeout});
      network_.run_on(side, [&] { servers_[side] = std::make_unique<RunningServer>(std::move(flags)); });
    };
    start(kPrompts, {"--kv-role=producer", "--kv-listen=tcp://10.77.0.1:0", "--kv-lease=6"});
    start(kAnswers, {"--kv-role=consumer"});
    unsetenv("LADDER_SECRET");
    ASSERT_TRUE(servers_[kPrompts]->ready() && servers_[kAnswers]->ready());
  }

  Json post(Side side, const Json& body) {
    std::string answer;
    network_.run_on(side, [&] { answer = servers_[side]->post(body); });
    EXPECT_EQ(status_of(answer), 200) << answer;
    return Json::parse(body_of(answer), nullptr, false);
  }
  double metric(Side side, const std::string& name) {
    double value = 0;
    network_.run_on(side, [&] { value = servers_[side]->metric(name); });
    return value;
  }
  double num_loaded() { return metric(kAnswers, "external_prefix_cache_hits_total"); }

  // A prompt of 300 tokens and more that nobody has seen, computed on the one side.
  void compute_prompt() {
    std::string prompt = "Story " + std::to_string(++num_prompts_) + ":";
    for (int word = 0; word < 100; ++word) prompt += " word" + std::to_string(word * num_prompts_ % 50);
    body_ = {{"prompt", prompt}, {"max_tokens", 12}, {"ignore_eos", true}, {"temperature", 0}};
    Json first = body_;
    first["max_tokens"] = 1;
    first["kv_transfer_params"] = {{"do_remote_decode", true}};
    place_ = post(kPrompts, first)["kv_transfer_params"];
    ASSERT_TRUE(place_.is_object());
    place_["do_remote_prefill"] = true;
    place_.erase("do_remote_decode");
  }
  // Goes on with it on the other side, which is told to read at `address`, and compares with the answer of one server.
  // `meanwhile`: while the request is on its way. Returns the seconds that it took.
  double go_on(
      const std::string& address, const std::function<void()>& meanwhile = [] {}) {
    Json body = body_;
    body["kv_transfer_params"] = place_;
    body["kv_transfer_params"]["remote_address"] = address;
    const auto begin = Clock::now();
    Json answer;
    std::thread request([&] { answer = post(kAnswers, body); });
    meanwhile();
    request.join();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    EXPECT_EQ(answer["choices"][0]["text"], post(kPrompts, body_)["choices"][0]["text"]);
    return seconds;
  }
  std::unique_ptr<TcpProxy> proxy() {
    const std::string address = place_["remote_address"];  // tcp://10.77.0.1:PORT
    const int port = std::stoi(address.substr(address.rfind(':') + 1));
    std::unique_ptr<TcpProxy> made;
    network_.run_on(kPrompts, [&] {
      made = std::make_unique<TcpProxy>(HostAddress{"10.77.0.1", port}, "10.77.0.1");
    });
    return made;
  }
  static std::string address_of(const TcpProxy& proxy) {
    return "tcp://10.77.0.1:" + std::to_string(proxy.address().port);
  }
  void expect_no_block_stays() {
    for (const Side side : {kPrompts, kAnswers})
      for (const char* name : {"num_requests_running", "num_requests_waiting_for_kv", "num_held_kv_blocks",
                               "kv_cache_usage_perc"})
        EXPECT_TRUE(eventually([&] { return metric(side, name) == 0; }, 60s)) << side << " " << name;
  }

  NetworkNamespaces network_;
  std::unique_ptr<RunningServer> servers_[2];
  Json body_, place_;
  int num_prompts_ = 0;
};

TEST_F(Cli_DisaggregatedNetwork, KeysComeOverACableAndOverASlowOne) {
  start_servers("60");
  compute_prompt();
  go_on(place_["remote_address"]);
  const double loaded = num_loaded();
  EXPECT_GT(loaded, 300);
  compute_prompt();
  const auto slow = proxy();
  slow->delay(std::chrono::milliseconds(60));
  // The secrets, the handshake and the keys: there and back, each.
  EXPECT_GT(go_on(address_of(*slow)), 3 * 2 * 0.06);
  EXPECT_GT(num_loaded(), loaded + 300);
  expect_no_block_stays();
}

TEST_F(Cli_DisaggregatedNetwork, ATransferThatStopsIsComputedInTime) {
  start_servers("3");
  compute_prompt();
  const auto bad = proxy();
  bad->stall_behind(64 << 10);
  const double seconds = go_on(address_of(*bad));
  EXPECT_GT(bad->bytes(), 64 << 10);
  EXPECT_GE(seconds, 3) << "it waits as long as --kv-load-timeout says";
  EXPECT_LT(seconds, 30);
  EXPECT_EQ(metric(kAnswers, "kv_transfer_failed_loads_total"), 1);
  expect_no_block_stays();
}

TEST_F(Cli_DisaggregatedNetwork, ATransferThatIsCutIsComputedAtOnce) {
  start_servers("60");
  compute_prompt();
  const auto bad = proxy();
  bad->stall_behind(64 << 10);
  const double seconds = go_on(address_of(*bad), [&] {
    EXPECT_TRUE(eventually([&] { return bad->bytes() > 64 << 10; }));
    bad->cut();
  });
  EXPECT_LT(seconds, 30) << "it does not wait for --kv-load-timeout";
  EXPECT_EQ(metric(kAnswers, "kv_transfer_failed_loads_total"), 1);
  expect_no_block_stays();
}

TEST_F(Cli_DisaggregatedNetwork, ACableThatIsPulledLeavesTwoServers) {
  start_servers("60");
  compute_prompt();
  network_.cut();
  EXPECT_LT(go_on(place_["remote_address"]), 30);
  EXPECT_EQ(num_loaded(), 0);
  expect_no_block_stays();
}

}  // namespace
}  // namespace ladder::testing
#endif
