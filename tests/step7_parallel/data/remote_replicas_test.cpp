// Replicas on other machines: a head and its nodes, in one process, with a bad network between them where it matters.
#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "step7_parallel/data/data_parallel_client.h"
#include "step7_parallel/data/replica_head.h"
#include "step7_parallel/data/replica_node.h"
#include "tests/step6_engine/engine_client_fixture.h"
#include "tests/step7_parallel/data/becomes.h"
#include "tests/step7_parallel/hosts/tcp_proxy.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::becomes;
using testing::becomes_idle;
using testing::EngineClientTest;
using testing::expected_tokens;
using ::testing::HasSubstr;
using testing::output_of;
using testing::TcpProxy;
using testing::token_request;

using MakeEngine = std::function<std::unique_ptr<Engine>(int number)>;

class Log {
 public:
  std::function<void(const std::string&)> writer() {
    return [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      text_ += line + "\n";
    };
  }
  std::string text() {
    std::lock_guard lock(mutex_);
    return text_;
  }
  int count(const std::string& part) {
    const std::string text = this->text();
    int count = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
    return count;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

StartedEngine started(std::unique_ptr<Engine> engine, EngineClientOptions options = {}) {
  StartedEngine started;
  started.config = engine->scheduler().config();
  started.client = std::make_unique<ThreadEngineClient>(std::move(engine), std::move(options));
  return started;
}

constexpr std::chrono::milliseconds kSilence = 3s;  // both sides may have to wait for a processor

// A server of `num_replicas`, of which the first are its own. The door is opened when the nodes are on their way.
struct Head {
  explicit Head(int num_replicas, int num_local = 1, std::chrono::milliseconds arrival = 20s,
                HostSecret secret = {"a word"})
      : num_replicas(num_replicas), num_local(num_local) {
    place = {{"127.0.0.1", 0}, std::move(secret), arrival, kSilence};
    run = {num_replicas, {1, 2}, "--dtype f32"};
    head = std::make_shared<ReplicaHead>(ReplicaHeadOptions{place, run, num_local, log.writer()});
    place.address = head->address();
  }
  ~Head() { close(); }
  void open(const MakeEngine& make = [](int) { return testing::fake_engine(); }) {
    DataParallelOptions options;
    options.num_replicas = num_replicas;
    options.balancer = "round_robin";
    options.first_pause = options.max_pause = 10ms;
    options.start = [this, make, head = head](int number) {
      return number < num_local ? started(make(number)) : head->start(number, nullptr, {});
    };
    options.on_stop = [head = head] { head->stop(); };
    options.log = log.writer();
    door = std::make_unique<DataParallelClient>(std::move(options));
  }
  void close() {
    door.reset();
    head.reset();
  }
  int num_alive() const { return door->stats().num_live_replicas; }

  const int num_replicas, num_local;
  Log log;
  HeadPlace place;
  ReplicaRun run;
  std::shared_ptr<ReplicaHead> head;
  std::unique_ptr<DataParallelClient> door;
};

ReplicaNodeOptions node_of(
    const Head& head, int first, int num_local,
    const MakeEngine& make = [](int) { return testing::fake_engine(); }) {
  ReplicaNodeOptions options;
  options.head = head.place;
  options.run = head.run;
  options.first = first;
  options.num_local = num_local;
  options.start = [make](int number, TurnListeners& turns) {
    return started(make(number), {.on_turn = [&turns] { turns.announce(); }});
  };
  options.log = [](const std::string&) {};
  return options;
}

ReplicaNode::End end_of(ReplicaNode& node) {
  return node.wait_for_end(60s).value_or(ReplicaNode::End{-1, "it goes on"});
}

// Everything that one engine does is done by one on another machine.
testing::ClientPointer client_of_a_node(std::unique_ptr<Engine> engine, EngineClientOptions options) {
  struct Both {
    Head head{1, 0};
    std::unique_ptr<ReplicaNode> node;
  };
  auto both = std::make_shared<Both>();
  auto given = std::make_shared<std::unique_ptr<Engine>>(std::move(engine));
  ReplicaNodeOptions node = node_of(both->head, 0, 1);
  node.start = [given](int, TurnListeners& turns) {
    LADDER_CHECK(*given != nullptr, "there is one engine");
    return started(std::move(*given),
                   {.max_num_queued_tokens = int64_t{1} << 60, .on_turn = [&turns] { turns.announce(); }});
  };
  both->node = std::make_unique<ReplicaNode>(std::move(node));
  return {both->head.head->start(0, nullptr, std::move(options)).client.release(),
          [both](EngineClient* client) {
            delete client;
            both->node.reset();
          }};
}

INSTANTIATE_TEST_SUITE_P(RemoteReplicas, EngineClientTest, ::testing::Values(client_of_a_node),
                         [](const auto&) { return "OnANode"; });

void expect_answers(EngineClient& client, int32_t count) {
  std::vector<RequestStream> streams;
  for (int32_t i = 0; i < count; ++i) streams.push_back(client.submit(token_request({i % 7, i}, 1 + i % 20)));
  for (int32_t i = 0; i < count; ++i) {
    const RequestOutput output = output_of(streams[static_cast<size_t>(i)]);
    EXPECT_EQ(output.completions.at(0).token_ids, expected_tokens({i % 7, i}, 1 + i % 20))
        << output.completions.at(0).error;
  }
}

TEST(RemoteReplicas, AnswerAsOneEngineAndAreCounted) {
  Head head(4, 1);
  ReplicaNode two(node_of(head, 1, 2)), one(node_of(head, 3, 1));
  head.open();
  expect_answers(*head.door, 40);
  ASSERT_TRUE(becomes_idle(*head.door));
  ASSERT_TRUE(becomes([&] { return head.door->stats().metrics.num_requests_finished == 40; }));
  for (const EngineStats& stats : head.door->replica_stats())
    EXPECT_EQ(stats.metrics.num_requests_finished, 10);
  head.close();
  for (ReplicaNode* node : {&two, &one}) {
    EXPECT_EQ(end_of(*node).code, 0);
    EXPECT_THAT(end_of(*node).why, HasSubstr("the head at 127.0.0.1:"));
  }
}

TEST(RemoteReplicas, AHeadMayHaveNoneOfItsOwnAndWaitForThoseThatComeLate) {
  Head head(2, 0);
  auto door = std::async(std::launch::async, [&] { head.open(); });
  std::this_thread::sleep_for(100ms);
  ReplicaNode one(node_of(head, 0, 1));
  std::this_thread::sleep_for(100ms);
  EXPECT_NE(door.wait_for(0ms), std::future_status::ready);
  ReplicaNode two(node_of(head, 1, 1));
  door.get();
  expect_answers(*head.door, 10);
}

TEST(RemoteReplicas, ThoseThatDoNotComeAreNamed) {
  Head head(4, 1, 300ms);
  ReplicaNodeOptions options = node_of(head, 2, 1);
  options.head.arrival = 20s;
  std::atomic<bool> has_come = false;
  options.on_serving = [&] { has_come = true; };
  ReplicaNode node(std::move(options));
  ASSERT_TRUE(becomes([&] { return has_come.load(); }));
  try {
    head.open();
    FAIL() << "replicas 1 and 3 are missing";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("replicas 1, 3 of 4 have not come to " + head.place.address.str() +
                                        " within 0.3 s (--node-arrival-timeout)"));
  }
  head.close();
  EXPECT_EQ(end_of(node).code, 2);
  EXPECT_THAT(end_of(node).why, HasSubstr("has ended with an error"));
}

TEST(RemoteReplicas, ANodeThatDoesNotFitIsSentAwayByName) {
  Head head(4, 1);
  ReplicaNode fits(node_of(head, 1, 2));
  ASSERT_TRUE(becomes([&] { return head.log.text().find("replicas 1 to 2") != std::string::npos; }));
  const auto refused = [&](const std::function<void(ReplicaNodeOptions&)>& change, const std::string& why) {
    ReplicaNodeOptions options = node_of(head, 3, 1, [](int) -> std::unique_ptr<Engine> {
      ADD_FAILURE() << "it was loaded";
      return nullptr;
    });
    change(options);
    ReplicaNode node(std::move(options));
    EXPECT_EQ(end_of(node).code, 2);
    EXPECT_THAT(end_of(node).why, HasSubstr(why));
  };
  refused([](auto& node) { node.run.num_replicas = 5; },
          "--data-parallel-size 5: the head was started with 4");
  refused([](auto& node) { node.run.files.program = 9; }, "another build than that of the head");
  refused([](auto& node) { node.run.files.model = 9; }, "the files of --model are others");
  refused([](auto& node) { node.run.settings = "--dtype f16"; }, "--dtype f16: the head has --dtype f32");
  refused([](auto& node) { node.first = 0; }, "replica 0 is the head's own");
  refused([](auto& node) { node.first = 4; }, "replica 4: there are 4");
  refused([](auto& node) { node.first = 2; }, "replica 2 is the one of another node, at 127.0.0.1");
  refused([](auto& node) { node.head.secret = {"another"}; }, "another secret");
  ReplicaNode last(node_of(head, 3, 1));
  head.open();
  expect_answers(*head.door, 8);
}

TEST(RemoteReplicas, ANodeThatHasComeMayLoadForLonger) {
  Head head(2, 1, 1s);
  ReplicaNodeOptions options = node_of(head, 1, 1, [](int) {
    std::this_thread::sleep_for(1500ms);
    return testing::fake_engine();
  });
  options.head.arrival = 20s;
  ReplicaNode node(std::move(options));
  ASSERT_TRUE(becomes([&] { return head.log.count("the node of replica 1 (127.0.0.1) has come") == 1; }));
  head.open();
  expect_answers(*head.door, 4);
}

// Its machine was cut off for a moment, and the head has not noticed.
TEST(RemoteReplicas, ANodeThatIsThoughtToBeThereMayComeAgainAndNoOther) {
  Head head(2, 1);
  const auto answer_to = [&](const std::string& name) {
    auto socket = message_socket(connect_to_host(head.place.address, head.place.secret, 30s), 30s);
    socket->write(static_cast<uint32_t>(MeetingMessage::join), to_bytes(NodeJoin{name, head.run, 1, 1}));
    const auto type = static_cast<MeetingMessage>(socket->read().value().type);
    return std::pair(type, std::move(socket));
  };
  const auto first = answer_to("one"), other = answer_to("two"), again = answer_to("one");
  EXPECT_EQ(first.first, MeetingMessage::welcome);
  EXPECT_EQ(other.first, MeetingMessage::refused);
  EXPECT_EQ(again.first, MeetingMessage::welcome);
}

TEST(RemoteReplicas, ANodeWithoutAHeadSaysSo) {
  Head head(2, 1);
  ReplicaNodeOptions options = node_of(head, 1, 1);
  head.close();
  options.head.arrival = 200ms;
  ReplicaNode node(std::move(options));
  EXPECT_EQ(end_of(node).code, 2);
  EXPECT_THAT(end_of(node).why, HasSubstr("no head at 127.0.0.1:"));
}

TEST(RemoteReplicas, AnEngineThatCannotBeLoadedEndsItsNodeAndTheHeadSaysWhy) {
  Head head(2, 1, 500ms);
  ReplicaNodeOptions options = node_of(head, 1, 1, [](int) -> std::unique_ptr<Engine> { fail("no lamp"); });
  options.head.arrival = 20s;
  ReplicaNode node(std::move(options));
  EXPECT_THROW(head.open(), Error);
  EXPECT_EQ(end_of(node).code, 2);
  EXPECT_THAT(end_of(node).why, HasSubstr("no lamp"));
  EXPECT_TRUE(becomes([&] {
    return head.log.count("the node of replica 1 (127.0.0.1) has gone: no lamp") == 1;
  })) << head.log.text();
}

TEST(RemoteReplicas, ALinkThatIsDroppedLosesOneReplicaUntilItIsBackWithItsNumbers) {
  Head head(2, 1);
  TcpProxy network(head.place.address);
  ReplicaNodeOptions options = node_of(head, 1, 1, [](int) { return testing::endless_engine(); });
  options.head.address = network.address();
  ReplicaNode node(std::move(options));
  head.open([](int) { return testing::endless_engine(); });
  for (int i = 0; i < 6; ++i) output_of(head.door->submit(token_request({1, 2}, 5)));
  ASSERT_TRUE(becomes([&] { return head.door->stats().metrics.num_requests_finished == 6; }));
  RequestStream here = head.door->submit(testing::endless_request()),
                there = head.door->submit(testing::endless_request());
  for (RequestStream* stream : {&here, &there}) ASSERT_TRUE(stream->next(30s));
  network.drop();
  EXPECT_EQ(output_of(there).completions.at(0).finish_reason, FinishReason::error);
  ASSERT_TRUE(becomes([&] { return head.log.text().find("replica 1: serves again") != std::string::npos; }));
  EXPECT_EQ(head.num_alive(), 2);
  for (int i = 0; i < 6; ++i) output_of(head.door->submit(token_request({1, 2}, 5)));
  head.door->abort(here.request_id());
  EXPECT_EQ(output_of(here).completions.at(0).finish_reason, FinishReason::abort) << "the other's";
  ASSERT_TRUE(becomes_idle(*head.door));
  ASSERT_TRUE(becomes([&] { return head.door->stats().metrics.num_requests_finished >= 12; }));
  std::this_thread::sleep_for(250ms);  // for the next report of each
  const EngineStats stats = head.door->stats();
  EXPECT_GE(stats.metrics.num_requests_finished, 12);
  EXPECT_LE(stats.metrics.num_requests_finished, 14) << "those before the loss once, and two aborts at most";
}

TEST(RemoteReplicas, ALinkThatStallsIsLostInTimeOnBothSides) {
  Head head(2, 1);
  TcpProxy network(head.place.address);
  ReplicaNodeOptions options = node_of(head, 1, 1, [](int) { return testing::endless_engine(); });
  options.head.address = network.address();
  options.head.arrival = 2s;
  ReplicaNode node(std::move(options));
  head.open([](int) { return testing::endless_engine(); });
  RequestStream here = head.door->submit(testing::endless_request()),
                there = head.door->submit(testing::endless_request());
  for (RequestStream* stream : {&here, &there}) ASSERT_TRUE(stream->next(30s));
  network.stall();
  const auto begin = StreamBuffer::Clock::now();
  EXPECT_EQ(output_of(there).completions.at(0).finish_reason, FinishReason::error);
  EXPECT_LT(StreamBuffer::Clock::now() - begin, kSilence + 20s);
  EXPECT_TRUE(becomes([&] { return head.num_alive() == 1; }));
  EXPECT_EQ(end_of(node).code, 2);
  EXPECT_THAT(end_of(node).why, HasSubstr("no head at"));
  EXPECT_TRUE(becomes([&] { return head.log.count("it has said nothing for 3 s") > 0; })) << head.log.text();
  EXPECT_TRUE(here.next(30s)) << "the other's request goes on";
  head.door->abort(here.request_id());
}

TEST(RemoteReplicas, WhatNobodyHasReadIsAskedOfAnotherReplica) {
  Head head(2, 1);
  TcpProxy network(head.place.address);
  testing::Gate gate;
  ReplicaNodeOptions options =
      node_of(head, 1, 1, [&](int) { return testing::fake_engine(1, gate.fault()); });
  options.head.address = network.address();
  ReplicaNode node(std::move(options));
  head.open();
  std::vector<RequestStream> streams;
  for (int32_t i = 0; i < 4; ++i) streams.push_back(head.door->submit(token_request({i, 5}, 9)));
  gate.wait_until_reached();
  network.cut();
  for (int32_t i = 0; i < 4; ++i)
    EXPECT_EQ(output_of(streams[static_cast<size_t>(i)]).completions.at(0).token_ids,
              expected_tokens({i, 5}, 9));
  gate.open();
}

TEST(RemoteReplicas, ANodeThatIsStoppedFinishesWhatItHas) {
  Head head(2, 1);
  auto node = std::make_unique<ReplicaNode>(node_of(head, 1, 1));
  head.open();
  for (int round = 0; round < 5; ++round) {
    std::vector<RequestStream> streams;
    for (int32_t i = 0; i < 60; ++i) streams.push_back(head.door->submit(token_request({i % 7, i}, 40)));
    std::thread stopping([&] { node->stop(30s); });
    for (int32_t i = 60; i < 80; ++i) streams.push_back(head.door->submit(token_request({i % 7, i}, 40)));
    for (int32_t i = 0; i < 80; ++i) {
      const RequestOutput output = output_of(streams[static_cast<size_t>(i)]);
      EXPECT_EQ(output.completions.at(0).token_ids, expected_tokens({i % 7, i}, 40))
          << output.completions.at(0).error;
    }
    stopping.join();
    node.reset();
    ASSERT_TRUE(becomes([&] { return head.num_alive() == 1; }));
    // Its engine's end is told by another thread, before or after.
    EXPECT_TRUE(becomes([&] {
      return head.log.count("the node of replica 1 (127.0.0.1) has gone: it was stopped\n") == round + 1;
    })) << head.log.text();
    expect_answers(*head.door, 5);
    node = std::make_unique<ReplicaNode>(node_of(head, 1, 1));
    ASSERT_TRUE(becomes([&] { return head.num_alive() == 2; })) << head.log.text();
  }
}

TEST(RemoteReplicas, AnEngineThatDiesIsStartedAgainByItsNode) {
  std::atomic<bool> broken = false;
  Head head(2, 1);
  ReplicaNode node(node_of(head, 1, 1, [&](int) {
    return testing::fake_engine(1, [&](std::string_view, int64_t) {
      if (broken.exchange(false)) throw std::runtime_error("the lamp went out");
    });
  }));
  head.open();
  expect_answers(*head.door, 10);
  broken = true;
  expect_answers(*head.door, 10);
  ASSERT_TRUE(becomes([&] { return head.log.text().find("replica 1: serves again") != std::string::npos; }));
  EXPECT_THAT(head.log.text(), HasSubstr("the lamp went out"));
  expect_answers(*head.door, 10);
  ASSERT_TRUE(becomes_idle(*head.door));
  EXPECT_TRUE(becomes([&] { return head.door->stats().metrics.num_requests_finished >= 30; }))
      << "those of the engine that died too";
}

TEST(RemoteReplicas, StayPausedAcrossALoss) {
  Head head(1, 0);
  TcpProxy network(head.place.address);
  ReplicaNodeOptions options = node_of(head, 0, 1);
  options.head.address = network.address();
  ReplicaNode node(std::move(options));
  head.open();
  head.door->pause();
  network.drop();
  ASSERT_TRUE(becomes([&] { return head.log.text().find("serves again") != std::string::npos; }));
  RequestStream stream = head.door->submit(token_request({1}, 3));
  EXPECT_FALSE(stream.next(300ms));
  head.door->resume();
  EXPECT_EQ(output_of(stream).completions.at(0).token_ids, expected_tokens({1}, 3));
}

TEST(RemoteReplicas, WhatAHeadHasLeftIsNothingToTheNext) {
  Head head(1, 0);
  ReplicaNode node(node_of(head, 0, 1, [](int) { return testing::endless_engine(); }));
  for (int i = 0; i < 2; ++i) {
    const StartedEngine engine = head.head->start(0, nullptr, {});
    RequestStream stream = engine.client->submit(testing::endless_request("a"));
    ASSERT_TRUE(stream.next(30s));
    engine.client->pause();
  }
}

}  // namespace
}  // namespace ladder
