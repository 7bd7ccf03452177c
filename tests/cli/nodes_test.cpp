// One engine on several hosts as a user starts it: nodes on this machine, and nodes that reach each other by a network.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "step7_parallel/hosts/tcp_socket.h"
#include "tests/cli/held_port.h"
#include "tests/cli/network_namespaces.h"
#include "tests/cli/run_binary.h"
#ifdef LADDER_HAS_SERVER
#include "tests/cli/running_server.h"
#endif
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace ladder {
namespace {

using testing::BinaryResult;
using ::testing::HasSubstr;
using testing::held_port;
using testing::run_binary;
using Clock = std::chrono::steady_clock;

const std::string kModel = (testing::source_folder() / "models" / "tinyworld").string();
const std::string kBound = "timeout -s KILL 240";  // of a hang

using Words = std::vector<std::string>;

Words plus(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Words generate(const Words& more) {
  return plus({"generate", "--model", kModel, "--prompt", "Once", "--max-tokens", "12", "--temperature", "0",
               "--device", "cpu", "--dtype", "f32"},
              more);
}
int lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// Without the line that a node says where the other one has been loading for long.
std::string but_for_waiting(std::string text) {
  const size_t begin = text.find("ladder: node "), end = text.find('\n', begin);
  if (begin != text.npos && text.find(" waits for ", begin) < end) text.erase(begin, end + 1 - begin);
  return text;
}

struct Nodes {
  BinaryResult node[2];
  double seconds = 0;
};

// The same words on both, and what is said to each alone; `launchers`: before the program, by node.
Nodes on_two(Words words, const Words& of_0, const Words& of_1,
             const std::array<std::string, 2>& launchers = {kBound, kBound}) {
  if (std::find(words.begin(), words.end(), "--nnodes=3") == words.end()) words.push_back("--nnodes=2");
  const auto begin = Clock::now();
  auto other = std::async(std::launch::async, [&] {
    return run_binary(plus(plus(words, {"--node-rank=1"}), of_1), {}, {}, launchers[1]);
  });
  Nodes nodes;
  nodes.node[0] = run_binary(plus(plus(words, {"--node-rank", "0"}), of_0), {}, {}, launchers[0]);
  nodes.node[1] = other.get();
  for (BinaryResult& node : nodes.node) node.err = but_for_waiting(node.err);
  nodes.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return nodes;
}

const Words kGrid = {"--tensor-parallel-size=2", "--pipeline-parallel-size=2"};

TEST(Cli_Nodes, GiveTheTextOfOneRank) {
  const BinaryResult one = run_binary(generate({}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  for (const Words& grid :
       {Words{"--tensor-parallel-size=2"}, Words{"--pipeline-parallel-size", "2"}, kGrid}) {
    const Nodes nodes = on_two(generate(plus(grid, {"--master-port", held_port()})), {}, {});
    for (const BinaryResult& node : nodes.node) EXPECT_EQ(node.exit_code, 0) << node.err;
    EXPECT_EQ(nodes.node[0].out, one.out);
    EXPECT_EQ(nodes.node[1].out + nodes.node[1].err, "") << "node 0 speaks for all";
  }
}

TEST(Cli_Nodes, WhatIsWrongIsOneLineOnEachAndSoon) {
  struct Case {
    Words words, of_0, of_1;
    std::string says;
    // Waited for where node 1 is a stranger to node 0, which then waits for the true one, and where node 1 does not hear the refusal.
    std::string arrival = "--node-arrival-timeout=30";
  };
  const testing::TemporaryFolder folder;
  testing::write_file(folder / "secret", "a word");
  const Case cases[] = {
      {{}, {"--max-tokens=5"}, {}, "the arguments of node 1 are others than node 0's"},
      {{}, {"--kernel=matmul=nonsense"}, {"--kernel=matmul=nonsense"}, ""},
      {{}, {}, {"--secret-file", (folder / "secret").string()}, "another secret", "--node-arrival-timeout=8"},
      {{"--nnodes=3"}, {}, {}, "expected to divide the number of ranks"},
  };
  for (const Case& one : cases) {
    const Nodes nodes =
        on_two(generate(plus(plus(kGrid, {"--master-port", held_port(), one.arrival}), one.words)), one.of_0,
               one.of_1);
    bool said = false;
    for (const BinaryResult& node : nodes.node) {
      EXPECT_EQ(node.exit_code, 2) << node.err;
      EXPECT_EQ(lines(node.err), 1) << node.err;
      EXPECT_EQ(node.out, "");
      said = said || node.err.find(one.says) != std::string::npos;
    }
    EXPECT_TRUE(said) << nodes.node[0].err << nodes.node[1].err << "expected " << one.says;
    EXPECT_LT(nodes.seconds, 60);
  }
}

TEST(Cli_Nodes, ANodeThatDoesNotComeIsNamed) {
  const std::string port = held_port();
  const BinaryResult alone =
      run_binary(generate(plus(kGrid, {"--nnodes=2", "--master-port", port, "--node-arrival-timeout=0.5"})),
                 {}, {}, kBound);
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_EQ(alone.err, "ladder: error: node 1 of 2 has not arrived at 127.0.0.1:" + port + " within 0.5 s\n");
  const BinaryResult other = run_binary(generate(plus(kGrid, {"--nnodes=2", "--node-rank=1", "--master-port",
                                                              port, "--node-arrival-timeout=0.5"})),
                                        {}, {}, kBound);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("127.0.0.1:" + port));
  EXPECT_EQ(lines(other.err), 1) << other.err;
}

TEST(Cli_Nodes, InfoNeedsNoOtherNode) {
  const Words words = {"info", "--model", kModel, "--device=cpu", "--tensor-parallel-size=2"};
  const BinaryResult two = run_binary(plus(words, {"--nnodes=2", "--node-rank=1"}), {}, {}, kBound);
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr("2 ranks: 2 tensor-parallel"));
  const BinaryResult odd = run_binary(plus(words, {"--nnodes=3"}), {}, {}, kBound);
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, HasSubstr("--nnodes 3: expected to divide the number of ranks"));
}

#ifdef LADDER_HAS_SERVER
TEST(Cli_Nodes, ANodeThatWaitsSaysForWhom) {
  const auto alone = [](const char* rank) {
    return Words{"--model=" + kModel, "--tensor-parallel-size=2", "--nnodes=2", rank,
                 "--master-port=" + held_port()};
  };
  using testing::RunningServer;
  RunningServer first(alone("--node-rank=0"), RunningServer::NoWait{}),
      second(alone("--node-rank=1"), RunningServer::NoWait{});
  const auto says = [](const RunningServer& node, const std::string& line) {
    EXPECT_TRUE(testing::eventually([&] { return node.err().find(line) != std::string::npos; }))
        << node.err() << "expected " << line;
    EXPECT_THAT(node.err(), HasSubstr("until 60 s have passed (--node-arrival-timeout)"));
  };
  says(first, "ladder: node 0 of 2 waits for the others at 127.0.0.1:");
  says(second, "ladder: node 1 of 2 waits for node 0 at 127.0.0.1:");
}

Words serve(const Words& more) {
  return plus({"serve", "--model", kModel, "--device", "cpu", "--node-timeout", "3", "--port", held_port(),
               "--master-port", held_port()},
              plus(kGrid, more));
}

// A shell that kills the program once `sign` is there, or stops it then and kills it eight seconds later. (`timeout -s STOP` lets
// it go on at once.)
std::string ends_at_a_sign(const std::filesystem::path& sign, bool stopped) {
  return "sh -c " +
         testing::shell_quoted("\"$@\" & while kill -0 $! 2>/dev/null && ! [ -e " +
                               testing::shell_quoted(sign.string()) + " ]; do sleep 0.1; done; " +
                               (stopped ? "kill -STOP $!; sleep 8; " : "") + "kill -KILL $!; wait $!") +
         " sh";
}

// Until somebody listens there, for two minutes at most.
void wait_for_server(const std::string& port) {
  const HostAddress address{"127.0.0.1", std::stoi(port)};
  const auto end = Clock::now() + std::chrono::minutes(2);
  for (std::string why; Clock::now() < end && try_to_connect(address, end, why).number() < 0;)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

// While nobody asks for anything: a node that is killed, and one that is stopped.
TEST(Cli_Nodes, OneThatEndsOrIsStoppedEndsTheOther) {
  struct Case {
    bool stopped;
    int node;
    std::future<Nodes> ended;
    std::future<void> serves;
  };
  const testing::TemporaryFolder folder;
  std::vector<Case> cases;
  for (const bool stopped : {false, true})
    for (const int node : {0, 1}) {
      std::array<std::string, 2> launchers = {kBound, kBound};
      const std::filesystem::path sign = folder / fmt::format("{}_{}", stopped, node);
      launchers[static_cast<size_t>(node)] = ends_at_a_sign(sign, stopped);
      const Words words = serve({});
      const auto port = std::next(std::find(words.begin(), words.end(), "--port"));
      cases.push_back({stopped, node,
                       std::async(std::launch::async, [=] { return on_two(words, {}, {}, launchers); }),
                       std::async(std::launch::async, [=, port = *port] {
                         wait_for_server(port);
                         std::ofstream{sign};
                       })});
    }
  for (Case& one : cases) {
    const Nodes nodes = one.ended.get();
    const BinaryResult& other = nodes.node[1 - one.node];
    EXPECT_EQ(other.exit_code, 2) << other.err;
    EXPECT_THAT(other.err, HasSubstr(one.node == 0 ? "error: rank 0 (node 0, 127.0.0.1) has "
                                                   : "error: rank 2 (node 1, 127.0.0.1) has "));
    EXPECT_THAT(other.err, HasSubstr(one.stopped ? "has said nothing for 3 s" : "has ended"));
    EXPECT_LT(nodes.seconds, 200) << "they were ended by the bound";
  }
}

// A shell that sends the program SIGTERM once it serves, and prints what it wrote (to `out` until then). One signal: without
// --foreground `timeout` sends it to the program and to its group, and the second ends it at once.
std::string ends_when_it_listens(const std::filesystem::path& out) {
  const std::string file = testing::shell_quoted(out.string());
  return "sh -c " +
         testing::shell_quoted(
             "\"$@\" > " + file + " & while kill -0 $! 2>/dev/null && ! grep -q 'listening on' " + file +
             "; do sleep 0.1; done; kill -TERM $!; wait $!; code=$?; cat " + file + "; exit $code") +
         " sh timeout --foreground -s KILL 240";
}

class Cli_NodesOfANetwork : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!network_.is_there())
      GTEST_SKIP() << "network namespaces are refused here (ip netns add, ip link add type veth)";
  }
  std::array<std::string, 2> launchers(const std::string& variable = "LADDER_SECRET=the word") {
    std::array<std::string, 2> words;
    for (const int side : {0, 1})
      words[static_cast<size_t>(side)] =
          kBound + " " + network_.launcher(side) + " env " + testing::shell_quoted(variable);
    return words;
  }
  const Words master_ = {"--master-addr", "10.77.0.1"};
  testing::NetworkNamespaces network_;
};

