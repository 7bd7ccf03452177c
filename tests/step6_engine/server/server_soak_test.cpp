// The property of issue 12's server: whatever clients do at the same time, requests of every kind, disconnects, slow
// readers, half bodies, nonsense, the books balance afterwards, and neither descriptors nor memory grow.
//
// LADDER_SOAK_SECONDS: for how long; 4 by default. tools/long_check.sh runs it for ten minutes under AddressSanitizer
// and ThreadSanitizer.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "step6_engine/server/openai/openai_routes.h"
#include "step6_engine/server/server.h"
#include "step6_engine/thread_engine_client.h"
#include "tests/step6_engine/engine_runs.h"
#include "tests/step6_engine/server/http_client.h"

extern "C" __attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes();

namespace ladder {
namespace {

using testing::eventually;
using testing::Random;
using testing::RawClient;
using namespace std::chrono_literals;

int64_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

// Of all arenas: mallinfo() knows the first one alone.
int64_t allocated_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
  char* text = nullptr;
  size_t size = 0;
  FILE* const stream = open_memstream(&text, &size);
  malloc_info(0, stream);
  fclose(stream);
  const std::string info(text, size);
  free(text);
  // The totals stand behind the last heap: <total type="fast" count= size=>, rest, mmap; <system type="current" size=>.
  const size_t totals = info.rfind("</heap>");
  const auto number = [&](const char* element) {
    const size_t found = info.find(element, totals);
    const size_t digits = info.find("size=\"", found);
    return found == std::string::npos ? int64_t{0}
                                      : static_cast<int64_t>(std::stoll(info.substr(digits + 6)));
  };
  return number("<system type=\"current\"") + number("<total type=\"mmap\"") -
         number("<total type=\"fast\"") - number("<total type=\"rest\"");
}

struct Seen {
  std::atomic<int64_t> whole{0}, streams{0}, left{0}, refused{0}, full{0};
};

// One client's behaviour, drawn anew again and again.
class Visitor {
 public:
  Visitor(uint64_t seed, uint16_t port, Seen& seen) : random_(seed), port_(port), seen_(seen) {}

  void act() {
    switch (random_.integer(0, 7)) {
      case 0:
      case 1:
        return whole_answer();
      case 2:
      case 3:
        return whole_stream();
      case 4:
        return leaves();
      case 5:
        return reads_slowly();
      case 6:
        return sends_half();
      default:
        return nonsense();
    }
  }

