#include "step7_parallel/expert/gpu/gpu_expert_group.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step2_model/decoder/moe_mlp.h"

namespace ladder {

const GpuExpertExchange& GpuExpertGroup::exchange(const OpContext& ctx, const DecoderSpec& spec, DType dtype,
                                                  std::vector<int32_t> rank_of) {
  ExpertExchangeSizes sizes{.max_rows = max_rows_,
                            .hidden = spec.hidden_size,
                            .top_k = spec.experts.rule.top_k,
                            .dtype = dtype,
                            .rank_of = std::move(rank_of)};
  if (exchange_ == nullptr)
    exchange_ = std::make_unique<GpuExpertExchange>(ctx, *this, host_, std::move(sizes));
  else
    LADDER_CHECK(exchange_->sizes() == sizes,
                 "expert_exchange: the layers of a rank differ: {} and {} experts",
                 exchange_->sizes().rank_of.size(), sizes.rank_of.size());
  return *exchange_;
}

GpuExpertGroup* gpu_expert_group(const OpContext& ctx) {
  return dynamic_cast<GpuExpertGroup*>(&expert_group(ctx));
}

namespace {

class ModelWithSlots final : public Model {
 public:
  ModelWithSlots(GpuExpertGroup& group, std::unique_ptr<Model> model)
      : group_(group), model_(std::move(model)) {}

  const DecoderSpec& spec() const override { return model_->spec(); }
  DType dtype() const override { return model_->dtype(); }
  int64_t max_model_len() const override { return model_->max_model_len(); }
  std::vector<KvCacheSpec> kv_cache_specs() const override { return model_->kv_cache_specs(); }
  int64_t weight_bytes() const override { return model_->weight_bytes(); }
  Tensor forward(const OpContext& ctx, const ModelInput& input) override {
    group_.set_slots(input.attention.slot_mapping);
    return model_->forward(ctx, input);
  }
  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override {
    return model_->compute_logits(ctx, hidden);
  }

 private:
  GpuExpertGroup& group_;
  std::unique_ptr<Model> model_;
};

}  // namespace

std::unique_ptr<Model> with_slots_for(GpuExpertGroup& group, std::unique_ptr<Model> model) {
  return std::make_unique<ModelWithSlots>(group, std::move(model));
}

}  // namespace ladder
