// Task 6.9: what happens to requests when one of the two sides goes, or says nonsense.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "step1_layers/core/error.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/step6_engine/remote/make_client.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::fake_config;
using testing::FakeExecutor;
using testing::ServerThread;
using testing::SocketPair;
using testing::token_request;

std::unique_ptr<Engine> fake_engine(FakeExecutor::Fault fault = {}) {
  return std::make_unique<Engine>(std::make_unique<FakeExecutor>(testing::mixed, 1, std::move(fault)),
                                  fake_config(), nullptr);
}

// The engine's side is played by the test.
struct PlayedEngine {
  PlayedEngine(EngineClientOptions options = {}) {
    SocketPair pair;
    engine = std::make_unique<MessageSocket>(std::move(pair.engine));
    client = std::make_unique<SocketEngineClient>(std::make_unique<MessageSocket>(std::move(pair.user)),
                                                  fake_config(), nullptr, std::move(options));
  }
  ~PlayedEngine() { engine->shut_down(); }  // or the client would wait for its answer to stop()
  uint64_t read_submit() { return from_bytes<SubmitMessage>(engine->read()->bytes).number; }
  void send(const TurnMessage& turn) {
    engine->write(static_cast<uint32_t>(EngineMessage::turn), to_bytes(turn));
  }

  std::unique_ptr<MessageSocket> engine;
  std::unique_ptr<SocketEngineClient> client;
};

TurnMessage turn_with_token(uint64_t number, int32_t token) {
  TurnMessage turn;
  turn.updates.push_back({number, {}});
  turn.updates[0].update.token_ids = {token};
  return turn;
}

TEST(Task6_9_Failures, ALostEngineEndsEveryRequestWithWhatItHadAndSaysSo) {
  PlayedEngine played;
  Request two = token_request({1, 2}, 9, "two");
  two.sampling.n = 2;
  RequestStream stream = played.client->submit(two), unread = played.client->submit(token_request({3}, 9));
  TurnMessage turn = turn_with_token(played.read_submit(), 7);
  turn.updates[0].update.completion = 1;
  played.send(turn);
  EXPECT_EQ(stream.next()->updates.at(0).token_ids, (std::vector<int32_t>{7}));
  std::future<void> paused = std::async(std::launch::async, [&] { played.client->pause(); });
  played.read_submit();
  played.engine->read();  // the call: it is waited for
  const auto begin = std::chrono::steady_clock::now();
  played.engine->shut_down();

  const RequestOutput output = stream.output();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, SocketEngineClient::kPatience - 1s);
  EXPECT_EQ(output.request_id, "two");
  EXPECT_EQ(output.prompt_token_ids, (std::vector<int32_t>{1, 2}));
  ASSERT_EQ(output.completions.size(), 2u);
  EXPECT_EQ(output.completions[1].token_ids, (std::vector<int32_t>{7})) << "also what was read before";
  for (const CompletionOutput& completion : output.completions) {
    EXPECT_EQ(completion.finish_reason, FinishReason::error);
    EXPECT_EQ(completion.error, "the engine has closed the connection");
  }
  EXPECT_EQ(unread.output().completions.at(0).finish_reason, FinishReason::error);
  EXPECT_THROW(paused.get(), EngineUnavailable);
  EXPECT_EQ(played.client->stats().error, "the engine has closed the connection");
  EXPECT_EQ(played.client->stats().num_requests, 0);
  EXPECT_THROW(played.client->submit(token_request({1}, 1)), EngineUnavailable);
  EXPECT_THROW(played.client->resume(), EngineUnavailable);
  EXPECT_THROW(played.client->trace_since(0, 1), EngineUnavailable);
  played.client->abort("two");
  played.client->stop();
}

TEST(Task6_9_Failures, WhatIsNoMessageEndsTheConnection) {
  const auto error_after = [](uint32_t type, const std::string& bytes) {
    PlayedEngine played;
    RequestStream stream = played.client->submit(token_request({3}, 9));
    played.read_submit();
    played.engine->write(type, bytes);
    return stream.output().completions.at(0).error;
  };
  const auto turn = static_cast<uint32_t>(EngineMessage::turn);
  EXPECT_EQ(error_after(turn, "x").substr(0, 8), "message:");
  EXPECT_EQ(error_after(turn, to_bytes(TurnMessage{}) + "x"), "message: 1 bytes are left behind its end");
  EXPECT_EQ(error_after(99, ""), "message: type 99 is not one that an engine sends");
  TurnMessage strange = turn_with_token(0, 1);
  strange.updates[0].update.completion = 1;
  EXPECT_EQ(error_after(turn, to_bytes(strange)), "message: completion 1 of 1");
}

