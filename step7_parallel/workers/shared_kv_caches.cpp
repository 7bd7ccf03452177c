#include "step7_parallel/workers/shared_kv_caches.h"

#include <utility>

#include "step4_runner/kv_cache_piece.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

namespace {

class ModelWithCaches final : public Model {
 public:
  ModelWithCaches(std::unique_ptr<Model> model, std::vector<KvCacheView> caches)
      : model_(std::move(model)), caches_(std::move(caches)) {}

  const DecoderSpec& spec() const override { return model_->spec(); }
  DType dtype() const override { return model_->dtype(); }
  int64_t max_model_len() const override { return model_->max_model_len(); }
  std::vector<KvCacheSpec> kv_cache_specs() const override { return {}; }
  int64_t weight_bytes() const override { return model_->weight_bytes(); }
  Tensor forward(const OpContext& ctx, const ModelInput& input) override {
    ModelInput mine = input;
    mine.kv_caches = caches_;
    return model_->forward(ctx, mine);
  }
  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override {
    return model_->compute_logits(ctx, hidden);
  }

 private:
  const std::unique_ptr<Model> model_;
  const std::vector<KvCacheView> caches_;
};

}  // namespace

size_t shared_kv_bytes(const DecoderSpec& spec, const RunnerConfig& config, int stage) {
  const int64_t layers = layers_of(config, spec.num_layers, stage).size();
  return static_cast<size_t>(rank_kv_bytes_per_token(spec, config, stage) * slots_of_rank(config) *
                                 config.batch.num_kv_blocks +
                             layers * kMostTensorsOfALayer * kKvAlignment);
}

std::vector<KvCacheView> kv_caches_in(const std::shared_ptr<SharedMemory>& memory,
                                      std::span<const KvCacheSpec> specs, const RunnerConfig& config) {
  return kv_caches_in({memory, memory->data()}, static_cast<int64_t>(memory->size()), specs,
                      config.batch.num_kv_blocks, slots_of_rank(config), Device{});
}

std::unique_ptr<Model> with_kv_caches(std::unique_ptr<Model> model, std::vector<KvCacheView> caches) {
  return std::make_unique<ModelWithCaches>(std::move(model), std::move(caches));
}

}  // namespace ladder