 private:
  std::string body(bool stream, int64_t max_tokens) {
    std::string prompt = "[";
    for (int64_t i = random_.integer(1, 60); i > 0; --i)
      prompt += std::to_string(random_.integer(0, 40)) + (i > 1 ? "," : "]");
    std::string fields;
    if (random_.integer(0, 3) == 0) fields += R"(,"temperature":0)";
    const bool echo = random_.integer(0, 5) == 0;
    if (echo) fields += R"(,"echo":true)";
    if (!(stream && echo) && random_.integer(0, 3) == 0) fields += R"(,"logprobs":2)";  // a 400 together
    if (random_.integer(0, 3) == 0) fields += R"(,"stop":["zzzz","qqqq"])";
    if (stream) fields += R"(,"stream":true,"stream_options":{"include_usage":true})";
    return R"({"ignore_eos":true,"prompt":)" + prompt + R"(,"max_tokens":)" + std::to_string(max_tokens) +
           fields + "}";
  }
  std::string message(const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  void whole_answer() {
    RawClient client(port_);
    for (int64_t again = random_.integer(1, 3); again > 0; --again) {
      const int64_t tokens = random_.integer(1, 40);
      ASSERT_TRUE(client.send(message(body(false, tokens))));
      const std::string answer = client.answer(120s);
      const int status = testing::status_of(answer);
      if (status == 429) {
        ++seen_.full;
        continue;
      }
      ASSERT_EQ(status, 200) << answer;
      EXPECT_NE(answer.find("\"completion_tokens\":" + std::to_string(tokens)), std::string::npos) << answer;
      ++seen_.whole;
    }
  }

  void whole_stream() {
    RawClient client(port_);
    const int64_t tokens = random_.integer(1, 40);
    ASSERT_TRUE(client.send(message(body(true, tokens))));
    read_stream(client, tokens, 120s);
  }

  void read_stream(RawClient& client, int64_t tokens, std::chrono::milliseconds timeout) {
    ASSERT_TRUE(client.receive_until("\r\n\r\n", timeout));
    if (testing::status_of(client.got()) == 429) {
      ++seen_.full;
      return;
    }
    ASSERT_TRUE(client.receive_until("data: [DONE]", timeout)) << client.got();
    EXPECT_NE(client.got().find("\"completion_tokens\":" + std::to_string(tokens)), std::string::npos)
        << client.got();
    ++seen_.streams;
  }

  void leaves() {
    RawClient client(port_);
    ASSERT_TRUE(client.send(message(body(random_.integer(0, 1) == 0, 150))));
    if (random_.integer(0, 2) > 0) client.receive(std::chrono::milliseconds(random_.integer(0, 50)));
    if (random_.integer(0, 3) == 0) client.shut_writing();
    ++seen_.left;
  }

  void reads_slowly() {
    RawClient client(port_, 2048);
    const int64_t tokens = random_.integer(50, 150);
    ASSERT_TRUE(client.send(message(body(true, tokens))));
    std::this_thread::sleep_for(std::chrono::milliseconds(random_.integer(10, 200)));
    if (random_.integer(0, 1) == 0) read_stream(client, tokens, 120s);
  }

  void sends_half() {
    RawClient client(port_);
    const std::string whole = message(body(true, 20));
    client.send(whole.substr(0, static_cast<size_t>(random_.integer(0, std::ssize(whole) - 1))));
    if (random_.integer(0, 1) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(random_.integer(0, 20)));
    ++seen_.left;
  }

  void nonsense() {
    RawClient client(port_);
    std::string text = message(body(true, 5));
    for (int64_t changes = random_.integer(1, 8); changes > 0; --changes)
      text[static_cast<size_t>(random_.integer(0, std::ssize(text) - 1))] =
          static_cast<char>(random_.integer(0, 255));
    client.send(text);
    client.receive(200ms);
    ++seen_.refused;
  }

  Random random_;
  const uint16_t port_;
  Seen& seen_;
};

TEST(Server_Soak, BooksBalanceAndNothingGrowsWhateverClientsDo) {
  const char* said = std::getenv("LADDER_SOAK_SECONDS");
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(said ? std::atoi(said) : 4);
  EngineOptions options = testing::small_options(testing::tiny_model(), DeviceType::cpu, 256);
  options.runner.batch.num_kv_blocks = 24;  // a sequence and a half: preemptions
  const ModelFolder folder = open_model_folder(options.model);
  const auto model =
      std::make_shared<const ServedModel>(make_served_model(options.model, folder, 256, {"tiny"}));
  ThreadEngineClient client(load_engine(options, folder), {.max_num_queued_reqs = 5});
  ServerOptions server_options;
  server_options.http.port = 0;
  server_options.http.send_buffer_bytes = 4096;
  Server server(server_options, client, [&](Router& router) { add_openai_routes(router, client, model); });

  const uint64_t seed = testing::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Seen seen;
  int64_t descriptors = 0, bytes = 0;
  for (int round = 0; round < 3 || std::chrono::steady_clock::now() < until; ++round) {
    const auto round_ends = std::chrono::steady_clock::now() + (said ? 5s : 1s);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 6; ++i)
      threads.emplace_back([&, i] {
        Visitor visitor(seed + 100 * static_cast<uint64_t>(round) + i, server.port(), seen);
        do visitor.act();
        while (std::chrono::steady_clock::now() < round_ends && !::testing::Test::HasFailure());
      });
    for (std::thread& thread : threads) thread.join();
    if (HasFailure()) return;

    EXPECT_TRUE(eventually([&] { return server.http().num_connections() == 0; }, 60s))
        << server.http().num_connections() << " connections are left";
    EXPECT_EQ(server.http().num_requests(), 0);
    EXPECT_TRUE(eventually([&] { return client.stats().num_requests == 0; }, 60s))
        << client.stats().num_requests << " requests are left";
    EXPECT_TRUE(eventually([&] { return client.stats().scheduler.num_used_blocks == 0; }, 60s));
    const EngineStats stats = client.stats();
    EXPECT_EQ(stats.scheduler.num_running + stats.scheduler.num_waiting, 0);
    EXPECT_EQ(stats.error, "");
    EXPECT_EQ(server.health(), EngineHealth::ok);
    if (round == 1) {  // the first filled what is kept: buffers, the prefix cache
      descriptors = open_descriptors();
      bytes = allocated_bytes();
    } else if (round > 1) {
      EXPECT_EQ(open_descriptors(), descriptors);
      EXPECT_LT(allocated_bytes(), bytes + (1 << 20)) << "round " << round;
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(seen.whole, 0);
  EXPECT_GT(seen.streams, 0);
  EXPECT_GT(seen.left, 0);
  printf("%ld whole answers, %ld streams, %ld left early, %ld of nonsense, %ld found the queue full\n",
         static_cast<long>(seen.whole), static_cast<long>(seen.streams), static_cast<long>(seen.left),
         static_cast<long>(seen.refused), static_cast<long>(seen.full));
}

}  // namespace
}  // namespace ladder
