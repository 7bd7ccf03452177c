#include "step8_advanced/quantization/kernels/experts_grouped.cuh"

namespace ladder {

namespace {

constexpr int kThreads = 256;

// A thread has 32 columns.
__global__ void __launch_bounds__(kThreads)
    permute_columns_kernel(const uint16_t* x, int64_t x_stride, int64_t runs, int64_t runs_of_row,
                           uint4* out) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int64_t run = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (run >= runs) return;
  const auto* from =
      reinterpret_cast<const uint4*>(x + run / runs_of_row * x_stride + run % runs_of_row * 32);
  uint4 packs[4] = {from[0], from[1], from[2], from[3]};
  records::permute_packs(packs);
#pragma unroll
  for (int pack = 0; pack < 4; ++pack) out[run * 4 + pack] = packs[pack];
}

}  // namespace

void permute_columns(const OpContext& ctx, const Tensor& x, const Tensor& out) {
  const int64_t runs_of_row = x.dim(1) / 32, runs = x.dim(0) * runs_of_row;
  launch_kernel(ctx, permute_columns_kernel, static_cast<unsigned>(ceil_div<int64_t>(runs, kThreads)),
                kThreads, 0, cuda_data<uint16_t>(x), x.stride(0), runs, runs_of_row, cuda_data<uint4>(out));
}

}  // namespace ladder
