#pragma once
// The producer's side of transfers: listens, and answers readers, each channel on a thread of its own.
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "step8_advanced/disaggregation/connector/kv_leases.h"
#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "step8_advanced/disaggregation/connector/transfer_config.h"
#include "step8_advanced/disaggregation/layout/handshake.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"

namespace ladder {

class KvProducer {
 public:
  // Listens at once; `ranks`, whose layout is known, has its caches before anything is computed. Error: the address is none,
  // or taken. `mine`: what readers compare.
  KvProducer(const KvTransferConfig& config, KvHandshake mine, const KvRanks& ranks);
  ~KvProducer();  // no reader reads when this returns

  std::string address() const { return listener_->address(); }
  const std::string& engine_id() const { return mine_.engine_id; }
  KvLeases& leases() { return leases_; }
  const KvLeases& leases() const { return leases_; }
  int64_t num_sent_bytes() const { return num_sent_bytes_; }
  KvBodyCounts compression() const;  // of what has been sent

 private:
  struct Reader {
    std::unique_ptr<KvChannel> channel;
    std::atomic<bool> gone = false;
    std::thread thread;
  };

  void accept_readers();
  void remove_gone();
  void serve(KvChannel& channel);
  void answer(KvChannel& channel, KvCopier& copier, std::span<const KvRead> reads,
              const KvReadRequest& request);

  const KvTransferConfig config_;
  const KvHandshake mine_;
  const KvRanks& ranks_;
  KvLeases leases_;
  std::atomic<int64_t> num_sent_bytes_ = 0;
  mutable std::mutex compression_mutex_;
  KvBodyCounts compression_;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<KvListener> listener_;
  std::list<Reader> readers_;  // the accepting thread's
  std::thread sweeper_, accepting_;
};

}  // namespace ladder
