// The tables of layer_norm.h, and the threads of their fast rungs.
#include "step1_layers/norm/layer_norm.h"

#include "step1_layers/core/parallel.h"
#include "step1_layers/core/simd_rungs.h"
#include "step1_layers/norm/layer_norm_cpu.h"
#include "step1_layers/norm/layer_norm_simd.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/norm/layer_norm_cuda.h"
#endif

namespace ladder {

namespace {

// Rows of 16k elements together, as rms_norm.cpp has it.
int64_t rows_per_piece(int64_t width) {
  return 16384 / std::max<int64_t>(width, 1) + 1;
}

template <template <class> class Kernels>
void layer_norm_fast(const OpContext&, const LayerNormArgs& args) {
  const Tensor &x = args.x, &out = args.out;
  with_float_type(x.dtype(), "layer_norm", [&](auto tag) {
    using T = decltype(tag);
    parallel_for(x.dim(0), rows_per_piece(x.dim(1)), [&](int64_t begin, int64_t end) {
      Kernels<T>::layer_norm(x.data<T>() + begin * x.stride(0), x.stride(0), args.weight.data<T>(),
                             args.bias.data<T>(), static_cast<float>(args.eps),
                             out.data<T>() + begin * out.stride(0), out.stride(0), end - begin, x.dim(1));
    });
  });
}

template <template <class> class Kernels>
void layer_norm_fast(const OpContext&, const FusedAddLayerNormArgs& args) {
  const Tensor &x = args.x, &residual = args.residual, &out = args.out;
  with_float_type(x.dtype(), "fused_add_layer_norm", [&](auto tag) {
    using T = decltype(tag);
    parallel_for(x.dim(0), rows_per_piece(x.dim(1)), [&](int64_t begin, int64_t end) {
      Kernels<T>::fused_add_layer_norm(
          x.data<T>() + begin * x.stride(0), x.stride(0), residual.data<T>() + begin * residual.stride(0),
          residual.stride(0), args.weight.data<T>(), args.bias.data<T>(), static_cast<float>(args.eps),
          out.data<T>() + begin * out.stride(0), out.stride(0), end - begin, x.dim(1));
    });
  });
}

// One ladder for both operators: each rung's functions are overloaded for the two arguments.
template <class Args>
constexpr Variant<Args> kRungs[] = {
    {.name = "loop", .idea = "one value at a time, the sums in double", .run = layer_norm_loop},
    LADDER_SIMD_RUNGS(layer_norm_fast, LayerNormKernels,
                      "four registers of partial sums, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "a row per thread", .run = layer_norm_cuda_naive},
    {.name = "packs",
     .device = DeviceType::cuda,
     .idea = "a row per block, read once, sixteen bytes per access, and kept in registers",
     .supports = layer_norm_fits_packs,
     .run = layer_norm_cuda_packs},
#endif
};

void check_rows(const Tensor& tensor, const Tensor& like, std::string_view what) {
  LADDER_CHECK(tensor.shape() == like.shape() && tensor.dtype() == like.dtype(), "{}: expected {}, got {}",
               what, like.str(), tensor.str());
  LADDER_CHECK(tensor.dim(1) <= 1 || tensor.stride(1) == 1, "{}: the elements of a row must be adjacent",
               what);
}

void check_vector(const Tensor& vector, const Tensor& x, std::string_view what) {
  expect_shape(vector, {x.dim(1)}, what);
  expect_dtype(vector, x.dtype(), what);
  LADDER_CHECK(vector.is_contiguous(), "{}: expected contiguous memory", what);
}

}  // namespace

std::span<const Variant<LayerNormArgs>> layer_norm_variants() {
  return kRungs<LayerNormArgs>;
}
std::span<const Variant<FusedAddLayerNormArgs>> fused_add_layer_norm_variants() {
  return kRungs<FusedAddLayerNormArgs>;
}

void layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& out) {
  expect_shape(x, {-1, -1}, "layer_norm: x");
  check_rows(x, x, "layer_norm: x");
  check_rows(out, x, "layer_norm: out");
  check_vector(weight, x, "layer_norm: weight");
  check_vector(bias, x, "layer_norm: bias");
  run_variant<LayerNormArgs>("layer_norm", layer_norm_variants(), ctx, {x, weight, bias, eps, out});
}

void fused_add_layer_norm(const OpContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& weight,
                          const Tensor& bias, double eps, const Tensor& out) {
  expect_shape(x, {-1, -1}, "fused_add_layer_norm: x");
  check_rows(x, x, "fused_add_layer_norm: x");
  check_rows(residual, x, "fused_add_layer_norm: residual");
  check_rows(out, x, "fused_add_layer_norm: out");
  check_vector(weight, x, "fused_add_layer_norm: weight");
  check_vector(bias, x, "fused_add_layer_norm: bias");
  run_variant<FusedAddLayerNormArgs>("fused_add_layer_norm", fused_add_layer_norm_variants(), ctx,
                                     {x, residual, weight, bias, eps, out});
}

}  // namespace ladder
