#pragma once
// From an engine's blocks to the store's files, in the background:
//
//   engine's thread   computed(): these blocks of a sequence are full
//   packing thread    in the store, or on its way? it was used just now. Else a copy in memory, with checksums    -> queue
//   writing thread                                                                                queue -> files
//
// A block is only read while it is its sequence's: during a copy in memory, which whoever takes it away waits for (a preemption:
// one block's copy). The disk is never waited for. A sequence that has ended keeps its blocks until those that the queue has
// room for are copied; for the others it is too late, and they are not stored. vLLM 52360: a sequence was preempted while an
// asynchronous save still read its blocks, and another prompt's keys were stored under its names.
#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "step5_scheduler/kv_connector.h"
#include "step8_advanced/disaggregation/connector/part_stream.h"
#include "step8_advanced/disaggregation/store/block_names.h"
#include "step8_advanced/disaggregation/store/store_config.h"
#include "step8_advanced/disaggregation/store/store_folder.h"

namespace ladder {

class KvBlockSaver {
 public:
  // `ranks` has its caches before the first block; all of these outlive it.
  KvBlockSaver(const KvStoreConfig& config, KvStoreFolder& folder, const KvRanks& ranks,
               const KvBlockShape& shape, Sha256Digest space);
  ~KvBlockSaver();  // what is in the queue is written first

  // The engine's thread.

  // The first so many tokens of the sequence are in its blocks, which go on to be its own.
  void computed(const Sequence& sequence, int64_t num_tokens);
  // Its blocks are about to be given to others. When it returns nobody reads them.
  void forget(SequenceId id);
  // It has ended. True: its blocks are still read, until take_released() names it. False: they are not.
  bool end(SequenceId id);
  std::vector<SequenceId> take_released();
  // When it returns no block is read any more: those of ended sequences are copied, all others forgotten.
  void abandon();
  // Called, by any thread, when take_released() has something.
  void on_released(std::function<void()> wake);

  void add_to(KvTransferStats& stats) const;

 private:
  struct Saved {
    SequenceId id = 0;
    std::string salt, adapter;
    KvBlockNames names;  // the packing thread's
    // Of its full blocks:
    std::vector<int32_t> tokens, block_table;
    int64_t next = 0;  // the first block that was not looked at
    KvStoreFolder::Time used;
    bool ended = false, forgotten = false, copying = false;
    int64_t num_left() const { return std::ssize(block_table) - next; }
  };
  struct Packed {
    KvBlockKey key;
    std::vector<uint32_t> checksums;
    std::shared_ptr<void> body;
    KvStoreFolder::Time used;
  };

  void pack_blocks();
  std::shared_ptr<Saved> next_to_pack();  // null: nothing to do, or no room
  void pack_next(Saved& saved, std::unique_lock<std::mutex>& lock);
  // Both of its next block, with the lock, which they release meanwhile.
  std::optional<bool> look(Saved& saved, Packed& packed, std::unique_lock<std::mutex>& lock);  // is it there?
  bool pack(const Saved& saved, Packed& packed, std::unique_lock<std::mutex>& lock);  // into the queue
  void write_blocks();
  bool write(const Packed& packed);
  int64_t room() const {
    return max_queued_ - num_queued_ - num_promised_;
  }  // for so many blocks, in the queue

  KvStoreFolder& folder_;
  const KvRanks& ranks_;
  const KvBlockShape& shape_;
  const Sha256Digest space_;
  const int64_t max_queued_;  // blocks
  const std::function<void(const std::string&)> warn_;
  std::unique_ptr<BlockHasher> hasher_;  // the packing thread's
  KvCopier copier_;                      // the packing thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::unordered_map<SequenceId, std::shared_ptr<Saved>> saved_;
  std::deque<std::shared_ptr<Saved>> order_;  // those with blocks to be looked at; forgotten ones too
  std::vector<SequenceId> released_;
  int64_t num_promised_ = 0;  // places in the queue for blocks of ended sequences
  int64_t num_queued_ = 0;    // taken places: being packed, in the queue, or being written
  std::deque<Packed> queue_;
  std::set<std::array<uint64_t, 4>> queued_;  // names of what is in the queue, or being written
  std::vector<std::shared_ptr<void>> spare_bodies_;
  std::function<void()> wake_;
  KvTransferStats stats_;
  bool has_warned_ = false;  // the writing thread's
  std::thread packing_, writing_;
};

}  // namespace ladder
