// Task 4.5.copies: the device's half of step_io.h: pinned slots taken in turn, and pieces side by side in them.
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step4_runner/host_copy.h"
#include "step4_runner/step_io.h"

namespace ladder {

namespace {

constexpr int64_t kMinCapacity = int64_t{64} << 10;

// Grown in doublings: a step that needs more than any before it is rare, and soon there is none.
int64_t grown(int64_t capacity, int64_t bytes) {
  return std::max({2 * capacity, StepUpload::aligned(bytes), kMinCapacity});
}

}  // namespace

// >>> task 4.5.copies: stage the inputs of a step in pinned memory, and bring its results back
char* PinnedRing::next(Device device, int64_t bytes) {
  slot_ = (slot_ + 1) % static_cast<int>(slots_.size());
  Slot& slot = slots_[static_cast<size_t>(slot_)];
  if (slot.done) slot.done->wait();
  if (slot.capacity < bytes) {
    slot.capacity = grown(slot.capacity, bytes);
    slot.memory = pinned_allocate(device, slot.capacity);
  }
  return static_cast<char*>(slot.memory.get());
}

void StepUpload::make_room(const OpContext& ctx, int64_t bytes) {
  host_ = ring_.next(device_, bytes);
  if (capacity_ < ring_.capacity()) {
    device_synchronize(device_, ctx.stream);  // the step in flight reads the old one
    capacity_ = ring_.capacity();
    memory_ = device_allocate(device_, capacity_);
  }
}

StepUpload::Taken StepUpload::take_staged(const Shape& shape, DType dtype) {
  const int64_t begin = used_;
  used_ += aligned(shape.numel() * dtype_size(dtype));
  LADDER_CHECK(used_ <= ring_.capacity(), "{} bytes are staged for a step, {} were announced", used_,
               ring_.capacity());
  return {host_ + begin,
          Tensor::wrap(static_cast<char*>(memory_.get()) + begin, shape, dtype, device_, memory_)};
}

Tensor StepDownload::take_staged(const OpContext& ctx, const Tensor& tensor) {
  LADDER_CHECK(tensor.is_contiguous(), "{} comes back from a step: not contiguous", tensor.str());
  char* to = host_ + used_;
  used_ += StepUpload::aligned(tensor.nbytes());
  LADDER_CHECK(used_ <= ring_.capacity(), "{} bytes come back from a step, {} were announced", used_,
               ring_.capacity());
  copy_to_host(ctx, to, tensor.raw(), tensor.nbytes());
  return Tensor::wrap(to, tensor.shape(), tensor.dtype(), Device{}, ring_.memory());
}
// <<< task 4.5.copies

}  // namespace ladder
