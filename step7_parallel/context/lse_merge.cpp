#include "step7_parallel/context/lse_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/error.h"

namespace ladder {

// >>> task 7.10.merge: two partial results into one
void merge_by_lse(const Tensor& out, const Tensor& lse, const Tensor& part_out, const Tensor& part_lse) {
  LADDER_CHECK(out.ndim() == 3 && out.shape() == part_out.shape(), "partial outputs of {} and {}", out.str(),
               part_out.str());
  LADDER_CHECK(lse.shape() == Shape({out.dim(0), out.dim(1)}) && lse.shape() == part_lse.shape(),
               "log-sum-exp of {} and {} for {}", lse.str(), part_lse.str(), out.str());
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const int64_t dim = out.dim(2);
  float *o = out.data<float>(), *l = lse.data<float>();
  const float *part_o = part_out.data<float>(), *part_l = part_lse.data<float>();
  for (int64_t row = 0; row < lse.numel(); ++row, o += dim, part_o += dim) {
    const float a = std::isfinite(l[row]) ? l[row] : kNothing;
    const float b = std::isfinite(part_l[row]) ? part_l[row] : kNothing;
    const float most = std::max(a, b);
    if (most == kNothing) {
      std::fill_n(o, dim, 0.0f);
      l[row] = kNothing;
      continue;
    }
    const float total = most + std::log(std::exp(a - most) + std::exp(b - most));
    const float weight_a = std::exp(a - total), weight_b = std::exp(b - total);
    for (int64_t i = 0; i < dim; ++i)
      o[i] = (weight_a > 0 ? weight_a * o[i] : 0) + (weight_b > 0 ? weight_b * part_o[i] : 0);
    l[row] = total;
  }
}
// <<< task 7.10.merge

}  // namespace ladder
