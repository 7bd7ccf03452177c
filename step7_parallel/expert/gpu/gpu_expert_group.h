#pragma once
// A GPU's rank among those that share out a layer's experts with it over replicas (7.9): their communicator, and what the
// layers of a rank have in common for their exchanges.
//
//   exchange   the memory of one exchange serves all layers, one after the other
//   slots      of the step's rows: those without one only fill up, and no expert is asked for them
//
// Slots are read on the device when the exchange runs, so a captured graph reads those of each step.
#include <memory>

#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/model.h"
#include "step7_parallel/expert/gpu/gpu_expert_exchange.h"

namespace ladder {

class GpuExpertGroup final : public GpuCommunicator {
 public:
  // As GpuCommunicator. max_rows: tokens that a rank brings to an exchange, at most; the same on all ranks.
  GpuExpertGroup(const OpContext& ctx, Communicator& host, int64_t max_rows)
      : GpuCommunicator(ctx, host), host_(host), max_rows_(max_rows) {}

  // Of layers of this shape with their experts on `rank_of`, as in ExpertExchangeSizes. By all ranks at once: the first layer makes
  // it, and the others get the same. Error: as GpuExpertExchange; another layer has other sizes.
  const GpuExpertExchange& exchange(const OpContext& ctx, const DecoderSpec& spec, DType dtype,
                                    std::vector<int32_t> rank_of);

  // Of the next forward pass: [rows] i64.
  void set_slots(const Tensor& slots) { slots_ = slots; }
  const Tensor& slots() const { return slots_; }

 private:
  Communicator& host_;
  int64_t max_rows_;
  std::unique_ptr<GpuExpertExchange> exchange_;
  Tensor slots_;
};

// expert_group() where it is one of GPUs whose replicas share out experts; else nullptr.
GpuExpertGroup* gpu_expert_group(const OpContext& ctx);

// The model of a rank of that group, which tells it the slots of each step.
std::unique_ptr<Model> with_slots_for(GpuExpertGroup& group, std::unique_ptr<Model> model);

}  // namespace ladder
