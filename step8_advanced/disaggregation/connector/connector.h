#pragma once
// Keys and values from one engine's blocks into another's: both halves of the seam, the scheduler's
// (step5_scheduler/kv_connector.h) and the ranks' (step4_runner/kv_cache_registry.h), in front of a producer, a consumer or
// both. vLLM: vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py.
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "step4_runner/executor_options.h"
#include "step4_runner/kv_cache_registry.h"
#include "step5_scheduler/kv_connector.h"
#include "step8_advanced/disaggregation/connector/consumer.h"
#include "step8_advanced/disaggregation/connector/layer_by_layer.h"
#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "step8_advanced/disaggregation/connector/producer.h"
#include "step8_advanced/disaggregation/connector/transfer_config.h"
#include "step8_advanced/disaggregation/layout/handshake.h"

namespace ladder {

class KvTransferConnector final : public KvConnector, public KvCacheRegistry, public KvLayerListener {
 public:
  // Of an engine of this model and layout. A producer listens at once. Error: the address is none, or taken.
  KvTransferConnector(const KvTransferConfig& config, const ModelFingerprint& model, const KvLayout& layout);
  ~KvTransferConnector() override;

  std::string address() const;  // of a producer: where readers reach it; else empty
  const std::string& engine_id() const { return engine_id_; }
  KvBodyCounts compression() const;  // of a producer: of what has been sent; else nothing
  int64_t bytes_per_block() const;   // of all ranks together
  // `say` is given a line when a consumer's keys and values do not come: where from, how many, why. One in kBetweenNotes, with
  // how many there were since; by any thread. Before the first load.
  void on_failed_load(std::function<void(const std::string&)> say);

  void register_kv_caches(RankKvCaches caches) override;

  bool wants_layers() const override { return producer_ != nullptr && config_.layer_by_layer; }
  void begin_step(const SchedulerOutput& step) override;
  void save_kv_layer(int rank, int64_t layer, std::span<const int64_t> slots) override;

  void on_queued(const Sequence& sequence) override;
  void on_unneeded(const Sequence& sequence) override;
  bool may_start(const Sequence& sequence) const override;
  int64_t num_external_tokens(const Sequence& sequence, int64_t num_local) const override;
  void start_load(KvLoad load) override;
  void cancel_load(SequenceId id) override;
  void on_computed(const Sequence& sequence, int64_t num_computed_tokens) override;
  std::optional<KvTransferParams> hold(const Sequence& sequence) override;
  KvConnectorEvents poll() override;
  void wait(std::chrono::milliseconds at_most) override;
  void on_event(std::function<void()> wake) override;
  void abandon() override;
  KvTransferStats stats() const override;

 private:
  void say_that_something_happened();

  const KvTransferConfig config_;
  const std::string engine_id_;
  KvRanks ranks_;
  std::mutex ranks_mutex_;  // every rank registers on its own thread

  std::unordered_map<SequenceId, std::shared_ptr<const std::vector<int32_t>>> prompts_;  // of who may load
  std::unordered_map<SequenceId, std::string> drawn_ids_;  // of who is kept, where the request names none

  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
  std::function<void()> wake_;

  // Last, so that their threads end first.
  std::unique_ptr<KvProducer> producer_;
  std::unique_ptr<KvConsumer> consumer_;
};

}  // namespace ladder
