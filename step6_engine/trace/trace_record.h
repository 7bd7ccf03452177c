#pragma once
// What a step of the engine did, as plain data. A trace is a header and a row of such records; trace_json.h writes and
// reads them, as JSON lines.
//
// Times are seconds since the recording began. A sequence is one completion of a request, and goes by the scheduler's
// number of it; `arrived` says once whose it is. Blocks are told as what changed since the record before
// (block_diff.h).
#include <cstdint>
#include <string>
#include <vector>

#include "step3_sequence/sequence.h"
#include "step6_engine/trace/block_diff.h"

namespace ladder {

struct TraceHeader {
  int64_t num_blocks = 0;
  int64_t block_size = 0;
  int64_t max_num_seqs = 0;
  int64_t max_num_batched_tokens = 0;
  double started = 0.0;  // when the recording began: seconds since 1970
};

struct TraceSequence {
  SequenceId id = 0;
  std::string request_id;
  int64_t completion = 0;
  int64_t num_prompt_tokens = 0;
  double arrival = 0.0;  // may be negative: before the recording
};

// prefill: a chunk of a prompt, or of what a preempted sequence had and computes again. decode: the one token after
// the last one.
enum class TracePhase : uint8_t { prefill, decode };

struct TraceWork {
  SequenceId id = 0;
  TracePhase phase = TracePhase::prefill;
  int64_t num_tokens = 0;    // computed in this step ...
  int64_t num_computed = 0;  // ... after that many
};

// It begins to run in this step, or runs again.
struct TraceAdmission {
  SequenceId id = 0;
  int64_t num_cached_tokens = 0;  // found in the cache, or shared by a sibling: not computed
};

struct TraceEnd {
  SequenceId id = 0;
  FinishReason reason = FinishReason::none;
};

struct TraceRecord {
  // Nothing is known of what was before: `blocks` is the whole table, all that is not in it is free. `arrived` are
  // those that live.
  bool restart = false;
  int64_t step = -1;     // -1: no step; the engine came to rest, or the record is a restart alone
  double begin = 0.0;    // of the call that brought the step's answer; of steps in flight at the same time
  double seconds = 0.0;  // these calls follow each other
  double execute_seconds = 0.0;        // of the executor
  int64_t num_new_tokens = 0;          // that the requests got
  int64_t num_waiting = 0;             // after the step was planned
  std::vector<TraceSequence> arrived;  // since the record before, as far as they were seen in the queue
  std::vector<TraceAdmission> admitted;
  std::vector<TraceWork> batch;   // in batch order
  std::vector<SequenceId> queue;  // the first of those that wait, in order; at most kTraceQueue
  std::vector<SequenceId> preempted;
  std::vector<TraceEnd> ended;  // may still be in the batch of a record that follows: it was in flight
  BlockChanges blocks;          // as of when the step was planned
};

inline constexpr int64_t kTraceQueue = 128;

int64_t num_batch_tokens(const TraceRecord& record);

}  // namespace ladder
