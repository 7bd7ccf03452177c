// The tables of rms_norm.h, and the threads of their fast rungs.
#include "step1_layers/norm/rms_norm.h"

#include "step1_layers/core/parallel.h"
#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/norm/rms_norm_cpu.h"
#include "step1_layers/norm/rms_norm_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/norm/rms_norm_cuda.h"
#endif

namespace ladder {

namespace {

// Rows of 16k elements together: for less, waking a thread costs more than it saves.
int64_t rows_per_piece(int64_t elements_per_row) {
  return 16384 / std::max<int64_t>(elements_per_row, 1) + 1;
}

template <template <class> class Kernels>
void rms_norm_fast(const OpContext&, const RmsNormArgs& args) {
  const Tensor &x = args.x, &out = args.out;
  const auto eps = static_cast<float>(args.eps);
  const int64_t width = x.dim(-1);
  with_float_type(x.dtype(), "rms_norm", [&](auto tag) {
    using T = decltype(tag);
    const T* weight = args.weight.data<T>();
    if (x.ndim() == 2) {
      parallel_for(x.dim(0), rows_per_piece(width), [&](int64_t begin, int64_t end) {
        Kernels<T>::rms_norm(x.data<T>() + begin * x.stride(0), x.stride(0), weight, eps,
                             out.data<T>() + begin * out.stride(0), out.stride(0), end - begin, width);
      });
      return;
    }
    parallel_for(x.dim(0), rows_per_piece(width * x.dim(1)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        Kernels<T>::rms_norm(x.data<T>() + row * x.stride(0), x.stride(1), weight, eps,
                             out.data<T>() + row * out.stride(0), out.stride(1), x.dim(1), width);
    });
  });
}

template <template <class> class Kernels>
void rms_norm_fast(const OpContext&, const FusedAddRmsNormArgs& args) {
  const Tensor &x = args.x, &residual = args.residual, &out = args.out;
  with_float_type(x.dtype(), "fused_add_rms_norm", [&](auto tag) {
    using T = decltype(tag);
    parallel_for(x.dim(0), rows_per_piece(x.dim(1)), [&](int64_t begin, int64_t end) {
      Kernels<T>::fused_add_rms_norm(
          x.data<T>() + begin * x.stride(0), x.stride(0), residual.data<T>() + begin * residual.stride(0),
          residual.stride(0), args.weight.data<T>(), static_cast<float>(args.eps),
          out.data<T>() + begin * out.stride(0), out.stride(0), end - begin, x.dim(1));
    });
  });
}

// One ladder for both operators: each rung's functions are overloaded for the two arguments.
template <class Args>
constexpr Variant<Args> kRungs[] = {
    {.name = "loop", .idea = "one value at a time, the sum in double", .run = rms_norm_loop},
    LADDER_SIMD_RUNGS(rms_norm_fast, NormKernels, "four registers of partial sums, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "a row per thread", .run = rms_norm_cuda_naive},
    {.name = "block",
     .device = DeviceType::cuda,
     .idea = "a row per block: neighbouring threads read neighbouring elements",
     .run = rms_norm_cuda_block},
    {.name = "registers",
     .device = DeviceType::cuda,
     .idea = "the row read once, sixteen bytes per access, and kept in registers",
     .supports = rms_norm_fits_registers,
     .run = rms_norm_cuda_registers},
#endif
};

void check_rows(const Tensor& tensor, const Tensor& like, std::string_view what) {
  LADDER_CHECK(tensor.shape() == like.shape() && tensor.dtype() == like.dtype(), "{}: expected {}, got {}",
               what, like.str(), tensor.str());
  LADDER_CHECK(tensor.dim(-1) <= 1 || tensor.stride(-1) == 1, "{}: the elements of a row must be adjacent",
               what);
}

void check_weight(const Tensor& weight, const Tensor& x, std::string_view what) {
  expect_shape(weight, {x.dim(-1)}, what);
  expect_dtype(weight, x.dtype(), what);
  LADDER_CHECK(weight.is_contiguous(), "{}: expected contiguous memory", what);
}

}  // namespace

std::span<const Variant<RmsNormArgs>> rms_norm_variants() {
  return kRungs<RmsNormArgs>;
}
std::span<const Variant<FusedAddRmsNormArgs>> fused_add_rms_norm_variants() {
  return kRungs<FusedAddRmsNormArgs>;
}

void rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  LADDER_CHECK(x.ndim() == 2 || x.ndim() == 3, "rms_norm: x: expected 2 or 3 dimensions, got {}", x.str());
  check_rows(x, x, "rms_norm: x");
  check_rows(out, x, "rms_norm: out");
  check_weight(weight, x, "rms_norm: weight");
  run_variant<RmsNormArgs>("rms_norm", rms_norm_variants(), ctx, {x, weight, eps, out});
}

void fused_add_rms_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& weight,
                        double eps, const Tensor& out) {
  expect_shape(x, {-1, -1}, "fused_add_rms_norm: x");
  check_rows(x, x, "fused_add_rms_norm: x");
  check_rows(residual, x, "fused_add_rms_norm: residual");
  check_rows(out, x, "fused_add_rms_norm: out");
  check_weight(weight, x, "fused_add_rms_norm: weight");
  run_variant<FusedAddRmsNormArgs>("fused_add_rms_norm", fused_add_rms_norm_variants(), ctx,
                                   {x, residual, weight, eps, out});
}

}  // namespace ladder
