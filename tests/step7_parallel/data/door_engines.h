#pragma once
// For the tests of the door: replicas whose engines a test makes, and breaks.
#include <array>
#include <atomic>
#include <stdexcept>

#include "step6_engine/thread_engine_client.h"
#include "step7_parallel/data/data_parallel_client.h"
#include "tests/step6_engine/fake_executor.h"

namespace ladder::testing {

inline DataParallelOptions options_for(int num_replicas,
                                       std::function<std::unique_ptr<Engine>(int number)> make) {
  DataParallelOptions options;
  options.num_replicas = num_replicas;
  options.balancer = "round_robin";
  options.first_pause = std::chrono::milliseconds(10);
  options.max_pause = std::chrono::milliseconds(50);
  options.start = [make = std::move(make)](int number) {
    std::unique_ptr<Engine> engine = make(number);
    StartedEngine started;
    started.config = engine->scheduler().config();
    started.client = std::make_unique<ThreadEngineClient>(std::move(engine));
    return started;
  };
  return options;
}

// Faults that can be planted in the engine that lives as replica `number`.
struct Faults {
  std::array<std::atomic<bool>, 8> broken{};
  std::array<std::atomic<int>, 8> num_started{};
  FakeExecutor::Fault of(int number) {
    ++num_started[static_cast<size_t>(number)];
    return [this, number](std::string_view, int64_t) {
      if (broken[static_cast<size_t>(number)].exchange(false)) throw std::runtime_error("the lamp went out");
    };
  }
};

}  // namespace ladder::testing
