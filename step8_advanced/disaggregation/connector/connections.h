#pragma once
// A reader's channels to producers, kept from one load to the next.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "step8_advanced/disaggregation/layout/handshake.h"
#include "step8_advanced/disaggregation/layout/kv_copier.h"
#include "step8_advanced/disaggregation/layout/kv_layout.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

struct KvConnection {
  std::shared_ptr<KvChannel> channel;  // shared with whoever may want to close it
  std::unique_ptr<KvCopier> copier = std::make_unique<KvCopier>();  // of what comes over it
  std::string address;
  KvHandshake peer;
  std::vector<KvRead> reads;
  std::chrono::milliseconds lease{0};
  bool was_used = false;  // it may have died since
};

class KvConnections {
 public:
  // `mine`: what producers compare.
  explicit KvConnections(KvHandshake mine) : mine_(std::move(mine)) {}

  // One that was given back, or else a new one. Error: nobody is there until the deadline (kv_channel.h), it is another model's
  // or of a layout that cannot be read.
  KvConnection take(const std::string& address, KvDeadline deadline, KvListening listening);
  KvConnection connect(const std::string& address, KvDeadline deadline, KvListening listening) const;
  // Only when nothing is under way on it.
  void give_back(KvConnection connection);
  // One of them was found dead: the engine behind it is a new one, or has closed what was silent for long.
  void forget(const std::string& address);

 private:
  const KvHandshake mine_;
  std::mutex mutex_;
  std::map<std::string, std::vector<KvConnection>> idle_;  // by address
};

}  // namespace ladder
