#include "step6_engine/server/health/engine_watch.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

std::string_view health_name(EngineHealth health) {
  switch (health) {
    case EngineHealth::ok:
      return "ok";
    case EngineHealth::draining:
      return "draining";
    case EngineHealth::down:
      return "down";
    case EngineHealth::stuck:
      return "stuck";
    case EngineHealth::dead:
      return "dead";
  }
  return "unknown";
}

EngineWatch::EngineWatch(const EngineClient& client, std::chrono::milliseconds stuck_after,
                         std::function<void(const std::string&)> on_death)
    : client_(client),
      stuck_after_(stuck_after),
      on_death_(std::move(on_death)),
      last_progress_(Clock::now()) {
  LADDER_CHECK(stuck_after.count() > 0, "--stuck-after: expected more than 0");
  look();
  thread_ = std::thread([this] { run(); });
}

EngineWatch::~EngineWatch() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void EngineWatch::run() {
  const auto period = std::clamp<std::chrono::milliseconds>(stuck_after_ / 8, std::chrono::milliseconds(2),
                                                            std::chrono::milliseconds(500));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, period, [this] { return ending_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void EngineWatch::look() {
  const EngineStats stats = client_.stats();
  stopped_ = stats.stopped;
  num_live_replicas_ = stats.num_live_replicas;
  num_replicas_ = stats.num_replicas;
  if (!stats.error.empty() && !dead_.exchange(true) && on_death_) on_death_(stats.error);
  const bool moved = stats.metrics.num_steps != num_steps_;
  num_steps_ = stats.metrics.num_steps;
  if (moved || stats.num_requests == 0 || stats.paused) last_progress_ = Clock::now();
}

EngineHealth EngineWatch::health() const {
  if (dead_) return EngineHealth::dead;
  // A look that does not return is as bad as a step that does not end.
  if (Clock::now() - last_progress_.load() > stuck_after_) return EngineHealth::stuck;
  if (num_live_replicas_ == 0) return EngineHealth::down;
  return draining_ || stopped_ ? EngineHealth::draining : EngineHealth::ok;
}

}  // namespace ladder
