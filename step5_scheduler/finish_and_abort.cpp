// Task 5.5: how a sequence ends, for whatever reason: a stop, a length or an error in update(), abort() from
// outside.
//
// The simple version, where no step is in flight:
//
//   finish(sequence):
//     running.remove(sequence); free(sequence.block_table); del sequences[sequence.id]
//
// What each further line buys: a step in flight may still write the blocks, so release_blocks() (task 5.3) may
// keep them until it is collected; its record points at the sequence, so the sequence stays until then
// (forget_if_done). The runner keeps state for the sequence and hears of its end with the next step that has
// something to compute (finished_ids_).
#include "step5_scheduler/scheduler.h"

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 5.5: end a sequence in any state, once
void Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->finished()) return;
  Sequence& sequence = *found->second;
  std::erase(running_, &sequence);
  finish(sequence, FinishReason::abort);
  forget_if_done(sequence);
}

void Scheduler::finish(Sequence& sequence, FinishReason reason) {
  if (sequence.status != SequenceStatus::running) waiting_.erase(&sequence);
  sequence.status = SequenceStatus::finished;
  sequence.finish_reason = reason;
  if (sequence.num_known_blocks > 0) ids_of(finished_ids_, sequence.lane).push_back(sequence.id);
  if (connector_ != nullptr) leave_blocks(sequence);
  release_blocks(sequence);
}

void Scheduler::forget_if_done(Sequence& sequence) {
  if (sequence.finished() && sequence.num_steps_in_flight == 0) sequences_.erase(sequence.id);
}
// <<< task 5.5

void Scheduler::abandon() {
  if (connector_ != nullptr) connector_->abandon();
  for (auto& [id, table] : cancelled_loads_) blocks_.free(table);
  for (auto& [id, held] : held_) blocks_.free(held.block_table);
  cancelled_loads_.clear();
  held_.clear();
  loads_.clear();
  failed_loads_.clear();
  for (DeferredBlocks& deferred : deferred_) blocks_.free(deferred.block_table);
  for (auto& [id, sequence] : sequences_) blocks_.free(sequence->block_table);
  deferred_.clear();
  in_flight_.clear();
  waiting_.clear();
  running_.clear();
  for (std::vector<SequenceId>& ids : finished_ids_) ids.clear();
  for (std::vector<SequenceId>& ids : preempted_ids_) ids.clear();
  plan_.clear();
  start_over_.clear();
  sequences_.clear();
}

}  // namespace ladder
