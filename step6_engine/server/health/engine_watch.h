#pragma once
// Whether the engine makes progress: not whether a process is there, nor whether anything answers.
//
//   ok        idle, or its heartbeat (num_steps) moves
//   draining  it was stopped and ends what it has
//   down      none of several engines lives; each is being started again
//   stuck     requests run, and no step has ended for `stuck_after`
//   dead      it has died, and serves nothing any more
//
// A thread looks a few times per `stuck_after`, so that asking costs nothing and never waits for the engine, not even
// for one that hangs. Nothing is generated to find out.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include "step6_engine/engine_client.h"

namespace ladder {

enum class EngineHealth { ok, draining, down, stuck, dead };
std::string_view health_name(EngineHealth health);

class EngineWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `on_death`, if given, is called once, on the watch's thread, with what the engine died of. The client must
  // outlive the watch.
  EngineWatch(const EngineClient& client, std::chrono::milliseconds stuck_after,
              std::function<void(const std::string&)> on_death = {});
  ~EngineWatch();

  EngineHealth health() const;
  // Of several engines behind the client, those that live, and all.
  int64_t num_live_replicas() const { return num_live_replicas_; }
  int64_t num_replicas() const { return num_replicas_; }
  // From now on `draining`, unless it is worse.
  void set_draining() { draining_ = true; }

 private:
  void run();
  void look();

  const EngineClient& client_;
  const std::chrono::milliseconds stuck_after_;
  const std::function<void(const std::string&)> on_death_;
  std::atomic<bool> dead_{false}, stopped_{false}, draining_{false};
  std::atomic<int64_t> num_live_replicas_{1}, num_replicas_{1};
  // When a step was last known to end, or the engine to be idle or paused.
  std::atomic<Clock::time_point> last_progress_;
  int64_t num_steps_ = -1;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace ladder
