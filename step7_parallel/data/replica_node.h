#pragma once
// A node of replicas: engines of this machine behind the door of another, the head. Nobody asks this process itself.
//
//   meets the head: refused? the end --> loads its engines --> offers each, and serves it until the connection ends --.
//                                                                     ^                                               |
//   the head is lost: looked for, with the engines loaded ------------+-----------------------------------------------'
//
// It ends when the head says that it has ended, or is not found again. An engine that dies is started again (replica.h).
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "step6_engine/remote/turn_listeners.h"
#include "step7_parallel/data/replica.h"
#include "step7_parallel/data/replica_meeting.h"
#include "step7_parallel/hosts/host_connections.h"
#include "step7_parallel/hosts/host_watch.h"

namespace ladder {

struct ReplicaNodeOptions {
  HeadPlace head;
  ReplicaRun run;
  int first = 0, num_local = 1;  // replicas here
  // Makes the engine of a replica, by its number, whose on_turn tells `turns`; on a thread of its own.
  std::function<StartedEngine(int number, TurnListeners& turns)> start;
  std::chrono::milliseconds stuck_after = ReplicaOptions{}.stuck_after;
  std::function<void()> on_serving;                  // the head was given all engines; once
  std::function<void(const std::string& line)> log;  // what happens to the link and to replicas; any thread
};

class ReplicaNode {
 public:
  struct End {
    int code = 0;  // of the program
    std::string why;
  };

  explicit ReplicaNode(ReplicaNodeOptions options);  // does not wait
  ~ReplicaNode();                                    // stop()
  ReplicaNode(const ReplicaNode&) = delete;

  // None: it goes on after that time. Code 2: refused, the head was not there or was lost, an engine cannot be loaded; else
  // what the head has said at its end.
  std::optional<End> wait_for_end(std::chrono::milliseconds timeout);
  // The head sends nothing more; what is under way may end within `drain`.
  void stop(std::chrono::milliseconds drain);

 private:
  using Clock = std::chrono::steady_clock;
  struct Served {  // a replica here
    TurnListeners turns;
    std::unique_ptr<Replica> replica;
    SchedulerConfig config;           // of its scheduler
    MessageSocket* socket = nullptr;  // while it is served; under mutex_
    bool was_offered = false;
    int num_offers = 0;
    std::thread thread;  // that serves it
  };

  void run();
  // The connection over which both say that they are there. Nullptr: stop(). Error: refused, or no head in time.
  std::unique_ptr<MessageSocket> join();
  // Why the link is lost. None: the end.
  std::optional<std::string> wait_for_loss(HostWatch& watch);
  void start_replicas();
  // Offers the engine of a replica, again and again; on its thread.
  void serve(int number, Served& served);
  // Once, until the connection ends.
  void offer(int number, Served& served, EngineClient& client, const std::string& engine);
  void cut_engines();                          // of a link that is lost
  bool sleep(std::chrono::milliseconds time);  // false: stop()
  void end(End end);

  const ReplicaNodeOptions options_;
  const std::string name_;  // of this run
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<End> end_;
  std::optional<std::string> lost_;  // the link
  bool is_linked_ = false;
  int num_links_ = 0;
  bool leaving_ = false, stopping_ = false;  // nothing is begun any more; the link may go
  std::vector<std::unique_ptr<Served>> served_;
  std::thread thread_;
};

}  // namespace ladder
