#pragma once
// The reader's side of transfers: loads, a few at a time, each by one thread over one channel.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step5_scheduler/kv_connector.h"
#include "step8_advanced/disaggregation/connector/connections.h"
#include "step8_advanced/disaggregation/connector/finished_loads.h"
#include "step8_advanced/disaggregation/connector/heartbeats.h"
#include "step8_advanced/disaggregation/connector/loader_threads.h"
#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "step8_advanced/disaggregation/connector/transfer_config.h"

namespace ladder {

// Between two lines about loads that failed: a producer that is another model fails each of them.
inline constexpr std::chrono::seconds kBetweenNotes{10};

class KvConsumer {
 public:
  // `ranks`, whose layout is known, has its caches before the first load. `mine`: what producers compare.
  KvConsumer(const KvTransferConfig& config, KvHandshake mine, const KvRanks& ranks);
  ~KvConsumer();  // no load writes when this returns

  // As the functions of KvConnector, on the engine's thread; `prompt` is the sequence's.
  void want(
      const KvTransferParams& from);  // its producer hears that it is still wanted, until it is loaded or:
  void give_up(const KvTransferParams& from);  // and its producer is told
  void start_load(KvLoad load, std::shared_ptr<const std::vector<int32_t>> prompt);
  void cancel_load(SequenceId id);
  std::vector<FinishedKvLoad> take_finished() { return finished_.take(); }
  void abandon();
  // Called, by any thread, when take_finished() has something.
  void on_finished(std::function<void()> wake) { finished_.on_finished(std::move(wake)); }
  // As KvTransferConnector::on_failed_load().
  void on_failed_load(std::function<void(const std::string&)> say);

  void add_to(KvTransferStats& stats) const { finished_.add_to(stats); }

 private:
  struct Load {
    KvLoad load;
    std::shared_ptr<const std::vector<int32_t>> prompt;
    std::atomic<bool> cancelled = false;
    bool started = false;                // by a loader
    std::shared_ptr<KvChannel> channel;  // that it waits at
  };

  void run(Load& load);
  FinishedKvLoad outcome(Load& load, ReceivedKv& received);
  std::string note_of(const Load& load, const FinishedKvLoad& result);  // empty: it is not time for one yet
  KvReadEnd read(Load& load, KvConnection& connection, KvDeadline deadline, ReceivedKv& received);
  KvConnection connection_to(const KvTransferParams& from,
                             KvDeadline patience);             // Error: it is another engine
  void watch(Load& load, std::shared_ptr<KvChannel> channel);  // KvChannelError: it is cancelled
  void say_done(const KvTransferParams& from);
  void forget(SequenceId id, std::unique_lock<std::mutex>& lock);  // which is released; it is finished

  const KvTransferConfig config_;
  const KvRanks& ranks_;
  KvConnections connections_;
  KvHeartbeats heartbeats_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<SequenceId, std::shared_ptr<Load>> loads_;  // that are not finished
  std::function<void(const std::string&)> say_;
  std::chrono::steady_clock::time_point next_note_{};
  int64_t num_unsaid_ = 0;  // loads that failed since the last note
  KvFinishedLoads finished_;

  KvLoaderThreads loaders_;  // last, so that they end first
};

}  // namespace ladder
