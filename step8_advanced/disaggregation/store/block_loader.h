#pragma once
// From a store's files to an engine's blocks: loads, whose blocks a few threads share. A block that is not there, or is not what
// its key says, ends its load: what stands before it counts, the rest is computed.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "step5_scheduler/kv_connector.h"
#include "step8_advanced/disaggregation/connector/finished_loads.h"
#include "step8_advanced/disaggregation/connector/loader_threads.h"
#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "step8_advanced/disaggregation/store/block_names.h"
#include "step8_advanced/disaggregation/store/store_config.h"
#include "step8_advanced/disaggregation/store/store_folder.h"

namespace ladder {

class KvBlockLoader {
 public:
  // `ranks` has its caches before the first load; all of these outlive it.
  KvBlockLoader(const KvStoreConfig& config, KvStoreFolder& folder, const KvRanks& ranks,
                const KvBlockShape& shape, Sha256Digest space);
  ~KvBlockLoader();  // no load writes when this returns

  // As the functions of KvConnector, on the engine's thread. Whole blocks; `names` has all of them, `prompt` is the sequence's.
  void start_load(KvLoad load, KvBlockNames names, std::shared_ptr<const std::vector<int32_t>> prompt);
  void cancel_load(SequenceId id);
  std::vector<FinishedKvLoad> take_finished() { return finished_.take(); }
  void abandon();
  // Called, by any thread, when take_finished() has something.
  void on_finished(std::function<void()> wake) { finished_.on_finished(std::move(wake)); }

  void add_to(KvTransferStats& stats) const { finished_.add_to(stats); }

 private:
  struct Load {
    KvLoad load;
    KvBlockNames names;
    std::shared_ptr<const std::vector<int32_t>> prompt;
    int64_t next = 0,
            end = 0;  // blocks that nobody reads yet; next moves to the end where the rest is not wanted
    int64_t first = 0, num_reading = 0;
    bool cancelled = false;
    std::string error;  // of the block at `end`
    std::chrono::steady_clock::time_point begin;
  };
  struct Reader {  // of one thread
    KvCopier copier;
    std::shared_ptr<void> file;  // room for one
    size_t room = 0;
  };

  void read_next(const std::shared_ptr<Load>& load, Reader& reader);
  // Why the block is not in its place now; empty: it is.
  std::string read(const Load& load, int64_t block, Reader& reader);
  void finish(const std::shared_ptr<Load>& load, std::unique_lock<std::mutex>& lock);  // which is released

  KvStoreFolder& folder_;
  const KvRanks& ranks_;
  const KvBlockShape& shape_;
  const Sha256Digest space_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<SequenceId, std::shared_ptr<Load>> loads_;  // that are not finished
  KvFinishedLoads finished_;

  std::vector<Reader> readers_;
  KvLoaderThreads loaders_;  // last, so that they end first
};

}  // namespace ladder
