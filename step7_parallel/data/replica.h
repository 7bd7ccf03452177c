#pragma once
// Task 7.7: one engine of several: started, watched, and started again when it has died.
//
//   starting --> alive --> lost: its engine has died, or has made no step for too long with requests to serve
//      ^                    |
//      +---- a pause -------+     twice as long after each failure, until one has lived for a while
//
// A thread of its own does all that lasts: loading, and waiting for the end of what has died. So neither the loading of one
// replica nor the death of another holds up a request.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "step5_scheduler/scheduler.h"
#include "step6_engine/engine_client.h"

namespace ladder {

struct StartedEngine {
  std::unique_ptr<EngineClient> client;
  SchedulerConfig config;  // of its scheduler
  // An engine that lives on where the way to it is lost is found again by the name that it had, and goes on counting from
  // what it had counted. Empty: a new one each time.
  std::string name = {};
};

struct ReplicaOptions {
  int number = 0;
  // Makes the engine; called on the replica's thread, the first time and after every death. Throws what prevents it.
  std::function<StartedEngine()> start;
  // Before it is started again; doubled each time that it does not live for `max_pause`.
  std::chrono::milliseconds first_pause{1'000};
  std::chrono::milliseconds max_pause{60'000};
  // Without the end of a step while it has requests, until it counts as dead.
  std::chrono::milliseconds stuck_after{60'000};
  std::function<void(const std::string& line)> log;  // what happens to it, one line each; any thread
  std::function<void()> on_lost;                     // its cache is gone; on the replica's thread
};

class Replica {
 public:
  // Starts it, and does not wait.
  explicit Replica(ReplicaOptions options);
  ~Replica();  // stop()
  Replica(const Replica&) = delete;

  // Waits until its first start has succeeded. Throws what prevented it; it is not tried again then.
  const SchedulerConfig& wait_until_started();

  // Null while there is none that lives. May die at any time: its functions say so.
  std::shared_ptr<EngineClient> client() const;
  // Whether that is the one that lives, and its engine has neither died nor stopped; for the engine's own threads too.
  bool has_living(const EngineClient* client) const;
  // As EngineClient::replica_stats(): of one that is not alive `error` says why, and nothing waits or runs there.
  EngineStats stats() const;

  // Somebody has seen that the engine is dead: look now.
  void look_soon();

  // As EngineClient's, for the one that lives and for those that are started later.
  void pause();
  void resume();

  // No engine is started any more, and the one that lives is stopped.
  void stop(std::chrono::milliseconds drain);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  // From now on others find it.
  void publish(std::shared_ptr<EngineClient> client, StartedEngine engine);
  // From now on they do not. Returns when nobody uses it any more: who takes the last copy ends it, and an engine's own
  // threads cannot wait for their end.
  void withdraw(const std::shared_ptr<EngineClient>& client, const std::string& why);
  void set_paused(bool paused);
  // The engine until it is lost (dead, without a step for too long, or stopped by somebody else with no request left) or
  // the replica is stopped; says what it was lost by, empty if the replica was stopped.
  std::string watch(EngineClient& client);
  // Waits unless it is stopped. False: it is.
  bool sleep(std::chrono::milliseconds pause);
  void log(const std::string& what) const;

  const ReplicaOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<EngineClient> client_;
  SchedulerConfig config_;
  EngineStats past_;                         // counted by those that have died,
  EngineStats last_;                         // and by the one that was lost last,
  std::string name_;                         // of this name, as the one that lives
  std::string why_ = "it is being started";  // there is no client
  std::exception_ptr failed_;                // the first start
  bool started_ = false, look_ = false, paused_ = false, stopping_ = false;
  std::thread thread_;
};

// Adds what is counted since the start, and what waits and runs now. Neither flags nor texts.
void add_stats(EngineStats& sum, const EngineStats& more);

}  // namespace ladder
