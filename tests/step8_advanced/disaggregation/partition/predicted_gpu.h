#pragma once
// A GPU whose steps take what the border's own model says, and an 8B model of which nothing is there but its shape.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "step8_advanced/disaggregation/partition/sm_lanes.h"
#include "step8_advanced/disaggregation/partition/sm_lanes_maker.h"

namespace ladder::testing {

class Shape8B final : public Model {
 public:
  Shape8B() {
    spec_.num_layers = 32;
    spec_.num_heads = 32;
    spec_.num_kv_heads = 8;
    spec_.head_dim = 128;
  }
  const DecoderSpec& spec() const override { return spec_; }
  DType dtype() const override { return DType::bf16; }
  int64_t max_model_len() const override { return 8192; }
  std::vector<KvCacheSpec> kv_cache_specs() const override {
    return std::vector<KvCacheSpec>(32,
                                    {.dtype = DType::bf16, .num_kv_heads = 8, .k_dim = 128, .v_dim = 128});
  }
  int64_t weight_bytes() const override { return 16'000'000'000; }
  Tensor forward(const OpContext&, const ModelInput&) override { return {}; }
  Tensor compute_logits(const OpContext&, const Tensor&) override { return {}; }

 private:
  DecoderSpec spec_;
};

// 132 multiprocessors and the places that they have, with empty contexts.
inline SharedGpu gpu_without_contexts() {
  SharedGpu gpu;
  gpu.num_multiprocessors = 132;
  for (const int sms : decode_shares(132)) gpu.places.push_back({sms, 132 - sms});
  gpu.prefill.at_place.resize(gpu.places.size());
  gpu.decode.at_place.resize(gpu.places.size());
  return gpu;
}

// Measured steps take what the rates say.
inline void calibrate(SmLanes& lanes, const SmRates& rates) {
  const Shape8B model;
  const ModelNeeds needs = needs_of_model(model);
  RunnerConfig config;
  config.batch.max_num_seqs = 64;
  config.batch.max_num_batched_tokens = 4096;
  config.batch.max_model_len = 8192;
  const auto places = gpu_without_contexts().places;
  lanes.calibrate(model, config,
                  [&](StepPhase phase, size_t context, int64_t num_seqs, int64_t num_tokens, int64_t before) {
                    StepNeeds step;
                    for (int64_t i = 0; i < num_seqs; ++i)
                      add_rows(step, needs, num_tokens / num_seqs, before);
                    const SmPlace place = context == 0 ? SmPlace{132, 132} : places[context - 1];
                    return phase == StepPhase::decode
                               ? predict_steps(rates, step, place.decode_sms, {}, 0).decode
                               : predict_steps(rates, {}, 0, step, place.prefill_sms).prefill;
                  });
}

}  // namespace ladder::testing
