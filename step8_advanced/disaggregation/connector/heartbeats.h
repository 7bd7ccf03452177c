#pragma once
// Tells producers that what they keep is still wanted: a message to each, several times in the length of its lease, from
// the moment that a request is queued here to the end of its load.
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "step8_advanced/disaggregation/connector/connections.h"

namespace ladder {

class KvHeartbeats {
 public:
  // `connections` outlives it.
  explicit KvHeartbeats(KvConnections& connections);
  ~KvHeartbeats();

  void add(const std::string& address, const std::string& remote_request_id);
  void remove(const std::string& address, const std::string& remote_request_id);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  struct Producer {
    std::set<std::string> wanted;
    Clock::time_point next;  // when it is to be told again
  };

  void run();

  KvConnections& connections_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::map<std::string, Producer> producers_;  // by address; those of whom something is wanted
  std::thread thread_;
};

}  // namespace ladder
