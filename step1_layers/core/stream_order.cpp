#include "step1_layers/core/stream_order.h"

#include "step1_layers/core/fake_device.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {

namespace {

void order_cuda([[maybe_unused]] const OpContext& earlier, [[maybe_unused]] const OpContext& later) {
#ifdef LADDER_HAS_CUDA
  LADDER_CUDA_CHECK(cudaSetDevice(earlier.device.index));
  cudaEvent_t event = nullptr;
  LADDER_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  // Destroyed at once: CUDA frees it when it is past.
  const std::shared_ptr<void> owner(event,
                                    [](void* own) { cudaEventDestroy(static_cast<cudaEvent_t>(own)); });
  LADDER_CUDA_CHECK(cudaEventRecord(event, stream_of(earlier)));
  LADDER_CUDA_CHECK(cudaStreamWaitEvent(stream_of(later), event, 0));
#endif
}

}  // namespace

void order_streams(const OpContext& earlier, const OpContext& later) {
  if (earlier.stream == later.stream) return;
  if (earlier.device.type == DeviceType::cuda) return order_cuda(earlier, later);
  if (earlier.device.type == DeviceType::fake) fake_stream(earlier).synchronize();
}

}  // namespace ladder
