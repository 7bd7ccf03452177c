#include "step2_model/decoder/add_residual.h"

#include "step1_layers/core/parallel.h"

namespace ladder {

void add_residual(const OpContext& ctx, const Tensor& x, const Tensor& residual) {
#ifdef LADDER_HAS_CUDA
  if (!ctx.device.is_cpu()) return add_residual_cuda(ctx, x, residual);
#else
  (void)ctx;
#endif
  with_float_type(residual.dtype(), "residual", [&](auto tag) {
    using T = decltype(tag);
    const T* from = x.data<T>();
    T* to = residual.data<T>();
    parallel_for(residual.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        to[i] = T(static_cast<float>(to[i]) + static_cast<float>(from[i]));
    });
  });
}

}  // namespace ladder
