#pragma once
// For the tests of every EngineClient: engines over an executor without a model, and the fixture that has its tests run over
// each kind of client.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/step6_engine/fake_engine.h"
#include "tests/step6_engine/remote/make_client.h"

namespace ladder::testing {

inline std::unique_ptr<Engine> fake_engine(int max_in_flight = 1, FakeExecutor::Fault fault = {},
                                           SchedulerConfig config = fake_config()) {
  return std::make_unique<Engine>(std::make_unique<FakeExecutor>(mixed, max_in_flight, std::move(fault)),
                                  config, nullptr);
}

// Holds the loop in its next submit() until it is let go. Shared with the executor.
class Gate {
 public:
  FakeExecutor::Fault fault() {
    return [this](std::string_view call, int64_t) {
      std::unique_lock lock(mutex_);
      if (call != "submit" || !closed_) return;
      ++num_waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !closed_; });
      --num_waiting_;
    };
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = true;
  int num_waiting_ = 0;
};

// A request that runs long enough to be caught in the middle: 2^20 tokens.
inline SchedulerConfig long_config() {
  SchedulerConfig config = fake_config();
  config.batch.max_model_len = int64_t{1} << 20;
  config.batch.num_kv_blocks = int64_t{1} << 19;
  config.enable_prefix_caching = false;
  return config;
}
inline Request endless_request(RequestId id = {}) {
  return token_request({1, 2, 3}, int64_t{1} << 20, std::move(id));
}
// Cheap for long sequences.
inline std::unique_ptr<Engine> endless_engine(FakeExecutor::Fault fault = {}, int max_in_flight = 1,
                                              SchedulerConfig config = long_config()) {
  return std::make_unique<Engine>(
      std::make_unique<FakeExecutor>(
          [](const std::vector<int32_t>& token_ids, int64_t) { return token_ids.back() % 900 + 1; },
          max_in_flight, std::move(fault)),
      std::move(config), nullptr);
}

// The stream's output, or an exception that fails the test, where RequestStream::output() would wait for ever.
inline RequestOutput output_of(RequestStream& stream) {
  while (!stream.ended()) {
    std::optional<StreamUpdate> update = stream.next(std::chrono::seconds(60));
    if (!update) throw std::runtime_error("request " + stream.request_id() + ": nothing came for a minute");
    if (update->output) return std::move(*update->output);
  }
  throw std::runtime_error("request " + stream.request_id() + ": its output was read before");
}
inline RequestOutput output_of(RequestStream&& stream) {
  return output_of(stream);
}

// Waits until no request is left, neither in the client nor, a turn of the loop later, in the scheduler.
inline ::testing::AssertionResult becomes_idle(const EngineClient& client) {
  for (const auto begin = StreamBuffer::Clock::now();
       StreamBuffer::Clock::now() - begin < std::chrono::seconds(60);) {
    const EngineStats stats = client.stats();
    if (stats.num_requests + stats.scheduler.num_running + stats.scheduler.num_waiting == 0)
      return ::testing::AssertionSuccess();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ::testing::AssertionFailure() << "requests are left after a minute";
}

// Whoever uses an EngineClient must not see which one it is.
class EngineClientTest : public ::testing::TestWithParam<MakeClient> {
 protected:
  using ClientPointer = testing::ClientPointer;
  ClientPointer make_client(std::unique_ptr<Engine> engine, EngineClientOptions options = {}) {
    return GetParam()(std::move(engine), std::move(options));
  }
};

}  // namespace ladder::testing
