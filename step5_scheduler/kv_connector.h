#pragma once
// The scheduler's half of a connector: keys and values that come from another engine, or are kept for one (step 8,
// disaggregation). The scheduler asks and tells; how bytes travel it does not know.
//
//   the engine that goes on (consumer)            the engine that computes the prompt (producer)
//
//   on_queued()            a request is here      may_start()      is there room for one more reader's blocks
//   num_external_tokens()  how many, from where   on_computed()    so many tokens are in their blocks
//   start_load()           into these blocks      hold()           its blocks stay when it ends
//   poll().loads           so many have come      poll().released  nobody reads them any more
//   cancel_load()          nobody wants them
//   on_unneeded()          nor is there a load
//
// Of the n completions of a request the first one alone loads, and is kept for a reader: its siblings share its blocks here,
// and need it once over there.
//
// A sequence whose blocks are being filled has the status waiting_for_kv: it holds blocks, is in no step, and holds up
// nobody. All functions are called on the scheduler's thread, except wake; none blocks but wait(). vLLM:
// vllm/distributed/kv_transfer/kv_connector/v1/base.py.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "step3_sequence/kv_transfer.h"
#include "step3_sequence/sequence.h"

namespace ladder {

// The keys and values of the tokens [first_token, first_token + num_tokens) go where the table says; blocks that begin at or
// before first_token hold others', and what lies before it is not to be touched.
struct KvLoad {
  SequenceId id = 0;
  std::vector<int32_t> block_table;
  int64_t first_token = 0;
  int64_t num_tokens = 0;
  std::shared_ptr<const KvTransferParams> from;
};

struct FinishedKvLoad {
  SequenceId id = 0;
  // That came, whole and checked, from the first on. Fewer than were wanted: the rest is computed here.
  int64_t num_tokens = 0;
  std::string error;  // why they are fewer
  // What did not come is not to be computed here: the sequence ends with FinishReason::error.
  bool ends_sequence = false;
};

// Of ids that are not known, or not any more, the scheduler takes no notice: a message may come twice.
struct KvConnectorEvents {
  std::vector<FinishedKvLoad>
      loads;  // each that was started, a cancelled one too: its blocks are written no more
  std::vector<SequenceId> released;  // each that was held
};

struct KvTransferStats {
  // Since the start:
  int64_t num_loads = 0;         // that ended, however
  int64_t num_failed_loads = 0;  // of these, with fewer tokens than were wanted; no cancelled ones
  int64_t num_loaded_tokens = 0;
  int64_t num_missed_tokens = 0;  // that were wanted and did not come
  int64_t num_loaded_bytes = 0;
  double load_seconds = 0.0;  // of all loads together
  int64_t num_sent_bytes = 0;
  int64_t num_lapsed = 0;  // kept for a reader that never came
  // Of what was sent, where it is compressed for the way (bodies that are too short for it left out):
  int64_t num_uncompressed_bytes = 0;  // before
  int64_t num_compressed_bytes = 0;    // after; what got no shorter counts as it is
  double compress_seconds = 0.0;
  // Of a prefix store:
  int64_t num_stored_blocks = 0;
  int64_t num_stored_bytes = 0;
  int64_t num_unstored_blocks = 0;  // that were computed: no room in the queue, or on the disk
  int64_t num_store_bytes = 0;      // now, of all files of the folder
};

class KvConnector {
 public:
  virtual ~KvConnector() = default;

  // Whether requests may have kv_transfer. A store answers nobody's.
  virtual bool connects_engines() const { return true; }
  // What is done for a request that asks for this (null: it has no kv_transfer). A store takes part in every request.
  virtual std::shared_ptr<const KvTransferParams> params_of(
      std::shared_ptr<const KvTransferParams> asked) const {
    return asked;
  }

  // A sequence with do_remote_prefill has come, and is going to ask for its tokens: where they are kept they are still wanted.
  virtual void on_queued(const Sequence& /*sequence*/) {}
  // Such a sequence needs none of them any more, and no load was started: it found here what it could use, or ended while
  // it waited. May be told more than once.
  virtual void on_unneeded(const Sequence& /*sequence*/) {}

  // Whether a prompt that is to be kept for a reader may begin (back-pressure: kept blocks are bounded).
  virtual bool may_start(const Sequence& /*sequence*/) const { return true; }
  // Tokens of the sequence beyond its first num_local that can be had from outside; never its last, whose logits are needed.
  // 0: none. Changes nothing: it may be asked again.
  virtual int64_t num_external_tokens(const Sequence& /*sequence*/, int64_t /*num_local*/) const { return 0; }
  virtual void start_load(KvLoad /*load*/) {}
  // It is still told by poll() when the blocks are written no more. An unknown id is ignored.
  virtual void cancel_load(SequenceId /*id*/) {}

  // The first so many tokens of a sequence with do_remote_decode are in the blocks of its table, which go on to be its own.
  // 0: it is preempted, and what was told before counts no more: when this returns nobody reads its blocks, which are given
  // to others (here a copy that is under way may be waited for).
  virtual void on_computed(const Sequence& /*sequence*/, int64_t /*num_computed_tokens*/) {}
  // Such a sequence has ended, as its finish_reason says, perhaps before it had any blocks. With an answer its blocks stay
  // until poll() has released it, and the request's output says the answer, if it is one to read from (do_remote_prefill); none:
  // nobody is going to read them (it was aborted, say), nor does any more.
  virtual std::optional<KvTransferParams> hold(const Sequence& /*sequence*/) { return std::nullopt; }

  // What has happened since the last call.
  virtual KvConnectorEvents poll() { return {}; }
  // Until poll() has something, or the time is over.
  virtual void wait(std::chrono::milliseconds /*at_most*/) {}
  // Called by any thread when poll() has something after it had nothing.
  virtual void on_event(std::function<void()> /*wake*/) {}

  // Every sequence is forgotten: no load writes and no reader reads when this returns.
  virtual void abandon() {}

  virtual KvTransferStats stats() const { return {}; }
};

}  // namespace ladder
