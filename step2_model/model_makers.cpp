#include "step2_model/model_makers.h"

#include <fmt/format.h>

#include "step2_model/decoder/dense_mlp.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step2_model/decoder/plain_mlp.h"

namespace ladder {
namespace {

// One rank, whose cache holds every key.
class WholeAttention final : public Attention {
 public:
  explicit WholeAttention(const KvCacheSpec& cache) : cache_(cache) {}
  KvCacheSpec kv_cache_spec() const override { return cache_; }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
               double scale, const Tensor& out) const override {
    attention_with_store(ctx, args, metadata, scale, out);
  }

 private:
  KvCacheSpec cache_;
};

}  // namespace

LinearOptions make_linear_options(const ModelMakers& makers, const std::string& name, const DecoderSpec& spec,
                                  DType dtype, bool bias) {
  return {dtype, bias, makers.linear_method ? makers.linear_method(name, spec.quantization_config) : nullptr};
}

std::unique_ptr<Attention> make_attention(const ModelMakers& makers, const OpContext& ctx, int64_t layer,
                                          const KvCacheSpec& cache) {
  if (makers.attention) return makers.attention(ctx, layer, cache);
  return std::make_unique<WholeAttention>(cache);
}

std::unique_ptr<Mlp> make_mlp(const ModelMakers& makers, const OpContext& ctx, int64_t layer,
                              const DecoderSpec& spec, DType dtype) {
  if (makers.mlp) return makers.mlp(ctx, layer, spec, dtype, makers);
  const std::string name = fmt::format("layers.{}", layer);
  if (spec.has_experts(layer)) return std::make_unique<MoeMlp>(ctx, name, spec, dtype, makers);
  if (!spec.gated_mlp) return std::make_unique<PlainMlp>(ctx, name, spec, dtype, makers);
  return std::make_unique<DenseMlp>(ctx, name, spec, dtype, makers);
}

}  // namespace ladder
