#include "step6_engine/trace/trace_state.h"

#include <algorithm>
#include <numeric>

namespace ladder {

int64_t num_batch_tokens(const TraceRecord& record) {
  return std::accumulate(record.batch.begin(), record.batch.end(), int64_t{0},
                         [](int64_t sum, const TraceWork& work) { return sum + work.num_tokens; });
}

TraceState::TraceState(int64_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {
  counts_[0] = num_blocks;
}

void TraceState::apply(const TraceRecord& record) {
  if (record.restart) *this = TraceState(std::ssize(blocks_));
  for (const TraceSequence& sequence : record.arrived) sequences_[sequence.id] = sequence;
  for (const TraceEnd& end : record.ended) sequences_.erase(end.id);
  for (const BlockRun& run : record.blocks.runs) {
    for (int64_t i = 0; i < run.blocks.count; ++i)
      --counts_[static_cast<size_t>(blocks_[static_cast<size_t>(run.blocks.first + i)])];
    counts_[static_cast<size_t>(run.state)] += run.blocks.count;
  }
  apply_runs(record.blocks.runs, blocks_);
}

TraceRecord TraceState::as_record() const {
  TraceRecord record;
  record.restart = true;
  for (const auto& [id, sequence] : sequences_) record.arrived.push_back(sequence);
  for (int64_t i = 0; i < std::ssize(blocks_);) {
    const BlockState state = blocks_[static_cast<size_t>(i)];
    const auto end = std::find_if(blocks_.begin() + i, blocks_.end(),
                                  [state](BlockState other) { return other != state; });
    const int64_t count = end - (blocks_.begin() + i);
    if (state != BlockState::free) record.blocks.runs.push_back({{i, count}, state});
    i += count;
  }
  return record;
}

}  // namespace ladder
