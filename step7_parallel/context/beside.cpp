#include "step7_parallel/context/beside.h"

#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

Beside::Beside(const OpContext& ctx, SideStream* side, std::function<void(const OpContext&)> fn) : ctx_(ctx) {
  if (ctx.device.is_cpu()) {
    done_ = std::async(std::launch::async, [fn = std::move(fn), &ctx] { fn(ctx); });
  } else if (side == nullptr) {
    fn(ctx);
  } else {
    side->begin(ctx, fn);
    side_ = side;
  }
}

void Beside::wait() {
  if (done_.valid()) done_.get();
  if (side_ != nullptr) std::exchange(side_, nullptr)->join(ctx_);
}

Beside::~Beside() {
  if (side_ == nullptr) return;  // the end of a std::async's future waits
  try {
    side_->join(ctx_);
  } catch (const Error&) {  // an error is on its way already
  }
}

#ifndef LADDER_HAS_CUDA

SideStream::SideStream(Device device) : device_(device) {
  fail("a second stream of {}: this program was built without CUDA", device_name(device));
}
SideStream::~SideStream() = default;
void SideStream::begin(const OpContext&, const std::function<void(const OpContext&)>&) {}
void SideStream::join(const OpContext&) {}

#endif

}  // namespace ladder
