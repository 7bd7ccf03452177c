#pragma once
// Task 4.5: what a step brings to the device, and what it brings back: one copy each way.
//
// A GPU reads host memory a hundred times slower than its own, and every copy has a cost of its own, so all
// inputs of a step are written side by side into pinned memory and travel in one copy, which is a kernel
// (host_copy_cuda.h). The copy of step N + 1 is prepared while step N still runs: the pinned side has several
// slots, taken in turn. The device side has one, because the stream keeps the order: whatever reads step N's
// inputs comes before the copy that overwrites them.
//
// On the CPU there is nothing to copy: what is taken is memory of the arena, and what comes back is kept.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/device_graph.h"
#include "step1_layers/core/tensor.h"

namespace ladder {

// The pinned slots of one direction. A slot is used again when the step that it was used for is done; with one more than
// there are steps in flight it has also been collected.
class PinnedRing {
 public:
  static constexpr int kNumSlots = 3;  // one being written, two in flight

  explicit PinnedRing(int num_slots = kNumSlots) : slots_(static_cast<size_t>(num_slots)) {}

  // The next slot in turn, of at least `bytes`, which `device` copies to and from; waits until the step that it
  // was used for is done. A slot that is too small grows, the others stay as they are.
  char* next(Device device, int64_t bytes);
  int64_t capacity() const { return slots_[static_cast<size_t>(slot_)].capacity; }
  std::shared_ptr<void> memory() const { return slots_[static_cast<size_t>(slot_)].memory; }
  void keep_until(std::shared_ptr<const DeviceEvent> done) {
    slots_[static_cast<size_t>(slot_)].done = std::move(done);
  }

 private:
  struct Slot {
    std::shared_ptr<void> memory;
    int64_t capacity = 0;
    std::shared_ptr<const DeviceEvent> done;
  };
  std::vector<Slot> slots_;
  int slot_ = 0;
};

class StepUpload {
 public:
  explicit StepUpload(int num_slots = PinnedRing::kNumSlots) : ring_(num_slots) {}

  // `host` is written now; `device` holds the same after send().
  template <class T>
  struct Staged {
    T* host = nullptr;
    Tensor device;
  };

  // Room for `bytes` of staged data; what was taken for the step before is void. On the CPU the arena gives
  // the memory, for as long as the caller's scope lasts.
  void begin(const OpContext& ctx, int64_t bytes);
  template <class T>
  Staged<T> take(int64_t count) {
    return take<T>(Shape{count});
  }
  template <class T>
  Staged<T> take(const Shape& shape) {
    const Taken taken = take_bytes(shape, dtype_of<T>);
    return {static_cast<T*>(taken.host), taken.device};
  }
  void send(const OpContext& ctx);  // one copy of everything taken
  // The event that is recorded after the step.
  void keep_until(std::shared_ptr<const DeviceEvent> done) { ring_.keep_until(std::move(done)); }

  // What a piece takes of the room: begin() is called with the sum over all of them.
  template <class T>
  static int64_t bytes_of(int64_t count) {
    return aligned(count * static_cast<int64_t>(sizeof(T)));
  }
  static constexpr int64_t kAlignment = 256;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  struct Taken {
    void* host;
    Tensor device;
  };
  Taken take_bytes(const Shape& shape, DType dtype);
  // step_copies.cpp: where there is something to copy.
  void make_room(const OpContext& ctx, int64_t bytes);
  Taken take_staged(const Shape& shape, DType dtype);

  Arena* arena_ = nullptr;  // the CPU's
  Device device_;
  PinnedRing ring_;
  char* host_ = nullptr;
  std::shared_ptr<void> memory_;  // the device's side
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

class StepDownload {
 public:
  explicit StepDownload(int num_slots = PinnedRing::kNumSlots) : ring_(num_slots) {}

  void begin(const OpContext& ctx, int64_t bytes);  // room for so much
  // A contiguous copy on the host, there once the step is done.
  Tensor take(const OpContext& ctx, const Tensor& tensor);
  void keep_until(std::shared_ptr<const DeviceEvent> done) { ring_.keep_until(std::move(done)); }

 private:
  Tensor take_staged(const OpContext& ctx, const Tensor& tensor);  // step_copies.cpp

  PinnedRing ring_;
  char* host_ = nullptr;
  int64_t used_ = 0;
};

}  // namespace ladder
