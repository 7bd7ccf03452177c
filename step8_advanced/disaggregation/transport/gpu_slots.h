#pragma once
// Memory on a GPU from which somebody else on this machine reads: a few slots of equal size. Internal to this folder.
#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "step6_engine/process/file_descriptor.h"
#include "step7_parallel/communicators/gpu/gpu_memory_handle.h"
#include "step8_advanced/disaggregation/transport/kv_body.h"

namespace ladder {

// At the sender and at the reader alike. Of the sender's one is filled, one is on its way or waits to be, and one was read and is
// about to be given back; of the reader's one is being checked and copied on, and two are on their way.
inline constexpr int kGpuSlots = 3;
inline constexpr size_t kGpuSlotBytes = size_t{32} << 20;

// What the reader is told. Behind the slots lie bytes that are drawn from `pattern`, so that he can try whether what he reads is
// what lies there.
struct GpuSlotsHandle {
  uint64_t num_slots = kGpuSlots, slot_bytes = kGpuSlotBytes;
  uint64_t pattern = 0;
  GpuMemoryHandle memory;
};
// Error: the other end was built with others.
void expect_slots_as_here(const GpuSlotsHandle& theirs);
inline constexpr size_t kPatternBytes = 4096;
std::array<uint64_t, kPatternBytes / sizeof(uint64_t)> pattern_of(uint64_t pattern);

class GpuSlots {
 public:
  explicit GpuSlots(Device device);  // Error: no memory
  ~GpuSlots();
  GpuSlots(const GpuSlots&) = delete;

  Device device() const { return device_; }
  const GpuSlotsHandle& handle() const { return handle_; }
  KvBody slot(int64_t number) const;  // that of the number-th message

 private:
  const Device device_;
  std::shared_ptr<void> memory_;
  GpuSlotsHandle handle_;
};

// What fills slots or empties them, in order, on a stream that goes before the engine's where both want multiprocessors. Ends
// when all on it has ended.
class SlotStream {
 public:
  explicit SlotStream(Device device);
  ~SlotStream();
  SlotStream(const SlotStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void record(int64_t number);  // behind the work on the number-th body
  bool is_past(int64_t number) const;

 private:
  cudaEvent_t event_of(int64_t number) const { return events_[static_cast<size_t>(number % kGpuSlots)]; }
  void let_go();

  const Device device_;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kGpuSlots> events_{};
};

// What ends that are closed had on a GPU, until their readers have let go of it: memory that another process has open is not to
// be freed. A reader's socket says that it has, or that it is dead.
class ParkedSlots {
 public:
  ParkedSlots() = default;
  ~ParkedSlots();  // waits a little for readers that are alive
  ParkedSlots(const ParkedSlots&) = delete;

  void park(std::shared_ptr<void> slots, std::shared_ptr<const FileDescriptor> socket);
  void sweep();

 private:
  struct Parked {
    std::shared_ptr<void> slots;
    std::shared_ptr<const FileDescriptor> socket;
  };
  std::mutex mutex_;
  std::vector<Parked> parked_;
};

}  // namespace ladder
