#include "bench/course_race/gpu_side.h"

#include <algorithm>
#include <chrono>

#include "step1_layers/core/error.h"
#ifdef LADDER_HAS_CUDA
#include <cuda_runtime_api.h>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/linear/matmul.h"
#endif

namespace ladder::course {

#ifdef LADDER_HAS_CUDA

namespace {

using Clock = std::chrono::steady_clock;

void wait_for_gpu() {
  const cudaError_t error = cudaDeviceSynchronize();
  LADDER_CHECK(error == cudaSuccess, "the GPU reports: {}", cudaGetErrorString(error));
}

// Of several turns the shortest. A turn is ten calls: the wait for their end is not in each.
template <class Run>
double seconds_of(Run&& run) {
  constexpr int kCalls = 10;
  double best = 1e30;
  for (int i = 0; i < 12; ++i) {
    const auto begin = Clock::now();
    for (int call = 0; call < kCalls; ++call) run();
    wait_for_gpu();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / kCalls);
  }
  return best;
}

// Error: no GPU.
Device gpu() {
  std::string reason;
  LADDER_CHECK(cuda_device_count(&reason) > 0, "no GPU: {}", reason);
  return {DeviceType::cuda, 0};
}

// bf16 in [-1, 1): matrices of zeros are multiplied faster.
Tensor random_on_gpu(const Shape& shape) {
  const Tensor values = Tensor::empty(shape, DType::bf16);
  Random random;
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data<bf16>()[i] = static_cast<bf16>(static_cast<float>(static_cast<int64_t>(random())) * 0x1p-63f);
  return values.to(gpu());
}

}  // namespace

struct GpuSide::State {
  const RaceOp& op;
  Device device = gpu();
  CudaContext cuda{0};
  Arena arena{device};
  OpContext ctx = cuda.op_context();
  Tensors tensors;
};

GpuSide::GpuSide(const RaceOp& op) : state_(new State{op}) {
  state_->ctx.arena = &state_->arena;
  for (const Piece& piece : op.pieces)
    state_->tensors.push_back(Tensor::empty(piece.shape, piece.dtype, state_->device));
}

GpuSide::~GpuSide() = default;

void GpuSide::load(const Tensors& host) {
  for (size_t i = 0; i < host.size(); ++i) state_->tensors[i].copy_from(host[i]);
  wait_for_gpu();
}

void GpuSide::run(std::string_view rung) {
  const ArenaScope scope(state_->arena);
  state_->op.run(state_->ctx, rung, state_->tensors);
  wait_for_gpu();
}

void GpuSide::fetch(const Tensors& host) const {
  for (size_t i = 0; i < host.size(); ++i)
    if (state_->op.pieces[i].use != Piece::Use::input) host[i].copy_from(state_->tensors[i]);
  wait_for_gpu();
}

double gpu_copy_rate(int64_t bytes) {
  const Tensor from = random_on_gpu({bytes / 4}), to = random_on_gpu({bytes / 4});
  return static_cast<double>(from.nbytes() * 2) / seconds_of([&] { to.copy_from(from); });
}

double gpu_product_rate() {
  constexpr int64_t kSide = 4096;
  const Tensor x = random_on_gpu({kSide, kSide}), weight = random_on_gpu({kSide, kSide}),
               out = random_on_gpu({kSide, kSide});
  CudaContext cuda{0};
  OpContext ctx = cuda.op_context();
  Arena arena(gpu());
  ctx.arena = &arena;
  return 2.0 * kSide * kSide * kSide / seconds_of([&] { matmul(ctx, x, weight, Tensor(), out); });
}

#else

struct GpuSide::State {};

GpuSide::GpuSide(const RaceOp&) {
  fail("this build is without CUDA");
}
GpuSide::~GpuSide() = default;
void GpuSide::load(const Tensors&) {}
void GpuSide::run(std::string_view) {}
void GpuSide::fetch(const Tensors&) const {}
double gpu_copy_rate(int64_t) {
  return 0;
}
double gpu_product_rate() {
  return 0;
}

#endif

}  // namespace ladder::course
