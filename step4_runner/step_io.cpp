#include "step4_runner/step_io.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_CUDA
#include "step4_runner/host_copy_cuda.h"
#endif

namespace ladder {

namespace {

constexpr int64_t kMinCapacity = int64_t{64} << 10;

// Grown in doublings: a step that needs more than any before it is rare, and soon there is none.
int64_t grown(int64_t capacity, int64_t bytes) {
  return std::max({2 * capacity, StepUpload::aligned(bytes), kMinCapacity});
}

}  // namespace

// >>> task 4.5: stage the inputs of a step in pinned memory, copy them at once, and bring its results back
char* PinnedRing::next(int64_t bytes) {
  slot_ = (slot_ + 1) % kNumSlots;
  Slot& slot = slots_[static_cast<size_t>(slot_)];
  if (slot.done) slot.done->wait();
  if (slot.capacity < bytes) {
    slot.capacity = grown(slot.capacity, bytes);
    slot.memory = pinned_allocate(slot.capacity);
  }
  return static_cast<char*>(slot.memory.get());
}

void StepUpload::begin(const OpContext& ctx, int64_t bytes) {
  device_ = ctx.device;
  used_ = 0;
  if (device_.is_cpu()) {
    arena_ = ctx.arena;
    return;
  }
  host_ = ring_.next(bytes);
  if (capacity_ < ring_.capacity()) {
    device_synchronize(device_, ctx.stream);  // the step in flight reads the old one
    capacity_ = ring_.capacity();
    memory_ = device_allocate(device_, capacity_);
  }
}

StepUpload::Taken StepUpload::take_bytes(const Shape& shape, DType dtype) {
  if (device_.is_cpu()) {
    Tensor tensor = arena_->take(shape, dtype);
    return {tensor.raw(), tensor};
  }
  const int64_t begin = used_;
  used_ += aligned(shape.numel() * dtype_size(dtype));
  LADDER_CHECK(used_ <= ring_.capacity(), "{} bytes are staged for a step, {} were announced", used_,
               ring_.capacity());
  return {host_ + begin,
          Tensor::wrap(static_cast<char*>(memory_.get()) + begin, shape, dtype, device_, memory_)};
}

void StepUpload::send([[maybe_unused]] const OpContext& ctx) {
  if (device_.is_cpu() || used_ == 0) return;
#ifdef LADDER_HAS_CUDA
  copy_from_host_cuda(ctx, memory_.get(), host_, used_);
#endif
}

void StepDownload::begin(const OpContext& ctx, int64_t bytes) {
  if (ctx.device.is_cpu()) return;
  host_ = ring_.next(bytes);
  used_ = 0;
}

Tensor StepDownload::take(const OpContext& ctx, const Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (ctx.device.is_cpu()) return tensor.clone();
  char* to = host_ + used_;
  used_ += StepUpload::aligned(tensor.nbytes());
  LADDER_CHECK(used_ <= ring_.capacity(), "{} bytes come back from a step, {} were announced", used_,
               ring_.capacity());
  const Tensor host = Tensor::wrap(to, tensor.shape(), tensor.dtype(), Device{}, ring_.memory());
#ifdef LADDER_HAS_CUDA
  LADDER_CHECK(tensor.is_contiguous(), "{} comes back from a step: not contiguous", tensor.str());
  copy_to_host_cuda(ctx, to, tensor.raw(), tensor.nbytes());
#endif
  return host;
}
// <<< task 4.5

}  // namespace ladder
