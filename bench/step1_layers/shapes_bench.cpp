// Activation and RMSNorm, without and with the residual addition, at three plain shapes: one that fits in a
// cache, one that does not, and a batch of the latter. PyTorch is measured beside them at the same shapes
// (bench/peers/shapes.py); tools/shapes_table.py puts both into the table of the chapter.
//
// A shape is the input's. The operators see rows of the last dimension, so (8, 4000, 8000) are 32,000 rows;
// silu_and_mul reads gate and up from a row and writes half as many values.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/support/bench_cuda.h"
#include "bench/support/bench_support.h"
#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/norm/rms_norm.h"

namespace ladder::bench {
namespace {

// What a call moves and computes, per value of its input.
struct Cost {
  double values;  // read and written
  double operations;
};

template <class Args>
void add(const std::string& op, std::span<const Variant<Args>> table, const std::vector<int64_t>& shape,
         Cost cost, std::function<Args(int64_t rows, int64_t width, DType)> make) {
  const int64_t width = shape.back();
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  const auto problem = [&](const std::string& name, DType dtype) {
    return BenchProblem<Args>{
        .name = name,
        .dtype = dtype,
        .bytes = cost.values * static_cast<double>(count * dtype_size(dtype)),
        .operations = cost.operations * static_cast<double>(count),
        .make = [=] { return make(count / width, width, dtype); },
    };
  };
  const std::string kind = op == "gelu" ? "/erf" : "";
  const std::string name = fmt::format("shape:{}{}", fmt::join(shape, "x"), kind);
  for (DType dtype : {DType::f32, DType::bf16})
    register_ladder<Args>(op, table, {problem(fmt::format("{}/{}", name, dtype_name(dtype)), dtype)});
  register_cuda_ladder<Args>(op, table, {problem(name, DType::bf16)});
}

const bool kRegistered = [] {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{400, 800}, {4000, 8000}, {8, 4000, 8000}}) {
    add<SiluAndMulArgs>(
        "silu_and_mul", silu_and_mul_variants(), shape, {1.5, 2},
        [](int64_t rows, int64_t width, DType dtype) {
          return SiluAndMulArgs{random_tensor({rows, width}, dtype), Tensor::zeros({rows, width / 2}, dtype)};
        });
    add<GeluArgs>("gelu", gelu_variants(), shape, {2, 8}, [](int64_t rows, int64_t width, DType dtype) {
      return GeluArgs{random_tensor({rows, width}, dtype), Tensor::zeros({rows, width}, dtype),
                      GeluKind::erf};
    });
    add<RmsNormArgs>("rms_norm", rms_norm_variants(), shape, {2, 4},
                     [](int64_t rows, int64_t width, DType dtype) {
                       return RmsNormArgs{random_tensor({rows, width}, dtype), random_tensor({width}, dtype),
                                          1e-6, Tensor::zeros({rows, width}, dtype)};
                     });
    add<FusedAddRmsNormArgs>("fused_add_rms_norm", fused_add_rms_norm_variants(), shape, {4, 5},
                             [](int64_t rows, int64_t width, DType dtype) {
                               return FusedAddRmsNormArgs{
                                   random_tensor({rows, width}, dtype), random_tensor({rows, width}, dtype),
                                   random_tensor({width}, dtype), 1e-6, Tensor::zeros({rows, width}, dtype)};
                             });
  }
  return true;
}();

}  // namespace
}  // namespace ladder::bench
