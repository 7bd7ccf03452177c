// The clear rung.
#include "step1_layers/linear/matmul_rungs.h"

namespace ladder {

// >>> task 1.4: the matrix product of a linear layer
void matmul_loop(const OpContext&, const MatmulArgs& args) {
  with_float_type(args.x.dtype(), "matmul", [&](auto tag) {
    using T = decltype(tag);
    const T* x = args.x.data<T>();
    const T* weight = args.weight.data<T>();
    for (int64_t i = 0; i < args.x.dim(0); ++i) {
      for (int64_t j = 0; j < args.weight.dim(0); ++j) {
        // In double: this rung is the yardstick of the others, and a float sum of thousands of terms is not.
        double sum = 0;
        for (int64_t k = 0; k < args.x.dim(1); ++k)
          sum += static_cast<double>(static_cast<float>(x[i * args.x.stride(0) + k])) *
                 static_cast<double>(static_cast<float>(weight[j * args.weight.stride(0) + k]));
        if (args.bias.defined()) sum += static_cast<double>(static_cast<float>(args.bias.data<T>()[j]));
        if (args.out.dtype() == DType::f32) {
          args.out.data<float>()[i * args.out.stride(0) + j] = static_cast<float>(sum);
        } else {
          args.out.data<T>()[i * args.out.stride(0) + j] = T(static_cast<float>(sum));
        }
      }
    }
  });
}
// <<< task 1.4

}  // namespace ladder
