#include "step8_advanced/disaggregation/transport/gpu_slots.h"

#include <random>
#include <thread>

#include "step1_layers/core/device_cuda.h"
#include "step8_advanced/disaggregation/transport/memory_streams.h"

namespace ladder {

namespace {

constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kPause{5};

}  // namespace

std::array<uint64_t, kPatternBytes / sizeof(uint64_t)> pattern_of(uint64_t pattern) {
  std::mt19937_64 random(pattern);
  std::array<uint64_t, kPatternBytes / sizeof(uint64_t)> words;
  for (uint64_t& word : words) word = random();
  return words;
}

void expect_slots_as_here(const GpuSlotsHandle& theirs) {
  LADDER_CHECK(
      theirs.num_slots == kGpuSlots && theirs.slot_bytes == kGpuSlotBytes,
      "the other end has {} slots of {} bytes on its GPU, this one {} of {}: expected the same program",
      theirs.num_slots, theirs.slot_bytes, kGpuSlots, kGpuSlotBytes);
}

GpuSlots::GpuSlots(Device device) : device_(device) {
  constexpr int64_t kSlots = static_cast<int64_t>(kGpuSlots * kGpuSlotBytes);
  static_assert(kSlots % kGpuMemoryBlock == 0);
  memory_ = cuda::allocate(device.index, kSlots + kGpuMemoryBlock);  // and makes it the thread's device
  std::random_device random;
  handle_.pattern = uint64_t{random()} << 32 | random();
  const auto words = pattern_of(handle_.pattern);
  cuda::copy(static_cast<char*>(memory_.get()) + kSlots, words.data(), kPatternBytes, nullptr);
  handle_.memory = handle_of_gpu_memory(device.index, memory_.get());
}

GpuSlots::~GpuSlots() {
  cudaSetDevice(device_.index);  // a thread that has not chosen one would make a context on the first
}

KvBody GpuSlots::slot(int64_t number) const {
  return {static_cast<std::byte*>(memory_.get()) + static_cast<size_t>(number % kGpuSlots) * kGpuSlotBytes,
          kGpuSlotBytes, device_};
}

SlotStream::SlotStream(Device device) : device_(device) {
  LADDER_CUDA_CHECK(cudaSetDevice(device.index));
  int least = 0, greatest = 0;
  LADDER_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  LADDER_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  try {
    for (cudaEvent_t& event : events_)
      LADDER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  } catch (...) {
    let_go();
    throw;
  }
}

SlotStream::~SlotStream() {
  let_go();
}

void SlotStream::record(int64_t number) {
  LADDER_CUDA_CHECK(cudaEventRecord(event_of(number), stream_));
}

bool SlotStream::is_past(int64_t number) const {
  const cudaError_t status = cudaEventQuery(event_of(number));
  if (status == cudaErrorNotReady) return false;
  LADDER_CUDA_CHECK(status);
  return true;
}

void SlotStream::let_go() {
  cudaSetDevice(device_.index);
  cudaStreamSynchronize(stream_);
  for (const cudaEvent_t event : events_)
    if (event != nullptr) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
  cudaGetLastError();
}

ParkedSlots::~ParkedSlots() {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  sweep();
  while (!parked_.empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(kPause);
    sweep();
  }
}

void ParkedSlots::park(std::shared_ptr<void> slots, std::shared_ptr<const FileDescriptor> socket) {
  const std::lock_guard lock(mutex_);
  parked_.push_back({std::move(slots), std::move(socket)});
}

void ParkedSlots::sweep() {
  const std::lock_guard lock(mutex_);
  std::erase_if(parked_, [](const Parked& parked) { return has_hung_up(*parked.socket); });
}

}  // namespace ladder
