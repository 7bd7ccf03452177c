#include "step8_advanced/quantization/kernels/experts_grouped.cuh"

namespace ladder {

void experts_grouped_int4(const OpContext& ctx, const ExpertsGroupedArgs& args) {
  records::launch_experts_grouped<WeightCodes::int4>(ctx, args);
}

}  // namespace ladder
