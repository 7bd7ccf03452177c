#pragma once
// The head's side of replicas on other machines: takes nodes in, and makes an EngineClient of each engine that they offer.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "step2_model/tokenizer/tokenizer.h"
#include "step6_engine/thread_engine_client.h"
#include "step7_parallel/data/replica.h"
#include "step7_parallel/data/replica_meeting.h"
#include "step7_parallel/hosts/host_connections.h"
#include "step7_parallel/hosts/host_watch.h"

namespace ladder {

struct ReplicaHeadOptions {
  HeadPlace place;
  ReplicaRun run;
  int num_local = 0;  // replicas 0 to num_local - 1 are the head's own; the others may come
  std::function<void(const std::string& line)> log;  // who comes and goes; any thread
};

class ReplicaHead {
 public:
  // Listens. Error: nothing can listen there.
  explicit ReplicaHead(ReplicaHeadOptions options);
  // Tells the nodes that the head has ended, and how: 0 where all replicas have served, else 2.
  ~ReplicaHead();
  ReplicaHead(const ReplicaHead&) = delete;

  const HostAddress& address() const { return listener_.address(); }  // with the port that port 0 has become

  // Waits for the engine of replica `number`, from a node, and of those that come later for the next one; for
  // ReplicaOptions::start. The first time only until `arrival` after the construction, unless its node is there and
  // loads. Error, naming all that are missing: that time is over; or stop().
  StartedEngine start(int number, std::shared_ptr<const Tokenizer> tokenizer, EngineClientOptions options);
  // start() waits no longer, and fails.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Node {
    std::string name, host;
    int first = 0, num_local = 0;
    std::string gone;  // why; empty: it is there
    std::unique_ptr<HostWatch> watch;

    bool has(int number) const { return number >= first && number < first + num_local; }
  };
  struct Offer {
    std::unique_ptr<MessageSocket> socket;
    std::string engine, host;
  };

  void listen();
  void hear(HostConnection connection);
  void take_in(std::unique_ptr<MessageSocket> socket, const NodeJoin& join, const std::string& host);
  // Why a node cannot be taken in; empty: it can. Under the lock.
  std::string misfit(const NodeJoin& join) const;
  bool has_node_of(int number) const;  // under the lock
  std::string missing() const;         // under the lock
  // Nodes that have gone, for good.
  void bury();

  const ReplicaHeadOptions options_;
  const Clock::time_point deadline_;
  HostListener listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Node> nodes_;
  std::map<int, Offer> offers_;   // by replica: the newest, which nobody has taken
  std::map<int, bool> has_come_;  // by replica
  bool stopping_ = false, closing_ = false;
  std::thread thread_;
};

}  // namespace ladder
