// The clear rung.
#include "step1_layers/linear/matmul_rungs.h"

namespace ladder {

// >>> task 1.4.loop: the matrix product of a linear layer, one dot product after the other
namespace {

// In double: this rung is the yardstick of the others, and a float sum of thousands of terms is not.
template <class T>
double dot(const T* x, const T* weight, int64_t count) {
  double sum = 0;
  for (int64_t k = 0; k < count; ++k)
    sum += static_cast<double>(static_cast<float>(x[k])) * static_cast<double>(static_cast<float>(weight[k]));
  return sum;
}

// out[j] = x . weight[j] (+ bias[j]) for one row of x.
template <class T, class Out>
void multiply_row(const T* x, const MatmulArgs& args, Out* out) {
  const T* weight = args.weight.data<T>();
  const T* bias = args.bias.defined() ? args.bias.data<T>() : nullptr;
  for (int64_t j = 0; j < args.weight.dim(0); ++j) {
    double sum = dot(x, weight + j * args.weight.stride(0), args.weight.dim(1));
    if (bias != nullptr) sum += static_cast<double>(static_cast<float>(bias[j]));
    out[j] = Out(static_cast<float>(sum));
  }
}

}  // namespace

void matmul_loop(const OpContext&, const MatmulArgs& args) {
  with_float_type(args.x.dtype(), "matmul", [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < args.x.dim(0); ++i) {
      const T* x = args.x.data<T>() + i * args.x.stride(0);
      if (args.out.dtype() == DType::f32)
        multiply_row(x, args, args.out.data<float>() + i * args.out.stride(0));
      else
        multiply_row(x, args, args.out.data<T>() + i * args.out.stride(0));
    }
  });
}
// <<< task 1.4.loop

}  // namespace ladder