TEST(Task6_9_Failures, NewsOfARequestThatHasEndedIsDropped) {
  PlayedEngine played;
  RequestStream first = played.client->submit(token_request({3}, 9, "a"));
  const uint64_t number = played.read_submit();
  TurnMessage end;
  end.outputs.push_back({number, {}});
  end.outputs[0].output.completions.resize(1);
  played.send(end);
  first.output();
  RequestStream second = played.client->submit(token_request({4}, 9, "a"));  // the id is free
  const uint64_t its_number = played.read_submit();
  EXPECT_NE(its_number, number);
  played.send(turn_with_token(number, 5));
  played.send(end);
  played.send(turn_with_token(its_number, 6));
  EXPECT_EQ(second.next()->updates.at(0).token_ids, (std::vector<int32_t>{6})) << "and nothing before";
  EXPECT_EQ(played.client->stats().num_requests, 1);
}

// Its queue is counted before it answers: what was sent and not taken counts.
TEST(Task6_9_Failures, TheQueueIsBoundedBeforeTheEngineHasSeenIt) {
  PlayedEngine played({.max_num_queued_reqs = 2});
  std::vector<RequestStream> streams;
  streams.push_back(played.client->submit(token_request({1}, 9)));
  streams.push_back(played.client->submit(token_request({1}, 9)));
  EXPECT_THROW(played.client->submit(token_request({1}, 9)), QueueFull);
  TurnMessage turn = turn_with_token(0, 5);
  turn.taken = {2, 2};
  turn.stats.queued = {1, 1};
  played.send(turn);
  streams[0].next();
  streams.push_back(played.client->submit(token_request({1}, 9)));
  EXPECT_THROW(played.client->submit(token_request({1}, 9)), QueueFull);
}

// The peer reads nothing: stopped, or stuck.
TEST(Task6_9_Failures, AnEngineThatTakesNothingIsGivenUp) {
  PlayedEngine played;
  Request large = token_request(std::vector<int32_t>(60, 1), 1);
  large.sampling.stop_token_ids.assign(256, 1);
  std::vector<RequestStream> streams;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(
      {
        while (std::chrono::steady_clock::now() - begin < 60s)
          streams.push_back(played.client->submit(large));
      },
      EngineUnavailable);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, SocketEngineClient::kPatience - 1s) << "it had no time";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  for (RequestStream& stream : streams)
    EXPECT_EQ(stream.output().completions.at(0).finish_reason, FinishReason::error);
}

// A window that asks is not held up by an engine that does not answer: after its patience there is nothing new.
TEST(Task6_9_Failures, ATraceThatDoesNotComeIsNotWaitedForForEver) {
  PlayedEngine played;
  std::future<TraceSlice> slice =
      std::async(std::launch::async, [&] { return played.client->trace_since(7, 100); });
  const std::optional<Message> asked = played.engine->read();  // and not answered
  ASSERT_TRUE(asked && asked->type == static_cast<uint32_t>(EngineMessage::call));
  EXPECT_EQ(slice.wait_for(SocketEngineClient::kPatience - 1s), std::future_status::timeout);
  EXPECT_EQ(slice.wait_for(30s), std::future_status::ready);
  TurnMessage turn;  // its answer comes late, and that is no harm
  turn.replies.resize(1);
  turn.replies[0].number = from_bytes<CallMessage>(asked->bytes).number;
  turn.replies[0].trace = {{"late"}, 99, true};
  played.send(turn);
  const TraceSlice nothing = slice.get();
  EXPECT_TRUE(nothing.lines.empty());
  EXPECT_EQ(nothing.next, 7) << "the next question is the same one";
  EXPECT_FALSE(nothing.restarted);
  EXPECT_EQ(played.client->stats().error, "") << "the engine is not given up for it";
}

// The other side: a user that goes, or that sends nonsense, leaves no step running.
TEST(Task6_9_Failures, AUserThatGoesEndsTheEngine) {
  for (const bool nonsense : {false, true}) {
    std::atomic<int64_t> num_steps = 0;
    SocketPair pair;
    MessageSocket user(std::move(pair.user));
    ServerThread server(std::move(pair.engine), fake_engine([&](std::string_view, int64_t) {
                          ++num_steps;
                          std::this_thread::sleep_for(20ms);
                        }));
    EXPECT_EQ(user.read()->type, static_cast<uint32_t>(EngineMessage::ready));
    const SubmitMessage submit{0, token_request({1, 2, 3}, 60, "a")};
    user.write(static_cast<uint32_t>(EngineMessage::submit), to_bytes(submit));
    while (num_steps == 0) std::this_thread::sleep_for(1ms);
    if (nonsense) {
      user.write(static_cast<uint32_t>(EngineMessage::submit), to_bytes(submit).substr(0, 20));
      while (user.read()) {
      }
    } else {
      user.shut_down();
    }
    EXPECT_EQ(server.join().empty(), !nonsense);
    EXPECT_LT(num_steps, 2 * 60) << "submit and collect of each step";
  }
}

