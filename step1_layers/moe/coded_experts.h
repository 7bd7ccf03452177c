#pragma once
// Task 1.9: what a linear method is beside a LinearMethod if it runs all experts of a layer in one call, as a GPU must: how many tokens
// an expert gets is known on the device only, so nobody can ask it for a product per expert (moe_experts_by_products).
#include "step1_layers/moe/experts.h"

namespace ladder {

// The method of one linear alone, which keeps what it has loaded.
class CodedExperts {
 public:
  virtual ~CodedExperts() = default;
  // As moe_experts(), of matrices that are not tensors: this linear's, whose parts 2 e and 2 e + 1 are gate and up of expert e, and those
  // of `down`, whose part e is expert e's. args.gate_up and args.down are undefined. Both were loaded.
  // Error: as moe_experts; `down` is of another kind.
  virtual void run_experts(const OpContext& ctx, const MoeExpertsArgs& args,
                           const CodedExperts& down) const = 0;
};

}  // namespace ladder
