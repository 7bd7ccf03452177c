#pragma once
// What the layers of a step have stored, from worker processes to their engine's while the step still runs: a connector that hears
// of it (step4_runner/kv_layer_listener.h) need not know that the ranks are processes.
//
//   worker      | layer 0 | layer 1 | ...      LayersOfWorker: a note of each into a ring of this rank (step_ring.h)
//   engine            | layer 0 | layer 1 |    HeardLayers: a thread for each ring tells the listener
//
// A note that comes when its step was collected says nothing: by then the whole step has been told, and its blocks may be another
// request's. So nothing waits for notes, and none need come: a worker that cannot get rid of them goes on without.
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "step4_runner/kv_layer_listener.h"
#include "step7_parallel/workers/step_ring.h"

namespace ladder {

class LayersOfWorker final : public KvLayerListener {
 public:
  explicit LayersOfWorker(StepRingWriter& ring) : ring_(ring) {}

  bool wants_layers() const override { return true; }
  void begin_step(const SchedulerOutput& step) override { step_ = step.step; }
  int64_t current_launch() const override { return step_; }
  void save_kv_layer(int rank, int64_t layer, int64_t launch, std::span<const int64_t> slots) override;

 private:
  StepRingWriter& ring_;
  int64_t step_ = -1;  // the warm-up's
  int64_t told_step_ = -1;
  bool is_heard_ = true;
};

class HeardLayers {
 public:
  HeardLayers(KvLayerListener& listener, int num_ranks);
  // To be called when the workers have ended.
  ~HeardLayers();
  HeardLayers(const HeardLayers&) = delete;

  // Of each rank's ring, for its worker.
  std::vector<int> descriptors() const;
  // That step was collected. When it returns nothing of it is being told, or will be.
  void forget(int64_t step);

 private:
  struct Rank {
    StepRingWriter made;  // nobody writes by it: it has made the ring, and can close it
    StepRingReader ring;
    std::thread thread = {};
  };
  void hear(int rank);

  KvLayerListener& listener_;
  std::mutex mutex_;
  int64_t last_collected_ = -1;
  std::vector<Rank> ranks_;
};

}  // namespace ladder