// What the engine refuses, though its user has let it pass, is an answer too.
TEST(Task6_9_Failures, ARequestThatTheEngineRefusesEndsWithItsError) {
  SocketPair pair;
  MessageSocket user(std::move(pair.user));
  ServerThread server(std::move(pair.engine), fake_engine());
  user.read();
  user.write(static_cast<uint32_t>(EngineMessage::submit),
             to_bytes(SubmitMessage{5, token_request({}, 60, "a")}));
  TurnMessage turn;
  while (turn.outputs.empty()) turn = from_bytes<TurnMessage>(user.read()->bytes);
  EXPECT_EQ(turn.outputs[0].number, 5u);
  EXPECT_EQ(turn.outputs[0].output.completions.at(0).finish_reason, FinishReason::error);
  EXPECT_NE(turn.outputs[0].output.completions[0].error, "");
  user.shut_down();
  EXPECT_EQ(server.join(), "");
}

// All updates of one step are one message, and each reader is told once.
TEST(Task6_9_Turns, AStepIsOneMessage) {
  SocketPair pair;
  MessageSocket user(std::move(pair.user));
  ServerThread server(std::move(pair.engine), fake_engine([](std::string_view call, int64_t) {
                        if (call == "submit") std::this_thread::sleep_for(2ms);
                      }));
  user.read();
  const auto call = [&user](EngineCall call) {
    user.write(static_cast<uint32_t>(EngineMessage::call), to_bytes(CallMessage{.call = call}));
  };
  call(EngineCall::pause);  // so that all begin in one step
  while (from_bytes<TurnMessage>(user.read()->bytes).replies.empty()) {
  }
  for (uint64_t i = 0; i < 8; ++i)
    user.write(static_cast<uint32_t>(EngineMessage::submit),
               to_bytes(SubmitMessage{i, token_request({static_cast<int32_t>(i)}, 20, std::to_string(i))}));
  call(EngineCall::resume);
  size_t num_tokens = 0, num_messages = 0;
  for (size_t num_outputs = 0; num_outputs < 8;) {
    const auto turn = from_bytes<TurnMessage>(user.read()->bytes);
    for (const UpdateMessage& one : turn.updates) num_tokens += one.update.token_ids.size();
    num_messages += !turn.updates.empty();
    num_outputs += turn.outputs.size();
  }
  EXPECT_EQ(num_tokens, 8u * 20u);
  EXPECT_LE(num_messages, 24u) << "20 steps, of which few are told in two parts";
  user.shut_down();
  EXPECT_EQ(server.join(), "");
}

// A user that does not read fills no memory: what it has not read comes merged.
TEST(Task6_9_Turns, AUserThatDoesNotReadGetsFewerLargerUpdates) {
  SchedulerConfig config = fake_config();
  config.batch.max_model_len = 1 << 20;
  config.batch.num_kv_blocks = 1 << 19;
  config.enable_prefix_caching = false;
  std::atomic<int64_t> num_steps = 0;
  auto engine = std::make_unique<Engine>(
      std::make_unique<FakeExecutor>(
          [](const std::vector<int32_t>& ids, int64_t) { return ids.back() % 900 + 1; }, 1,
          [&](std::string_view call, int64_t) { num_steps += call == "submit"; }),
      config, nullptr);
  SocketPair pair;
  MessageSocket user(std::move(pair.user));
  ServerThread server(std::move(pair.engine), std::move(engine));
  user.read();
  constexpr int64_t kTokens = 100'000;
  user.write(static_cast<uint32_t>(EngineMessage::submit),
             to_bytes(SubmitMessage{0, token_request({1}, kTokens, "a")}));
  while (num_steps < kTokens) std::this_thread::sleep_for(1ms);  // the engine waits for no reader
  int64_t num_tokens = 0, num_messages = 0, largest = 0;
  for (bool ended = false; !ended; ++num_messages) {
    const auto turn = from_bytes<TurnMessage>(user.read()->bytes);
    for (const UpdateMessage& one : turn.updates) {
      num_tokens += std::ssize(one.update.token_ids);
      largest = std::max<int64_t>(largest, std::ssize(one.update.token_ids));
    }
    ended = !turn.outputs.empty();
  }
  EXPECT_EQ(num_tokens, kTokens);
  EXPECT_LT(num_messages, kTokens / 10) << "what the socket's buffers hold, and the rest";
  EXPECT_GT(largest, kTokens / 2);
  user.shut_down();
  EXPECT_EQ(server.join(), "");
}

TEST(Task6_9_Turns, NothingIsLeftOpen) {
  const int files = testing::num_open_files(), threads = testing::num_threads();
  for (int i = 0; i < 20; ++i) {
    const testing::ClientPointer client = testing::client_over_a_socket(fake_engine(), {});
    RequestStream stream = client->submit(token_request({1}, 20));
    client->pause();
    client->resume();
    if (i % 2 == 0) stream.output();
  }
  EXPECT_EQ(testing::num_open_files(), files);
  EXPECT_TRUE(testing::threads_end(threads));
}

}  // namespace
}  // namespace ladder
