// The fast rungs: panels of the weight over threads, each through the kernels of matmul_simd.h.
#include <algorithm>

#include "step1_layers/core/parallel.h"
#include "step1_layers/linear/matmul_rungs.h"
#include "step1_layers/linear/matmul_simd.h"

namespace ladder {

namespace {

struct Kernels {
  void (*pack_x)(const void*, int64_t, const MatmulPanel&, int64_t, int64_t);
  void (*sums)(const MatmulPanel&);
  void (*store)(const MatmulPanel&);
};

// Columns of a panel: as many as the caches take, but enough panels that every thread gets several.
int64_t panel_columns(int64_t n) {
  const int64_t share = (n + 4 * num_threads() - 1) / (4 * num_threads());
  return std::clamp<int64_t>((share + 3) / 4 * 4, 8, kMatmulColumns);
}

void* at_element(const Tensor& tensor, int64_t offset) {
  return static_cast<char*>(tensor.raw()) + offset * dtype_size(tensor.dtype());
}

// How a call is cut up, and the scratch memory it takes.
struct Split {
  int64_t columns = 0;  // per panel
  int64_t panels = 0;
  int64_t threads = 0;
  Shape x, sums, converted;  // all f32
};

Split split_of(const MatmulArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.weight.dim(0);
  Split split;
  split.columns = panel_columns(n);
  split.panels = (n + split.columns - 1) / split.columns;
  split.threads = std::min<int64_t>(num_threads(), split.panels);
  split.x = {m, k / kMatmulChunk * kMatmulChunk + matmul_padded(k % kMatmulChunk)};
  split.sums = {split.threads, m * split.columns};
  const bool widened = args.x.dtype() != DType::f32 && m > 1;
  split.converted = {widened ? split.threads : 0, split.columns * kMatmulChunk};
  return split;
}

void matmul_panels(const OpContext& ctx, const MatmulArgs& args, const Kernels& kernels) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.weight.dim(0);
  const Split split = split_of(args);
  const int64_t columns = split.columns, panels = split.panels, threads = split.threads;

  Arena own;  // for callers that bring no scratch memory
  Arena& arena = ctx.arena != nullptr ? *ctx.arena : own;
  ArenaScope scope(arena);
  Tensor x = arena.take(split.x, DType::f32);
  Tensor sums = arena.take(split.sums, DType::f32);
  Tensor converted = arena.take(split.converted, DType::f32);

  MatmulPanel whole{.dtype = args.x.dtype(),
                    .m = m,
                    .k = k,
                    .x = x.raw(),
                    .weight_stride = args.weight.stride(0),
                    .out_stride = args.out.stride(0),
                    .out_f32 = args.out.dtype() == DType::f32};
  parallel_for(m, 64, [&](int64_t begin, int64_t end) {
    kernels.pack_x(args.x.raw(), args.x.stride(0), whole, begin, end);
  });
  parallel_for(threads, 1, [&](int64_t thread_begin, int64_t thread_end) {
    for (int64_t thread = thread_begin; thread < thread_end; ++thread) {
      for (int64_t i = panels * thread / threads; i < panels * (thread + 1) / threads; ++i) {
        MatmulPanel panel = whole;
        panel.n = std::min(columns, n - i * columns);
        panel.weight = at_element(args.weight, i * columns * panel.weight_stride);
        panel.bias = args.bias.defined() ? at_element(args.bias, i * columns) : nullptr;
        panel.out = at_element(args.out, i * columns);
        panel.sums = sums.data<float>() + thread * m * columns;
        panel.converted =
            converted.data<float>() + (converted.numel() > 0 ? thread * columns * kMatmulChunk : 0);
        kernels.sums(panel);
        kernels.store(panel);
      }
    }
  });
}

}  // namespace

int64_t matmul_panels_workspace(const MatmulArgs& args) {
  const Split split = split_of(args);
  return (split.x.numel() + split.sums.numel() + split.converted.numel()) * dtype_size(DType::f32);
}

void matmul_portable(const OpContext& ctx, const MatmulArgs& args) {
  matmul_panels(ctx, args, {portable::matmul_pack_x, portable::matmul_sums, portable::matmul_store});
}

#if defined(__x86_64__)
void matmul_avx2(const OpContext& ctx, const MatmulArgs& args) {
  matmul_panels(ctx, args, {avx2::matmul_pack_x, avx2::matmul_sums, avx2::matmul_store});
}

void matmul_avx512(const OpContext& ctx, const MatmulArgs& args) {
  matmul_panels(ctx, args, {avx512::matmul_pack_x, avx512::matmul_sums, avx512::matmul_store});
}
#endif

}  // namespace ladder
