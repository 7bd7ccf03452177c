#include "step4_runner/kv_layer_events_cuda.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "step1_layers/core/device_cuda.h"
#include "step4_runner/host_copy.h"

namespace ladder {

KvLayerEvents::KvLayerEvents(KvLayerListener& listener, int rank, Device device)
    : listener_(listener), rank_(rank), device_(device), thread_([this] { tell_until_stopped(); }) {}

KvLayerEvents::~KvLayerEvents() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KvLayerEvents::launched(const OpContext& ctx, int64_t layer, const Tensor& slots) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  LADDER_CUDA_CHECK(cudaStreamIsCapturing(stream_of(ctx), &capturing));
  if (capturing != cudaStreamCaptureStatusNone) return;
  if (std::exchange(last_layer_, layer) >= layer) {  // a step begins
    const std::shared_ptr<Slots> room = room_for(slots.numel());
    copy_to_host(ctx, room->memory.get(), slots.raw(), slots.nbytes());
    room->launch = listener_.current_launch();
    slots_ = room;
  }
  cudaEvent_t event = nullptr;
  LADDER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming));
  Layer launched{{event, &cudaEventDestroy}, layer, slots_};
  LADDER_CUDA_CHECK(cudaEventRecord(event, stream_of(ctx)));
  {
    const std::lock_guard lock(mutex_);
    launched_.push_back(std::move(launched));
  }
  changed_.notify_all();
}

void KvLayerEvents::catch_up() {
  LADDER_CUDA_CHECK(cudaSetDevice(device_.index));
  const std::lock_guard lock(mutex_);
  tell_past_ones();
}

// Memory that no step needs any more, or else more of it: as much as the longest steps under way take, once for all.
std::shared_ptr<KvLayerEvents::Slots> KvLayerEvents::room_for(int64_t count) {
  const std::lock_guard lock(mutex_);
  slots_ = nullptr;
  const auto is_free = [count](const auto& slots) { return slots.use_count() == 1 && slots->room >= count; };
  auto found = std::ranges::find_if(all_slots_, is_free);
  if (found == all_slots_.end()) {
    const auto room = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
    all_slots_.push_back(std::make_shared<Slots>(
        Slots{cuda::allocate_pinned(room * static_cast<int64_t>(sizeof(int64_t))), room}));
    found = std::prev(all_slots_.end());
  }
  (*found)->count = count;
  return *found;
}

void KvLayerEvents::tell_until_stopped() {
  cudaSetDevice(device_.index);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !launched_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<CUevent_st> stored = launched_.front().stored;
    lock.unlock();
    const cudaError_t status = cudaEventSynchronize(stored.get());
    lock.lock();
    if (status != cudaSuccess) return;  // the step fails, too, and says why
    tell_past_ones();
  }
}

void KvLayerEvents::tell_past_ones() {
  while (!launched_.empty() && cudaEventQuery(launched_.front().stored.get()) == cudaSuccess) {
    const Layer& layer = launched_.front();
    listener_.save_kv_layer(rank_, layer.layer, layer.slots->launch, layer.slots->all());
    launched_.pop_front();
  }
  cudaGetLastError();  // of one that is not past, or failed: the step says so
}

}  // namespace ladder
