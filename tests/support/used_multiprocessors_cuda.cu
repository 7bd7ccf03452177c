#include "step1_layers/core/cuda_kernel.cuh"
#include "step1_layers/core/tensor.h"
#include "tests/support/used_multiprocessors.h"

namespace ladder::testing {

namespace {

constexpr int kBlocks = 2048, kThreads = 1024;
constexpr long long kCycles = 200'000;

__global__ void tell_multiprocessor(int* of_block) {
  int multiprocessor = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  if (threadIdx.x == 0) of_block[blockIdx.x] = multiprocessor;
  const long long begin = clock64();
  while (clock64() - begin < kCycles) {
  }
}

}  // namespace

Tensor multiprocessors_of_blocks(Device device) {
  return Tensor::zeros({kBlocks}, DType::i32, device);
}

void tell_multiprocessors(const OpContext& ctx, const Tensor& of_block) {
  tell_multiprocessor<<<kBlocks, kThreads, 0, stream_of(ctx)>>>(of_block.data<int32_t>());
  LADDER_CUDA_CHECK(cudaGetLastError());
}

std::set<int> read_multiprocessors(const Tensor& of_block) {
  const Tensor host = of_block.to(Device{});
  return {host.data<int32_t>(), host.data<int32_t>() + kBlocks};
}

const void* multiprocessor_kernel() {
  return reinterpret_cast<const void*>(tell_multiprocessor);
}

std::set<int> used_multiprocessors(const OpContext& ctx) {
  const Tensor of_block = multiprocessors_of_blocks(ctx.device);
  tell_multiprocessors(ctx, of_block);
  device_synchronize(ctx.device, ctx.stream);
  return read_multiprocessors(of_block);
}

}  // namespace ladder::testing
