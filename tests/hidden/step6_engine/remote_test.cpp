// Task 6.9: messages of any size in pieces of any size, and turns of an engine that the test plays.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <future>
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/process/wire.h"
#include "step6_engine/remote/engine_wire_forms.h"
#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/remote/make_client.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::fake_config;
using testing::Random;
using testing::SocketPair;
using testing::token_request;

std::string random_bytes(Random& random, int64_t max_size) {
  std::string bytes(static_cast<size_t>(random.integer(0, max_size)), '\0');
  for (size_t i = 0; i < bytes.size(); i += 97) bytes[i] = static_cast<char>(random.integer(0, 255));
  return bytes;
}

std::string frame(uint32_t type, const std::string& bytes) {
  std::string result;
  WireWriter{result}(static_cast<uint32_t>(bytes.size()), type);
  return result + bytes;
}

void send_raw(const FileDescriptor& socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

// Writer and number go before the bytes, so that each writer's order can be seen.
TEST(Hidden6_9_MessageSocket, SeveralWritersAndAReaderThatPauses) {
  Random random;
  SCOPED_TRACE(random.describe());
  SocketPair pair;
  MessageSocket writer(std::move(pair.user)), reader(std::move(pair.engine));
  constexpr uint32_t kWriters = 3;
  std::vector<std::vector<std::string>> sent(kWriters);
  for (auto& list : sent)
    for (int64_t i = random.integer(20, 60); i > 0; --i)
      list.push_back(random_bytes(random, random.one_of<int64_t>({0, 20, 5'000, 3'000'000})));
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kWriters; ++i)
    threads.emplace_back([&, i] {
      try {
        for (const std::string& bytes : sent[i]) writer.write(i, bytes);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
    });
  std::vector<size_t> num_read(kWriters, 0);
  for (size_t left = sent[0].size() + sent[1].size() + sent[2].size(); left > 0; --left) {
    if (random.integer(0, 9) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random.integer(0, 2000)));
    std::optional<Message> message;
    try {
      message = reader.read();
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    if (!message || message->type >= kWriters || num_read[message->type] >= sent[message->type].size() ||
        message->bytes != sent[message->type][num_read[message->type]++]) {
      ADD_FAILURE() << "not the message that was sent, with " << left << " to come";
      reader.shut_down();
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// Signals meet both sides; pieces end anywhere, also several messages in one.
TEST(Hidden6_9_MessageSocket, PiecesAndSignalsAreTakenTogether) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};  // no SA_RESTART: calls return EINTR
  sigaction(SIGUSR1, &action, &before);
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 10; ++round) {
    SocketPair pair;
    MessageSocket reader(std::move(pair.engine));
    std::vector<std::string> sent;
    std::string stream;
    for (int64_t i = random.integer(1, 8); i > 0; --i) {
      sent.push_back(random_bytes(random, 60));
      stream += frame(static_cast<uint32_t>(sent.size()), sent.back());
    }
    std::thread thread(
        [&, reading = pthread_self(), socket = std::move(pair.user), seed = random.engine()()] {
          Random own(seed);
          for (size_t at = 0; at < stream.size();) {
            const auto size = static_cast<size_t>(own.integer(1, 20));
            send_raw(socket, std::string_view(stream).substr(at, size));
            at += size;
            if (own.integer(0, 1) == 0) std::this_thread::sleep_for(300us);
            pthread_kill(reading, SIGUSR1);
          }
        });
    try {
      for (size_t i = 0; i < sent.size(); ++i) {
        const auto message = reader.read();
        EXPECT_TRUE(message && message->type == i + 1 && message->bytes == sent[i]) << "message " << i;
      }
      EXPECT_FALSE(reader.read().has_value()) << "the end between two messages";
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      reader.shut_down();
    }
    thread.join();
  }
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(Hidden6_9_MessageSocket, ACutAnywhereIsAnErrorUnlessItIsBetweenTwo) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    const std::string first = frame(1, random_bytes(random, 100)),
                      second = frame(2, random_bytes(random, 20'000));
    // Often within the second message's size and type.
    const size_t cut = random.integer(0, 1) == 0
                           ? first.size() + static_cast<size_t>(random.integer(0, 8))
                           : static_cast<size_t>(random.integer(1, std::ssize(first) + std::ssize(second)));
    SocketPair pair;
    MessageSocket reader(std::move(pair.engine));
    send_raw(pair.user, (first + second).substr(0, cut));
    pair.user.close();
    size_t num_messages = 0;
    bool failed = false;
    try {
      while (reader.read()) ++num_messages;
    } catch (const Error&) {
      failed = true;
    }
    EXPECT_EQ(num_messages, cut < first.size() ? 0u : cut < first.size() + second.size() ? 1u : 2u) << cut;
    EXPECT_EQ(failed, cut != first.size() && cut != first.size() + second.size())
        << cut << " of " << first.size();
  }
}

// There is room again when the next one is tried; what was sent may not be followed by it.
TEST(Hidden6_9_MessageSocket, AMessageThatWasNotTakenIsTheLast) {
  Random random;
  SCOPED_TRACE(random.describe());
  SocketPair pair;
  MessageSocket writer(std::move(pair.user));
  const auto size = static_cast<size_t>(random.integer(2 << 20, 8 << 20));
  EXPECT_THROW(writer.write(1, std::string(size, 'x'), 50ms), Error);
  std::string taken(1 << 20, '\0');
  while (::recv(pair.engine.number(), taken.data(), taken.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_THROW(writer.write(2, "more", 50ms), Error);
  EXPECT_LE(::recv(pair.engine.number(), taken.data(), taken.size(), MSG_DONTWAIT), 0)
      << "something was sent";
}

// The engine's side is played by the test.
struct PlayedEngine {
  explicit PlayedEngine(EngineClientOptions options = {}) {
    SocketPair pair;
    engine = std::make_unique<MessageSocket>(std::move(pair.engine));
    client = std::make_unique<SocketEngineClient>(std::make_unique<MessageSocket>(std::move(pair.user)),
                                                  fake_config(), nullptr, std::move(options));
  }
  ~PlayedEngine() { engine->shut_down(); }  // or the client would wait for its answer to stop()
  SubmitMessage read_submit() {
    std::optional<Message> message;
    do message = engine->read();
    while (message && message->type != static_cast<uint32_t>(EngineMessage::submit));
    return from_bytes<SubmitMessage>(message.value().bytes);
  }
  void send(const TurnMessage& turn) {
    engine->write(static_cast<uint32_t>(EngineMessage::turn), to_bytes(turn));
  }

  std::unique_ptr<MessageSocket> engine;
  std::unique_ptr<SocketEngineClient> client;
};

struct Asked {
  uint64_t number = 0;
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> sent, got;  // by completion
  std::optional<RequestStream> stream;
  std::optional<RequestOutput> output;

  // Whatever is there; waits for the first.
  void read() {
    while (!output) {
      const std::optional<StreamUpdate> news = stream->next(20s);
      if (!news) {
        ADD_FAILURE() << "nothing came of request " << number;
        return;
      }
      for (const CompletionUpdate& update : news->updates) {
        EXPECT_EQ(update.request_id, stream->request_id());
        auto& list = got.at(static_cast<size_t>(update.completion));
        list.insert(list.end(), update.token_ids.begin(), update.token_ids.end());
      }
      if (news->output) output = news->output;
    }
  }
};

TEST(Hidden6_9_Turns, NewsGoToTheirRequestsAndIdsAreFreeAtOnce) {
  Random random;
  SCOPED_TRACE(random.describe());
  std::atomic<int> num_turns = 0;
  PlayedEngine played({.on_turn = [&] { ++num_turns; }});
  std::vector<std::unique_ptr<Asked>> running;
  std::vector<uint64_t> ended;
  int num_sent = 0;
  for (int turn = 0; turn < 120; ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    while (std::ssize(running) < 4) {
      auto asked = std::make_unique<Asked>();
      for (int64_t i = random.integer(1, 8); i > 0; --i)
        asked->prompt.push_back(static_cast<int32_t>(random.integer(1, 99)));
      std::string id;  // one that an ended request had, as soon as its end was read
      for (int i = 0; id.empty(); ++i) {
        const std::string candidate = "id " + std::to_string(i);
        if (std::none_of(running.begin(), running.end(),
                         [&](const auto& one) { return one->stream->request_id() == candidate; }))
          id = candidate;
      }
      Request request = token_request(asked->prompt, 9, id);
      request.sampling.n = static_cast<int32_t>(random.integer(1, 3));
      ASSERT_NO_THROW(asked->stream.emplace(played.client->submit(request)));
      asked->sent.resize(static_cast<size_t>(request.sampling.n));
      asked->got = asked->sent;
      const SubmitMessage submit = played.read_submit();
      EXPECT_EQ(submit.request.prompt_token_ids, asked->prompt);
      asked->number = submit.number;
      running.push_back(std::move(asked));
    }
    TurnMessage message;
    message.stats.metrics.num_steps = turn + 1;
    if (!ended.empty() && random.integer(0, 2) == 0) {  // of one that has ended: dropped
      message.updates.push_back({random.one_of(ended), {}});
      message.updates.back().update.token_ids = {-1};
    }
    for (auto& asked : running)
      for (size_t i = 0; i < asked->sent.size(); ++i) {
        if (random.integer(0, 1) == 0) continue;
        message.updates.push_back({asked->number, {}});
        CompletionUpdate& update = message.updates.back().update;
        update.completion = static_cast<int64_t>(i);
        for (int64_t k = random.integer(1, 3); k > 0; --k)
          update.token_ids.push_back(static_cast<int32_t>(random.integer(1, 999)));
        asked->sent[i].insert(asked->sent[i].end(), update.token_ids.begin(), update.token_ids.end());
      }
    std::unique_ptr<Asked> last;
    if (random.integer(0, 2) == 0) {
      const auto at = random.integer(0, std::ssize(running) - 1);
      last = std::move(running[static_cast<size_t>(at)]);
      running.erase(running.begin() + at);
      message.outputs.push_back({last->number, {}});
      for (const auto& tokens : last->sent) {
        message.outputs.back().output.completions.emplace_back();
        message.outputs.back().output.completions.back().token_ids = tokens;
      }
      if (!ended.empty() && random.integer(0, 1) == 0) message.outputs.push_back({random.one_of(ended), {}});
      ended.push_back(last->number);
    }
    played.send(message);
    ++num_sent;
    if (!last) continue;
    last->read();
    EXPECT_EQ(last->got, last->sent);
    ASSERT_TRUE(last->output.has_value());
    EXPECT_EQ(last->output->request_id, last->stream->request_id());
    EXPECT_EQ(last->output->prompt_token_ids, last->prompt);
    EXPECT_EQ(played.client->stats().metrics.num_steps, turn + 1) << "the statistics come first";
    EXPECT_EQ(played.client->stats().num_requests, std::ssize(running));
  }
  for (int i = 0; i < 10'000 && num_turns < num_sent; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(num_turns, num_sent) << "on_turn, once for each";

  // The engine is lost: what was told so far is the answer, and an error.
  std::future<void> paused = std::async(std::launch::async, [&] { played.client->pause(); });
  std::optional<Message> message;
  do message = played.engine->read();
  while (message && message->type != static_cast<uint32_t>(EngineMessage::call));
  played.engine->shut_down();
  for (auto& asked : running) {
    asked->read();
    EXPECT_EQ(asked->got, asked->sent);
    ASSERT_TRUE(asked->output && asked->output->completions.size() == asked->sent.size());
    for (size_t i = 0; i < asked->sent.size(); ++i) {
      EXPECT_EQ(asked->output->completions[i].token_ids, asked->sent[i]) << "what it had";
      EXPECT_EQ(asked->output->completions[i].finish_reason, FinishReason::error);
    }
  }
  EXPECT_THROW(paused.get(), EngineUnavailable);
}

TEST(Hidden6_9_Turns, RepliesGoToTheirCalls) {
  Random random;
  SCOPED_TRACE(random.describe());
  PlayedEngine played;
  std::vector<std::future<TraceSlice>> slices;
  const int64_t count = random.integer(2, 6);
  for (int64_t i = 0; i < count; ++i)
    slices.push_back(std::async(std::launch::async, [&, i] { return played.client->trace_since(i, 10); }));
  TurnMessage turn;
  for (int64_t i = 0; i < count; ++i) {
    const auto call = from_bytes<CallMessage>(played.engine->read()->bytes);
    ReplyMessage reply;
    reply.number = call.number;
    reply.trace.next = 100 + call.trace_position;
    turn.replies.insert(turn.replies.begin() + random.integer(0, std::ssize(turn.replies)), reply);
  }
  turn.replies.emplace_back().number = 999'999;  // nobody's
  played.send(turn);
  for (int64_t i = 0; i < count; ++i) EXPECT_EQ(slices[static_cast<size_t>(i)].get().next, 100 + i);
}

TEST(Hidden6_9_Turns, TheQueueIsWhatIsSentAndNotTakenAndWhatWaitsThere) {
  Random random;
  SCOPED_TRACE(random.describe());
  const int64_t limit = random.integer(3, 9);
  PlayedEngine played({.max_num_queued_reqs = limit});
  std::vector<RequestStream> streams;
  int64_t num_sent = 0, num_there = 0, num_taken = 0;
  for (int round = 0; round < 30; ++round) {
    for (int64_t i = random.integer(0, limit); i > 0; --i) {
      if (num_sent - num_taken + num_there >= limit) {
        EXPECT_THROW(streams.push_back(played.client->submit(token_request({1}, 9))), QueueFull);
      } else {
        ASSERT_NO_THROW(streams.push_back(played.client->submit(token_request({1}, 9))))
            << num_sent << " sent, " << num_taken << " taken, " << num_there << " wait there";
        ++num_sent;
        played.read_submit();
      }
    }
    num_taken = random.integer(num_taken, num_sent);
    num_there = random.integer(0, limit);
    TurnMessage turn;
    turn.stats.metrics.num_steps = round + 1;
    turn.stats.queued = {num_there, num_there};
    turn.taken = {num_taken, num_taken};
    played.send(turn);
    for (int i = 0; i < 10'000 && played.client->stats().metrics.num_steps <= round; ++i)
      std::this_thread::sleep_for(1ms);
  }
}

}  // namespace
}  // namespace ladder
