#include "step1_layers/core/kernel_table.h"

namespace ladder {

namespace {

constexpr MeasuredKernel kSm90[] = {
#include "step1_layers/core/kernel_table_sm90.inc"
};

double ratio(int64_t a, int64_t b) {  // of the larger to the smaller
  return a > b ? static_cast<double>(a) / static_cast<double>(b)
               : static_cast<double>(b) / static_cast<double>(a);
}

}  // namespace

std::span<const MeasuredKernel> kernel_table(DeviceType device, int arch) {
  if (device == DeviceType::cuda && arch == 90) return kSm90;
  return {};
}

std::string_view measured_kernel(const OpContext& ctx, std::string_view op, DType dtype, int64_t rows,
                                 int64_t n, int64_t k) {
  if (dtype != DType::bf16 && dtype != DType::f16) return {};
  const MeasuredKernel* best = nullptr;
  double best_distance = 0;
  for (const MeasuredKernel& row : kernel_table(ctx.device.type, ctx.device_arch)) {
    if (row.op != op || row.rows < rows) continue;
    const double n_ratio = ratio(n, row.n), k_ratio = ratio(k, row.k), distance = n_ratio * k_ratio;
    if (n_ratio > 4 || k_ratio > 4) continue;
    const bool nearer = best == nullptr || distance < best_distance;
    if (nearer || (distance == best_distance && row.rows < best->rows)) {
      best = &row;
      best_distance = distance;
    }
  }
  return best == nullptr ? std::string_view{} : best->kernel;
}

}  // namespace ladder
