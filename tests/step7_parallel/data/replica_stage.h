#pragma once
// For the tests of a replica: engines that serve nothing, and say of themselves what a test wants.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "step1_layers/core/error.h"
#include "step7_parallel/data/replica.h"

namespace ladder::testing {

// What an engine says of itself, to be set by a test; it serves nothing.
struct FakeLife {
  std::mutex mutex;
  EngineStats stats;
  std::vector<std::string> calls;

  void set(const std::function<void(EngineStats&)>& change) {
    std::lock_guard lock(mutex);
    change(stats);
  }
  int count(const std::string& call) {
    std::lock_guard lock(mutex);
    return static_cast<int>(std::ranges::count(calls, call));
  }
};

class FakeClient final : public EngineClient {
 public:
  explicit FakeClient(std::shared_ptr<FakeLife> life) : life_(std::move(life)) {}
  ~FakeClient() override { note("end"); }
  RequestStream submit(const Request&, std::function<void()>) override { fail("it serves nothing"); }
  void abort(const RequestId&) override {}
  EngineStats stats() const override {
    std::lock_guard lock(life_->mutex);
    return life_->stats;
  }
  void pause() override { note("pause"); }
  void resume() override { note("resume"); }
  bool reset_prefix_cache() override { return true; }
  void stop(std::chrono::milliseconds drain) override { note("stop " + std::to_string(drain.count())); }

 private:
  void note(const std::string& call) {
    std::lock_guard lock(life_->mutex);
    life_->calls.push_back(call);
  }
  const std::shared_ptr<FakeLife> life_;
};

// A replica whose engines are what the test says, one life after the other.
struct Stage {
  std::mutex mutex;
  std::vector<std::shared_ptr<FakeLife>> lives;
  std::vector<std::string> lines;
  std::vector<std::chrono::steady_clock::time_point> starts;
  std::atomic<bool> can_start = true;
  std::atomic<int> num_lost = 0;

  ReplicaOptions options() {
    ReplicaOptions options;
    options.number = 3;
    options.first_pause = std::chrono::milliseconds(10);
    options.max_pause = std::chrono::milliseconds(40);
    options.stuck_after = std::chrono::milliseconds(50);
    options.start = [this] {
      std::lock_guard lock(mutex);
      starts.push_back(std::chrono::steady_clock::now());
      LADDER_CHECK(can_start, "no lamp");
      lives.push_back(std::make_shared<FakeLife>());
      SchedulerConfig config;
      config.vocab_size = 77;
      return StartedEngine{std::make_unique<FakeClient>(lives.back()), config};
    };
    options.log = [this](const std::string& line) {
      std::lock_guard lock(mutex);
      lines.push_back(line);
    };
    options.on_lost = [this] { ++num_lost; };
    return options;
  }
  std::shared_ptr<FakeLife> life(size_t index) {
    std::lock_guard lock(mutex);
    return index < lives.size() ? lives[index] : nullptr;
  }
  size_t num_starts() {
    std::lock_guard lock(mutex);
    return starts.size();
  }
  std::vector<std::string> said() {
    std::lock_guard lock(mutex);
    return lines;
  }
};

}  // namespace ladder::testing
