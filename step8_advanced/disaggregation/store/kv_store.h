#pragma once
// A prefix store on disk: what one engine has computed of a prompt another one need not, nor this one after a restart.
//
//   a request comes        its prefix in this engine's blocks: as ever. Beyond that, block by block, is there a file of this name?
//   there is               it waits, with status waiting_for_kv, in nobody's way, until the files are read (block_loader.h)
//   it is computed         each full block, of prompt and answer, is written, if it is not there yet (block_saver.h)
//
// It is a connector as that between two engines (connector/connector.h), whose other engine is a folder (store_folder.h), and
// which takes part in every request. Of a request's n completions the first one loads and is stored.
//
// vLLM: KVConnectorBase_V1 with ExampleConnector or LMCacheConnectorV1.
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "step4_runner/kv_cache_registry.h"
#include "step5_scheduler/kv_connector.h"
#include "step8_advanced/disaggregation/connector/event_bell.h"
#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "step8_advanced/disaggregation/store/block_loader.h"
#include "step8_advanced/disaggregation/store/block_saver.h"
#include "step8_advanced/disaggregation/store/store_config.h"
#include "step8_advanced/disaggregation/store/store_folder.h"

namespace ladder {

class KvStoreConnector final : public KvConnector, public KvCacheRegistry {
 public:
  // Of an engine of this model and layout. Error: the folder is none and cannot be made, cannot be written to, or may not even
  // have one block.
  KvStoreConnector(const KvStoreConfig& config, const ModelFingerprint& model, const KvLayout& layout);
  ~KvStoreConnector() override;

  KvStoreFolder& folder() { return folder_; }

  void register_kv_caches(RankKvCaches caches) override;

  bool connects_engines() const override { return false; }
  std::shared_ptr<const KvTransferParams> params_of(
      std::shared_ptr<const KvTransferParams> asked) const override;
  void on_queued(const Sequence& sequence) override;
  void on_unneeded(const Sequence& sequence) override;
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
  // Of a sequence that waits: what of it was found.
  struct Wanted {
    std::shared_ptr<const std::vector<int32_t>> prompt;
    KvBlockNames names;
    int64_t num_local = -1;  // that were here then, in blocks; -1: nobody has looked
    int64_t num_found = 0;   // blocks, those here included
  };
  void look(Wanted& wanted, int64_t num_local) const;

  KvRanks ranks_;
  std::mutex ranks_mutex_;  // every rank registers on its own thread
  const KvBlockShape shape_;
  const Sha256Digest space_;
  KvStoreFolder folder_;
  const std::shared_ptr<const KvTransferParams> params_;  // every request's
  std::unique_ptr<BlockHasher> hasher_;                   // the engine's thread's
  mutable std::unordered_map<SequenceId, Wanted> wanted_;

  KvEventBell bell_;

  // Last, so that their threads end first.
  KvBlockSaver saver_;
  KvBlockLoader loader_;
};

}  // namespace ladder
