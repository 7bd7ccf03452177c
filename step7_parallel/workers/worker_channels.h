#pragma once
// The shared memory of an engine and its workers: two rings and the groups of the grid. The engine makes them before it
// starts a worker, which inherits those of its place (ChildOptions::descriptors), in this order:
//
//   steps      a ring, from the engine to all workers
//   answers    a ring, from the answering worker to the engine
//   tensor     its tensor ranks' group    (not there with one tensor rank)
//   column     its column's group         (not there with one stage)
//   context    its context ranks' group   (not there with one context rank)
//   experts    of its stage's ranks in all replicas, which share out experts (not there with one replica): made by who has these
//   keys       and values of this rank (shared_kv_caches.h; on the CPU, where the engine's process looks at them)
//   layers     a ring, from this rank to the engine (told_layers.h; where it wants to hear of layers)
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "step4_runner/rank_grid.h"
#include "step7_parallel/communicators/shared_memory_group.h"
#include "step7_parallel/workers/shared_memory.h"
#include "step7_parallel/workers/step_ring.h"

namespace ladder {

class WorkerChannels {
 public:
  // `experts`: where replicas share out experts, of each rank the descriptor of its stage's group, in which it joins as its
  // expert_rank() (rank_grid.h). `kv_bytes`: of each rank the size of its shared_kv_caches.h, or empty. `layers`: of each rank the
  // descriptor of its ring, or empty. Error: there is not that much memory; such groups are missing.
  explicit WorkerChannels(const RunnerConfig& config, std::vector<int> experts = {},
                          std::span<const size_t> kv_bytes = {}, std::vector<int> layers = {});

  StepRingWriter& steps() { return steps_; }
  StepRingReader& answers() { return answers_; }
  std::vector<int> descriptors_of(int rank) const;
  const std::shared_ptr<SharedMemory>& kv_caches_of(int rank) const {
    return kv_caches_[static_cast<size_t>(rank)];
  }
  // No more steps: workers end when they have done those in the ring, together, as groups of GPUs are unmade.
  void end_steps() { steps_.close(); }
  // Whoever waits for anything here is released: workers get what is in the ring of steps, and in a collective an Error
  // with the reason. From any thread.
  void close(const std::string& reason);
  // For people, in one line: what each rank does in its groups. Empty: there is no group of several.
  std::string where() const;

 private:
  RunnerConfig config_;
  std::vector<int> experts_, layers_;
  StepRingWriter steps_;
  StepRingWriter made_answers_;  // nobody writes by it: it has made the ring, and can close it
  StepRingReader answers_;
  std::vector<SharedMemoryGroup> tensor_groups_, columns_, context_groups_;  // empty: groups of one
  std::vector<std::shared_ptr<SharedMemory>> kv_caches_;                     // by rank, or empty
};

// The same for one worker, of the descriptors that it has inherited.
struct InheritedChannels {
  InheritedChannels(const RunnerConfig& config, int rank, bool has_kv_caches, bool tells_layers);

  StepRingReader steps;
  StepRingWriter answers;
  std::vector<SharedMemoryGroup> groups;  // those that it is in
  std::unique_ptr<Communicator> tensor, column, context, experts;
  std::shared_ptr<SharedMemory> kv_caches;  // null: they are nobody else's
  std::optional<StepRingWriter> layers;     // none: nobody wants to hear of them

  // empty: no group of it is.
  std::string closed_because() const;
  void close_groups(const std::string& reason) const;
};

}  // namespace ladder
