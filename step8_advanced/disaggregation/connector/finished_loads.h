#pragma once
// What loads have come to: told to the engine once, and counted. By any thread.
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "step5_scheduler/kv_connector.h"

namespace ladder {

class KvFinishedLoads {
 public:
  // A load of so many tokens, which began then, is over. A cancelled one did not fail, and misses nothing.
  void add(FinishedKvLoad finished, int64_t num_wanted, bool cancelled,
           std::chrono::steady_clock::time_point begin);
  void count_bytes(int64_t num_bytes);  // that came

  // As the functions of KvConnector.
  std::vector<FinishedKvLoad> take();
  void on_finished(std::function<void()> wake);
  // Behind add(), and without any lock that is held where this object's owner is called.
  void wake() const;

  void add_to(KvTransferStats& stats) const;

 private:
  mutable std::mutex mutex_;
  std::vector<FinishedKvLoad> finished_;
  std::function<void()> wake_;
  KvTransferStats stats_;
};

}  // namespace ladder
