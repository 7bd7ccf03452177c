#include "step8_advanced/quantization/kernels/gather_columns.h"

#include "step1_layers/core/parallel.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/quantization/kernels/prepare_x_cuda.h"
#endif

namespace ladder {

void gather_columns(const OpContext& ctx, const Tensor& x, const Tensor& columns, const Tensor& out) {
#ifdef LADDER_HAS_CUDA
  if (ctx.device.type == DeviceType::cuda) return prepare_x_cuda(ctx, x, columns, std::nullopt, 1, out);
#endif
  const int32_t* from = columns.data<int32_t>();
  const int64_t k = columns.numel();
  with_float_type(x.dtype(), "x", [&](auto tag) {
    using T = decltype(tag);
    parallel_for(x.dim(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t i = 0; i < k; ++i)
          out.data<T>()[row * k + i] = from[i] < 0 ? T(0.0f) : x.data<T>()[row * x.stride(0) + from[i]];
    });
  });
}

}  // namespace ladder
