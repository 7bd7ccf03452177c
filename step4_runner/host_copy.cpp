#include "step4_runner/host_copy.h"

namespace ladder {

void copy_from_host(const OpContext& ctx, void* to, const void* from, int64_t bytes) {
#ifdef LADDER_HAS_CUDA
  if (ctx.device.type == DeviceType::cuda) return copy_from_host_cuda(ctx, to, from, bytes);
#endif
  device_copy(to, ctx.device, from, Device{}, bytes, ctx.stream);
}

void copy_to_host(const OpContext& ctx, void* to, const void* from, int64_t bytes) {
#ifdef LADDER_HAS_CUDA
  if (ctx.device.type == DeviceType::cuda) return copy_to_host_cuda(ctx, to, from, bytes);
#endif
  device_copy(to, Device{}, from, ctx.device, bytes, ctx.stream);
}

}  // namespace ladder
