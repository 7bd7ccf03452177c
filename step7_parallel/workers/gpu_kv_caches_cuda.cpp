#include "step7_parallel/workers/gpu_kv_caches.h"

#include <cstring>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_piece.h"
#include "step4_runner/rank_grid.h"
#include "step7_parallel/communicators/gpu/gpu_memory_handle.h"

namespace ladder {

static_assert(kKvPieceBlock == kGpuMemoryBlock);

std::string show_gpu_kv_caches(std::span<const KvCacheView> caches) {
  static auto* const shown = new std::vector<KvCacheView>;
  shown->assign(caches.begin(), caches.end());
  const Tensor& first = caches.front().k;  // where the piece begins
  const GpuMemoryHandle handle = handle_of_gpu_memory(first.device().index, first.raw());
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}

std::vector<KvCacheView> open_gpu_kv_caches(const std::string& handle, std::span<const KvCacheSpec> specs,
                                            const RunnerConfig& config, std::string_view whose) {
  GpuMemoryHandle theirs;
  LADDER_CHECK(handle.size() == sizeof theirs, "{}: {} bytes are no handle of a GPU's memory", whose,
               handle.size());
  std::memcpy(static_cast<void*>(&theirs), handle.data(), sizeof theirs);
  const Device device{DeviceType::cuda, device_of(theirs)};
  OpenedGpuMemory opened = open_gpu_memory(theirs, device.index, whose);
  void* const address = opened.address;
  const std::shared_ptr<void> memory(address, [opened, device](void*) mutable {
    cudaSetDevice(device.index);
    close_gpu_memory(opened);
  });
  const int64_t blocks = config.batch.num_kv_blocks, slots = slots_of_rank(config);
  return kv_caches_in(memory, kv_piece_bytes(specs, blocks, slots), specs, blocks, slots, device);
}

}  // namespace ladder
