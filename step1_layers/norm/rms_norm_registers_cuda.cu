// RMSNorm of rows that fit the registers of a block.
#include "step1_layers/core/packed.h"
#include "step1_layers/core/packs.cuh"
#include "step1_layers/norm/norm_rows_cuda.cuh"
#include "step1_layers/norm/row_splits_cuda.cuh"

namespace ladder {

namespace {

// registers
// Rows of whole 16-byte packs (packed.h), at most 2048 of them. `threads` threads own a row and keep it in
// registers between the sum and the product, where `block` reads it twice: it is read once, 16 bytes per
// instruction, and registers are rationed so that four to six blocks of 256 threads share a multiprocessor,
// whose loads go on while one waits for its sum. The weights are read, and addresses made, before the previous
// kernel has ended. The split of a row depends on its width alone: batch invariant.
constexpr int resident_blocks(bool fused, int threads, int packs) {
  const int max_threads = packs > 2 ? 1024 : fused ? 1280 : 1536;  // of a multiprocessor
  return threads > max_threads / 2 ? 1 : max_threads / block_threads(threads);
}
// Stops the compiler from keeping a pack as eight floats where four words will do.
template <class T>
__device__ void stay_packed(Pack<T>& pack) {
  uint32_t* word = reinterpret_cast<uint32_t*>(&pack);
  asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
}

}  // namespace

// >>> task 1.3.cuda.registers: the row read once, kept in registers between the sum and the product
namespace {

template <bool fused, int threads, int packs, class T>
__global__ void __launch_bounds__(block_threads(threads), resident_blocks(fused, threads, packs))
    norm_registers(NormRows<T> norm) {
  constexpr int kSize = Pack<T>::kSize, kThreads = block_threads(threads);
  allow_next_kernel();
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / threads;
  const int thread = threadIdx.x % threads;
  const int row_packs = row < norm.rows ? static_cast<int>(norm.width / kSize) : 0;
  const T* x = norm.x + (fused ? row * norm.x_outer : norm.x_at(row));  // heads are not fused
  T* out = norm.out + (fused ? row * norm.out_outer : norm.out_at(row));
  T* residual = norm.residual + row * norm.residual_outer;
  Pack<T> values[packs], added[packs], weights[packs];
  float a[kSize], b[kSize];
#pragma unroll
  for (int j = 0; j < packs; ++j)
    if (thread + j * threads < row_packs)
      weights[j] = load_pack(norm.weight + (thread + j * threads) * kSize);
  wait_for_previous_kernel();
#pragma unroll
  for (int j = 0; j < packs; ++j) {
    const int pack = thread + j * threads;
    if (pack >= row_packs) continue;
    values[j] = load_pack(x + pack * kSize);
    if constexpr (fused) added[j] = load_pack(residual + pack * kSize);
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < packs; ++j) {
    const int pack = thread + j * threads;
    if (pack >= row_packs) continue;
    to_floats(values[j], a);
    if constexpr (fused) {
      to_floats(added[j], b);
#pragma unroll
      for (int k = 0; k < kSize; ++k) a[k] += b[k];
      values[j] = from_floats<T>(a);  // the norm is of the rounded sum
      store_pack(residual + pack * kSize, values[j]);
      to_floats(values[j], a);
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum += a[k] * a[k];
  }
  sum = row_sum<threads>(sum);
  const float scale = rsqrtf(sum / static_cast<float>(norm.width) + norm.eps);
#pragma unroll
  for (int j = 0; j < packs; ++j) {
    const int pack = thread + j * threads;
    if (pack >= row_packs) continue;
    stay_packed(values[j]);
    stay_packed(weights[j]);
    to_floats(values[j], a);
    to_floats(weights[j], b);
#pragma unroll
    for (int k = 0; k < kSize; ++k) a[k] *= scale * b[k];
    store_pack(out + pack * kSize, from_floats<T>(a));
  }
}

// The first split that a row fits.
template <bool fused, int i = 0, class T>
void launch_registers(const OpContext& ctx, const NormRows<T>& norm) {
  constexpr RowSplit split = fused ? kFusedRowSplits[i] : kRowSplits[i];
  if constexpr (i + 1 < kNumRowSplits)
    if (norm.width / Pack<T>::kSize > split.max_packs) return launch_registers<fused, i + 1>(ctx, norm);
  constexpr int kThreads = block_threads(split.threads);
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(norm.rows * split.threads, kThreads));
  launch_kernel(ctx, norm_registers<fused, split.threads, split.packs, T>, blocks, kThreads, 0, norm);
}

}  // namespace

template <class Args>
void rms_norm_cuda_registers(const OpContext& ctx, const Args& args) {
  if (args.x.numel() == 0) return;
  with_cuda_type(args.x.dtype(),
                 [&](auto tag) { launch_registers<fuses<Args>()>(ctx, norm_rows<decltype(tag)>(args)); });
}
// <<< task 1.3.cuda.registers

template <class Args>
bool rms_norm_fits_registers(const Args& args) {
  if constexpr (fuses<Args>())
    if (!is_packed(args.residual)) return false;
  return is_packed(args.x) && is_packed(args.weight) && is_packed(args.out) &&
         args.x.dim(-1) * dtype_size(args.x.dtype()) / 16 <= kMaxRowPacks;
}

template void rms_norm_cuda_registers(const OpContext&, const RmsNormArgs&);
template void rms_norm_cuda_registers(const OpContext&, const FusedAddRmsNormArgs&);
template bool rms_norm_fits_registers(const RmsNormArgs&);
template bool rms_norm_fits_registers(const FusedAddRmsNormArgs&);

}  // namespace ladder
