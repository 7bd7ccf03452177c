// Replicas of several machines as a user starts them: a head, and nodes that have no HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "step7_parallel/hosts/tcp_socket.h"
#include "tests/cli/held_port.h"
#include "tests/cli/program.h"
#include "tests/cli/run_binary.h"
#ifdef LADDER_HAS_SERVER
#include "tests/cli/running_server.h"

namespace ladder::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Words plus(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// What head and nodes have in common.
Words of_all(int num_replicas, const std::string& port, const std::string& model = tinyworld()) {
  return {"--model=" + model,
          "--num-kv-blocks=512",
          "--threads=2",
          "--node-timeout=3",
          "--data-parallel-size=" + std::to_string(num_replicas),
          "--data-parallel-rpc-port=" + port};
}
Words of_head(const Words& all, int num_local, const Words& more = {}) {
  return plus(plus(all, {"--data-parallel-size-local=" + std::to_string(num_local)}), more);
}
Words of_node(const Words& all, int first, int num_local, const Words& more = {}) {
  return plus(plus(all, {"--headless", "--data-parallel-start-rank=" + std::to_string(first),
                         "--data-parallel-size-local=" + std::to_string(num_local)}),
              more);
}

std::string answer_of(const RunningServer& server) {
  const std::string answer =
      server.post({{"prompt", "One day"}, {"max_tokens", 20}, {"ignore_eos", true}, {"temperature", 0}});
  const Json json = Json::parse(body_of(answer), nullptr, false);
  return json.is_object() && json.contains("choices") ? json["choices"][0]["text"].get<std::string>()
                                                      : answer;
}
bool has_alive(const RunningServer& server, int count, int of) {
  return eventually(
      [&] {
        const std::string answer = server.get("/health");
        return status_of(answer) == 200 &&
               body_of(answer) == "{\"replicas\":" + std::to_string(of) +
                                      ",\"live_replicas\":" + std::to_string(count) + "}";
      },
      kStartPatience);
}

TEST(Cli_Headless, ReplicasOfTwoMachinesAnswerAsOneEngineAndMayComeAndGo) {
  std::string expected;
  {
    const RunningServer alone(of_head(of_all(1, "1"), 1));
    expected = answer_of(alone);
    ASSERT_FALSE(expected.empty());
  }
  const Words all = of_all(4, held_port());
  RunningServer head(of_head(all, 2), RunningServer::NoWait{});
  auto node = std::make_unique<RunningServer>(of_node(all, 2, 2), RunningServer::NoWait{});
  head.wait_until_ready();
  EXPECT_THAT(head.err(), HasSubstr("for replicas 2 to 3, until 60 s have passed (--node-arrival-timeout)"));
  EXPECT_THAT(head.out(), HasSubstr("0 to 3 of 4, on other machines from 2 on; each has"));
  const auto expect_answers = [&] {
    for (int i = 0; i < 8; ++i) EXPECT_EQ(answer_of(head), expected);
  };
  expect_answers();
  EXPECT_TRUE(has_alive(head, 4, 4));
  EXPECT_THAT(body_of(head.get("/metrics")), HasSubstr("engine=\"3\""));

  node->kill(SIGKILL);
  EXPECT_TRUE(has_alive(head, 2, 4)) << head.err();
  expect_answers();
  node = std::make_unique<RunningServer>(of_node(all, 2, 2), RunningServer::NoWait{});
  EXPECT_TRUE(has_alive(head, 4, 4)) << head.err() << node->err();
  expect_answers();
  node->kill(SIGTERM);
  EXPECT_EQ(node->exit_code(), 0) << node->err();
  EXPECT_TRUE(has_alive(head, 2, 4)) << head.err();
  EXPECT_THAT(head.err(), HasSubstr("the node of replicas 2 to 3 (127.0.0.1) has gone: it was stopped"));

  node = std::make_unique<RunningServer>(of_node(all, 2, 2), RunningServer::NoWait{});
  EXPECT_TRUE(has_alive(head, 4, 4)) << head.err() << node->err();
  head.kill(SIGTERM);
  EXPECT_EQ(head.exit_code(), 0) << head.err();
  EXPECT_EQ(node->exit_code(), 0) << node->err();
  EXPECT_THAT(node->err(), HasSubstr("has ended"));
}

TEST(Cli_Headless, RanksOfReplicasOfTwoMachinesAnswerAsOneEngine) {
  const Words all = plus(of_all(2, held_port()), {"--tensor-parallel-size=2"});
  std::string expected;
  {
    const RunningServer alone({"--model=" + tinyworld(), "--num-kv-blocks=512"});
    expected = answer_of(alone);
  }
  RunningServer head(of_head(all, 0), RunningServer::NoWait{});
  RunningServer one(of_node(all, 0, 1, {"--distributed-executor-backend=mp"}), RunningServer::NoWait{}),
      two(of_node(all, 1, 1, {"--data-parallel-backend=mp"}), RunningServer::NoWait{});
  head.wait_until_ready();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answer_of(head), expected);
  EXPECT_EQ(one.children("worker-process").size(), 2u) << one.err();
  EXPECT_EQ(two.children("engine-process").size(), 1u) << two.err();
  head.kill(SIGTERM);
  for (RunningServer* one_of : {&head, &one, &two}) EXPECT_EQ(one_of->exit_code(), 0) << one_of->err();
}

