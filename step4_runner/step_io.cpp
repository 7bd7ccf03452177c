#include "step4_runner/step_io.h"

#include "step4_runner/host_copy.h"

namespace ladder {

void StepUpload::begin(const OpContext& ctx, int64_t bytes) {
  device_ = ctx.device;
  used_ = 0;
  if (device_.is_cpu())
    arena_ = ctx.arena;
  else
    make_room(ctx, bytes);
}

StepUpload::Taken StepUpload::take_bytes(const Shape& shape, DType dtype) {
  if (!device_.is_cpu()) return take_staged(shape, dtype);
  Tensor tensor = arena_->take(shape, dtype);
  return {tensor.raw(), tensor};
}

void StepUpload::send(const OpContext& ctx) {
  if (!device_.is_cpu() && used_ > 0) copy_from_host(ctx, memory_.get(), host_, used_);
}

void StepDownload::begin(const OpContext& ctx, int64_t bytes) {
  if (ctx.device.is_cpu()) return;
  host_ = ring_.next(ctx.device, bytes);
  used_ = 0;
}

Tensor StepDownload::take(const OpContext& ctx, const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return ctx.device.is_cpu() ? tensor.clone() : take_staged(ctx, tensor);
}

}  // namespace ladder
