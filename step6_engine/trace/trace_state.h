#pragma once
// What a trace says at one moment: the records up to it, applied one after another. A viewer that begins in the middle
// begins with it.
#include <array>
#include <map>

#include "step6_engine/trace/trace_record.h"

namespace ladder {

class TraceState {
 public:
  explicit TraceState(int64_t num_blocks);  // all free, no sequence

  // Its block runs must lie within the table.
  void apply(const TraceRecord& record);
  // A restart record that leads to this state from any other.
  TraceRecord as_record() const;

  const std::vector<BlockState>& blocks() const { return blocks_; }
  int64_t num_blocks_of(BlockState state) const { return counts_[static_cast<size_t>(state)]; }
  // Those that arrived and have not ended.
  const std::map<SequenceId, TraceSequence>& sequences() const { return sequences_; }

 private:
  std::vector<BlockState> blocks_;
  std::array<int64_t, 4> counts_{};
  std::map<SequenceId, TraceSequence> sequences_;
};

}  // namespace ladder
