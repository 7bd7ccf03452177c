#include "step7_parallel/workers/shared_kv_caches.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step4_runner/kv_cache_size.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

namespace {

constexpr size_t kAlignment = 64;   // as of every tensor
constexpr size_t kMostTensors = 4;  // of a layer: keys, values, and the scales of both

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
  const size_t layers = static_cast<size_t>(layers_of(config, spec.num_layers, stage).size());
  return static_cast<size_t>(rank_kv_bytes_per_token(spec, config, stage) * slots_of_rank(config) *
                             config.batch.num_kv_blocks) +
         layers * kMostTensors * kAlignment;
}

std::vector<KvCacheView> kv_caches_in(const std::shared_ptr<SharedMemory>& memory,
                                      std::span<const KvCacheSpec> specs, const RunnerConfig& config) {
  size_t used = 0;
  const auto move_in = [&](Tensor& of_one_block) {
    if (!of_one_block.defined()) return;
    Shape shape = of_one_block.shape();
    shape[0] = config.batch.num_kv_blocks;
    const size_t size = static_cast<size_t>(shape.numel() * dtype_size(of_one_block.dtype()));
    LADDER_CHECK(size <= memory->size() - used,
                 "shared keys and values: a layer's {} of {} bytes do not fit into the {} that are left",
                 of_one_block.str(), size, memory->size() - used);
    of_one_block = Tensor::wrap(memory->data() + used, shape, of_one_block.dtype(), Device{}, memory);
    used = std::min(memory->size(), (used + size + kAlignment - 1) / kAlignment * kAlignment);
  };
  std::vector<KvCacheView> caches = allocate_kv_caches(specs, 1, slots_of_rank(config), Device{});
  for (KvCacheView& cache : caches)
    for (Tensor* tensor : {&cache.k, &cache.v, &cache.k_scales, &cache.v_scales}) move_in(*tensor);
  return caches;
}

std::unique_ptr<Model> with_kv_caches(std::unique_ptr<Model> model, std::vector<KvCacheView> caches) {
  return std::make_unique<ModelWithCaches>(std::move(model), std::move(caches));
}

}  // namespace ladder
