// The tables of silu_and_mul.h, gelu.h and relu.h, and the threads of their fast rungs.
#include "step1_layers/activation/activation_cpu.h"
#include "step1_layers/activation/activation_simd.h"
#include "step1_layers/activation/relu.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/simd_rungs.h"
#ifdef LADDER_HAS_CUDA
#include "step1_layers/activation/activation_cuda.h"
#endif

namespace ladder {

namespace {

// Splits the rows among threads, no piece under 16k elements: below that, waking a thread costs more.
template <class Fn>
void for_each_piece(const Tensor& out, Fn&& fn) {
  const int64_t grain = 16384 / std::max<int64_t>(out.dim(1), 1) + 1;
  with_float_type(out.dtype(), "an activation", [&](auto tag) {
    parallel_for(out.dim(0), grain, [&](int64_t begin, int64_t end) { fn(tag, begin, end - begin); });
  });
}

template <template <class> class Kernels>
void silu_and_mul_fast(const OpContext&, const SiluAndMulArgs& args) {
  const Tensor &x = args.gate_up, &out = args.out;
  for_each_piece(out, [&](auto tag, int64_t row, int64_t rows) {
    using T = decltype(tag);
    Kernels<T>::silu_and_mul(x.data<T>() + row * x.stride(0), x.stride(0),
                             out.data<T>() + row * out.stride(0), out.stride(0), rows, out.dim(1));
  });
}

template <template <class> class Kernels>
void gelu_and_mul_fast(const OpContext&, const GeluAndMulArgs& args) {
  const Tensor &x = args.gate_up, &out = args.out;
  for_each_piece(out, [&](auto tag, int64_t row, int64_t rows) {
    using T = decltype(tag);
    Kernels<T>::gelu_and_mul(x.data<T>() + row * x.stride(0), x.stride(0),
                             out.data<T>() + row * out.stride(0), out.stride(0), rows, out.dim(1),
                             args.kind == GeluKind::tanh);
  });
}

template <template <class> class Kernels>
void gelu_fast(const OpContext&, const GeluArgs& args) {
  const Tensor &x = args.x, &out = args.out;
  for_each_piece(out, [&](auto tag, int64_t row, int64_t rows) {
    using T = decltype(tag);
    Kernels<T>::gelu(x.data<T>() + row * x.stride(0), x.stride(0), out.data<T>() + row * out.stride(0),
                     out.stride(0), rows, out.dim(1), args.kind == GeluKind::tanh);
  });
}

// The compiler makes whole registers of it: a comparison needs no kernel per instruction set.
void relu_loop(const OpContext&, const ReluArgs& args) {
  for_each_piece(args.out, [&](auto tag, int64_t begin, int64_t rows) {
    using T = decltype(tag);
    for (int64_t row = begin; row < begin + rows; ++row) {
      const T* x = args.x.data<T>() + row * args.x.stride(0);
      T* out = args.out.data<T>() + row * args.out.stride(0);
      for (int64_t i = 0; i < args.out.dim(1); ++i) out[i] = static_cast<float>(x[i]) < 0 ? T(0.0f) : x[i];
    }
  });
}

// Every operand of an activation is a matrix of adjacent elements, all of one dtype.
void check_matrix(const Tensor& tensor, int64_t rows, int64_t columns, DType dtype, std::string_view what) {
  expect_shape(tensor, {rows, columns}, what);
  expect_dtype(tensor, dtype, what);
  LADDER_CHECK(tensor.dim(1) <= 1 || tensor.stride(1) == 1, "{}: the elements of a row must be adjacent",
               what);
}

constexpr Variant<SiluAndMulArgs> kSiluAndMul[] = {
    {.name = "loop", .idea = "the formula, value by value", .run = silu_and_mul_loop},
    LADDER_SIMD_RUNGS(silu_and_mul_fast, ActivationKernels,
                      "a polynomial e^x on eight floats at a time, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "an element per thread", .run = silu_and_mul_cuda},
    {.name = "vectorized",
     .device = DeviceType::cuda,
     .idea = "sixteen bytes per access, one access per thread and operand",
     .supports = silu_and_mul_is_packed,
     .run = silu_and_mul_cuda_packed},
#endif
};
constexpr Variant<GeluAndMulArgs> kGeluAndMul[] = {
    {.name = "loop", .idea = "the formula, value by value", .run = gelu_and_mul_loop},
    LADDER_SIMD_RUNGS(gelu_and_mul_fast, ActivationKernels,
                      "polynomials on eight floats at a time, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "an element per thread", .run = gelu_and_mul_cuda},
    {.name = "vectorized",
     .device = DeviceType::cuda,
     .idea = "sixteen bytes per access, one access per thread and operand",
     .supports = gelu_and_mul_is_packed,
     .run = gelu_and_mul_cuda_packed},
#endif
};
constexpr Variant<GeluArgs> kGelu[] = {
    {.name = "loop", .idea = "the formula, value by value", .run = gelu_loop},
    LADDER_SIMD_RUNGS(gelu_fast, ActivationKernels,
                      "polynomials on eight floats at a time, rows split among threads"),
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "an element per thread", .run = gelu_cuda},
    {.name = "vectorized",
     .device = DeviceType::cuda,
     .idea = "sixteen bytes per access, one access per thread and operand",
     .supports = gelu_is_packed,
     .run = gelu_cuda_packed},
#endif
};

constexpr Variant<ReluArgs> kRelu[] = {
    {.name = "loop", .idea = "value by value, rows split among threads", .run = relu_loop},
#ifdef LADDER_HAS_CUDA
    {.name = "naive", .device = DeviceType::cuda, .idea = "an element per thread", .run = relu_cuda},
    {.name = "vectorized",
     .device = DeviceType::cuda,
     .idea = "sixteen bytes per access, one access per thread and operand",
     .supports = relu_is_packed,
     .run = relu_cuda_packed},
#endif
};

}  // namespace

std::span<const Variant<SiluAndMulArgs>> silu_and_mul_variants() {
  return kSiluAndMul;
}
std::span<const Variant<GeluAndMulArgs>> gelu_and_mul_variants() {
  return kGeluAndMul;
}
std::span<const Variant<GeluArgs>> gelu_variants() {
  return kGelu;
}
std::span<const Variant<ReluArgs>> relu_variants() {
  return kRelu;
}

void silu_and_mul(const OpContext& ctx, const Tensor& gate_up, const Tensor& out) {
  check_matrix(out, -1, -1, out.dtype(), "silu_and_mul: out");
  check_matrix(gate_up, out.dim(0), 2 * out.dim(1), out.dtype(), "silu_and_mul: gate_up");
  run_variant<SiluAndMulArgs>("silu_and_mul", silu_and_mul_variants(), ctx, {gate_up, out});
}

void gelu_and_mul(const OpContext& ctx, const Tensor& gate_up, const Tensor& out, GeluKind kind) {
  check_matrix(out, -1, -1, out.dtype(), "gelu_and_mul: out");
  check_matrix(gate_up, out.dim(0), 2 * out.dim(1), out.dtype(), "gelu_and_mul: gate_up");
  run_variant<GeluAndMulArgs>("gelu_and_mul", gelu_and_mul_variants(), ctx, {gate_up, out, kind});
}

void gelu(const OpContext& ctx, const Tensor& x, const Tensor& out, GeluKind kind) {
  check_matrix(out, -1, -1, out.dtype(), "gelu: out");
  check_matrix(x, out.dim(0), out.dim(1), out.dtype(), "gelu: x");
  run_variant<GeluArgs>("gelu", gelu_variants(), ctx, {x, out, kind});
}

void relu(const OpContext& ctx, const Tensor& x, const Tensor& out) {
  check_matrix(out, -1, -1, out.dtype(), "relu: out");
  check_matrix(x, out.dim(0), out.dim(1), out.dtype(), "relu: x");
  run_variant<ReluArgs>("relu", relu_variants(), ctx, {x, out});
}

}  // namespace ladder
