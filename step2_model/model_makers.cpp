#include "step2_model/model_makers.h"

#include <fmt/format.h>

#include "step1_layers/attention/attention_with_store.h"
#include "step2_model/decoder/dense_mlp.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step2_model/decoder/plain_mlp.h"
#include "step2_model/families/family.h"

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

// How checkpoints call the parts of a linear.
std::vector<std::string> part_names_of(const ModelFamily& family, const std::string& linear,
                                       int64_t max_parts) {
  if (linear == "lm_head") return {linear};        // the one that checkpoints call as it is called here
  constexpr std::string_view kWeight = ".weight";  // any of its parameters tells
  const std::string parameter = linear + std::string(kWeight);
  std::vector<std::string> names;
  while (std::ssize(names) < max_parts) {
    std::string name = checkpoint_name_of(family, parameter, static_cast<int>(names.size()));
    if (name == parameter) break;
    name.resize(name.size() - kWeight.size());
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

LinearOptions make_linear_options(const ModelMakers& makers, const OpContext& ctx, const std::string& name,
                                  const DecoderSpec& spec, DType dtype, bool bias, int64_t max_parts) {
  if (!makers.linear_method) return {dtype, bias};
  const NamedLinear linear{name, part_names_of(family_of(spec.architecture), name, max_parts), spec};
  return {dtype, bias, makers.linear_method(ctx, linear)};
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
