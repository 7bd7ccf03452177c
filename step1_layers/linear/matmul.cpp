#include "step1_layers/linear/matmul.h"

#include "step1_layers/linear/matmul_rungs.h"

namespace ladder {

namespace {

void expect_adjacent(const Tensor& tensor, std::string_view what) {
  LADDER_CHECK(tensor.dim(-1) <= 1 || tensor.stride(-1) == 1,
               "matmul: the elements of a row of {} are not adjacent", what);
}

}  // namespace

std::span<const Variant<MatmulArgs>> matmul_variants() {
  static const Variant<MatmulArgs> table[] = {
      {.name = "loop", .idea = "three loops, one sum at a time", .run = matmul_loop},
  };
  return table;
}

void matmul(const OpContext& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& out) {
  expect_shape(x, {-1, -1}, "matmul: x");
  expect_shape(weight, {-1, x.dim(1)}, "matmul: weight");
  expect_shape(out, {x.dim(0), weight.dim(0)}, "matmul: out");
  expect_dtype(weight, x.dtype(), "matmul: weight");
  if (x.dtype() != DType::f32 && x.dtype() != DType::bf16 && x.dtype() != DType::f16)
    fail_not_floating(x.dtype(), "matmul");
  if (out.dtype() != DType::f32) expect_dtype(out, x.dtype(), "matmul: out");
  if (bias.defined()) {
    expect_shape(bias, {weight.dim(0)}, "matmul: bias");
    expect_dtype(bias, x.dtype(), "matmul: bias");
    expect_adjacent(bias, "bias");
  }
  expect_adjacent(x, "x");
  expect_adjacent(weight, "weight");
  expect_adjacent(out, "out");
  if (out.numel() == 0) return;
  run_variant("matmul", matmul_variants(), ctx, MatmulArgs{x, weight, bias, out});
}

}  // namespace ladder