// The ranks of replica 0 are on two hosts of their own, of which one is killed.
TEST(Cli_Headless, AReplicaMaySpanHostsAndIsLostAlone) {
  const Words all = of_all(2, held_port());
  const auto spanning =
      [words =
           of_node(all, 0, 1, {"--tensor-parallel-size=2", "--nnodes=2", "--master-port=" + held_port()})](
          const char* rank) { return plus(words, {rank}); };
  RunningServer head(of_head(all, 0), RunningServer::NoWait{});
  RunningServer first(spanning("--node-rank=0"), RunningServer::NoWait{}),
      second(spanning("--node-rank=1"), RunningServer::NoWait{}),
      other(of_node(all, 1, 1), RunningServer::NoWait{});
  head.wait_until_ready();
  const std::string expected = answer_of(head);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answer_of(head), expected);
  EXPECT_TRUE(has_alive(head, 2, 2));
  second.kill(SIGKILL);
  EXPECT_EQ(first.exit_code(), 2);
  EXPECT_THAT(first.err(), HasSubstr("rank 1 (node 1, 127.0.0.1) has ended"));
  EXPECT_TRUE(has_alive(head, 1, 2)) << head.err();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(answer_of(head), expected);
  EXPECT_FALSE(other.exited());
  head.kill(SIGTERM);
  EXPECT_EQ(other.exit_code(), 0) << other.err();
}

TEST(Cli_Headless, AHeadThatIsKilledIsLookedForAndThenItsNodesEnd) {
  const Words all = of_all(2, held_port());
  RunningServer head(of_head(all, 1), RunningServer::NoWait{});
  RunningServer node(of_node(all, 1, 1), RunningServer::NoWait{});
  head.wait_until_ready();
  head.kill(SIGKILL);
  EXPECT_EQ(head.exit_code(), 128 + SIGKILL);
  RunningServer again(of_head(all, 1));  // and is found again
  EXPECT_TRUE(has_alive(again, 2, 2)) << again.err() << node.err();
  EXPECT_THAT(node.err(), HasSubstr("is lost: it has ended; it is looked for until 60 s have passed"));
  node.kill(SIGKILL);
  EXPECT_TRUE(has_alive(again, 1, 2)) << again.err();
  // One whose head stays away. It comes when a head is there: four seconds may be less than a head takes to start.
  RunningServer hasty(of_node(all, 1, 1, {"--node-arrival-timeout=4"}), RunningServer::NoWait{});
  EXPECT_TRUE(has_alive(again, 2, 2)) << again.err() << hasty.err();
  again.kill(SIGKILL);
  EXPECT_EQ(hasty.exit_code(), 2);
  EXPECT_THAT(hasty.err(), HasSubstr("is lost: it has ended; it is looked for until 4 s have passed"));
  EXPECT_THAT(hasty.err(), HasSubstr("ladder: error: no head at 127.0.0.1:"));
}

TEST(Cli_Headless, WhatIsWrongIsOneLine) {
  const auto refused = [](const Words& words, const std::string& named) {
    const BinaryResult result = run_binary(plus({"serve", "--device=cpu", "--dtype=f32"}, words));
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(named));
  };
  const std::string port = held_port();
  const Words all = of_all(3, port);
  RunningServer head(of_head(all, 1, {"--node-arrival-timeout=600"}), RunningServer::NoWait{});
  ASSERT_TRUE(eventually([&] { return head.err().find("waiting at") != std::string::npos; }, kStartPatience))
      << head.err();
  refused(of_node(of_all(4, port), 1, 2), "the head was started with 3");
  refused(of_node(all, 0, 1), "replica 0 is the head's own");
  refused(of_node(of_all(3, port, tied_model()), 1, 2), "the files of --model are others");
  refused(of_node(all, 1, 2, {"--max-model-len=64"}), "--max-model-len 64: the head has");
  refused(of_node(all, 2, 2), "--data-parallel-start-rank 2 and --data-parallel-size-local 2");
  refused(of_node(all, 1, 2, {"--data-parallel-address=0.0.0.0"}),
          "--data-parallel-address 0.0.0.0: other machines");
  refused({"--model=" + tinyworld(), "--headless", "--node-timeout=0.5"}, "--node-timeout 0.5");
  refused(of_node(all, 1, 2, {"--data-parallel-hybrid-lb"}), "--headless: a node has no HTTP");
  refused(of_node(all, 1, 2, {"--kv-role=producer"}), "--kv-role: replicas behind another machine's server");
  refused(of_node(all, 1, 2, {"--kv-lease=3"}), "--kv-lease: expected with --kv-role");
  refused(of_node(of_all(3, "1"), 1, 2, {"--node-arrival-timeout=1"}), "no head at 127.0.0.1:1 within 1 s");
  head.kill(SIGKILL);
}

TEST(Cli_Headless, AHeadSaysWhatItWaitedForAndWhereItCannotListen) {
  const FileDescriptor taken = listen_on({"127.0.0.1", 0}, 1);
  const std::string port = std::to_string(local_address(taken.number()).port);
  const auto head = [&](const std::string& at) {
    return run_binary(plus({"serve", "--port=0", "--device=cpu", "--dtype=f32"},
                           of_head(of_all(3, at), 1, {"--node-arrival-timeout=1"})));
  };
  const BinaryResult nowhere = head(port);
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("no connections can be taken at 127.0.0.1:" + port));
  const BinaryResult alone = head(held_port());
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.err, HasSubstr("ladder: error: replicas 1, 2 of 3 have not come to 127.0.0.1:"));
}

}  // namespace
}  // namespace ladder::testing
#endif