TEST_F(Cli_NodesOfANetwork, GiveTheTextOfOneRankToWhoKnowsTheSecret) {
  const BinaryResult one = run_binary(generate({}));
  const Nodes nodes = on_two(generate(plus(kGrid, master_)), {}, {}, launchers());
  EXPECT_EQ(nodes.node[0].exit_code, 0) << nodes.node[0].err;
  EXPECT_EQ(nodes.node[1].exit_code, 0) << nodes.node[1].err;
  EXPECT_EQ(nodes.node[0].out, one.out);
  const Nodes open = on_two(generate(plus(kGrid, master_)), {}, {}, launchers("LADDER_SECRET="));
  for (const BinaryResult& node : open.node) {
    EXPECT_EQ(node.exit_code, 2);
    EXPECT_THAT(node.err, HasSubstr("--master-addr 10.77.0.1: other machines can reach it"));
  }
}

TEST_F(Cli_NodesOfANetwork, HaveReplicasBehindOneDoor) {
  const Words all = {"serve",
                     "--model",
                     kModel,
                     "--device",
                     "cpu",
                     "--num-kv-blocks=256",
                     "--port",
                     held_port(),
                     "--data-parallel-size=2",
                     "--data-parallel-address=10.77.0.1"};
  const std::array<std::string, 2> launcher = launchers();
  auto other = std::async(std::launch::async, [&] {
    return run_binary(plus(all, {"--headless", "--data-parallel-start-rank=1"}), {}, {}, launcher[1]);
  });
  ASSERT_TRUE(launcher[0].starts_with(kBound));
  const testing::TemporaryFolder folder;
  const BinaryResult head =
      run_binary(plus(all, {"--data-parallel-size-local=1"}), {}, {},
                 ends_when_it_listens(folder / "out") + launcher[0].substr(kBound.size()));
  const BinaryResult node = other.get();
  EXPECT_EQ(head.exit_code, 0) << head.err;
  EXPECT_THAT(head.err, HasSubstr("the node of replica 1 (10.77.0.2) has come"));
  EXPECT_THAT(head.out, HasSubstr("listening on"));
  EXPECT_EQ(node.exit_code, 0) << node.err;
  EXPECT_THAT(node.out, HasSubstr("replica 1 of 2 is behind 10.77.0.1:29550"));
  EXPECT_THAT(node.err, HasSubstr("the head at 10.77.0.1:29550 has ended"));
}

TEST_F(Cli_NodesOfANetwork, ACutEndsBothInTime) {
  const Words words = serve(master_);
  const std::string port = *std::next(std::find(words.begin(), words.end(), "--port"));
  auto cut = std::async(std::launch::async, [&] {
    network_.run_on(0, [&] { wait_for_server(port); });
    network_.cut();
    return Clock::now();
  });
  const Nodes nodes = on_two(words, {}, {}, launchers());
  const std::chrono::duration<double> took = Clock::now() - cut.get();
  EXPECT_THAT(nodes.node[0].err, HasSubstr("(node 1, 10.77.0.2) has said nothing for 3 s"));
  EXPECT_THAT(nodes.node[1].err, HasSubstr("(node 0, 10.77.0.1) has said nothing for 3 s"));
  for (const BinaryResult& node : nodes.node) EXPECT_EQ(node.exit_code, 2);
  EXPECT_LT(took.count(), 20);
}
#endif

}  // namespace
}  // namespace ladder
