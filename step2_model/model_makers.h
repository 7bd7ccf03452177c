#pragma once
// The parts of a decoder layer that a program may exchange.
//
// The decoder asks a maker for the linear method of every linear, for every layer's attention and for its MLP.
// An empty maker gives the part that this project has below step 2: dense weights, attention of one rank over
// its whole cache, gate / up / down, fc1 / fc2 or experts. A quantized format, attention over several ranks or experts on several
// ranks is a maker that the program fills in, so that no step names a later one.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/core/parameter.h"
#include "step1_layers/linear/linear.h"
#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

class Model;            // model.h
struct Norm;            // decoder/norm.h
struct ResidualStream;  // decoder/composites.h

// One layer's attention, between the qkv projection and the output projection, on this rank.
class Attention {
 public:
  virtual ~Attention() = default;
  // What the layer keeps per token; the cache that forward() gets has this shape.
  virtual KvCacheSpec kv_cache_spec() const = 0;
  // As attention_with_store: q and k normed and rotated, k and v stored, out [tokens, heads, head_dim].
  virtual void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args,
                       const AttentionMetadata& metadata, double scale, const Tensor& out) const = 0;
};

// The second half of a layer, its norm included: stream += mlp(norm(stream)); a norm without weight is none (composites.h).
class Mlp {
 public:
  virtual ~Mlp() = default;
  // Filled once each, then process_after_load. The pointers live as long as the MLP.
  virtual std::vector<Parameter*> parameters() = 0;
  virtual void process_after_load(const OpContext& ctx) = 0;
  virtual void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const = 0;
};

// A linear that a method is wanted for.
struct NamedLinear {
  // "layers.3.qkv_proj": its parameters are named below it, and a checkpoint tensor
  // "model.layers.3.self_attn.q_proj.scales" fills part 0 of "layers.3.qkv_proj.scales".
  std::string name;
  std::vector<std::string>
      part_names;           // as checkpoints call its parts: "model.layers.3.self_attn.q_proj", ...
  const DecoderSpec& spec;  // with the model's quantization_config, empty where there is none
};

struct ModelMakers {
  // nullptr: dense.
  std::function<std::shared_ptr<const LinearMethod>(const OpContext& ctx, const NamedLinear& linear)>
      linear_method;
  KvCacheDType kv_cache_dtype = KvCacheDType::automatic;  // in what every layer keeps its keys and values
  // `cache` is what one rank with these heads keeps by default.
  std::function<std::unique_ptr<Attention>(const OpContext& ctx, int64_t layer, const KvCacheSpec& cache)>
      attention;
  // Parameters are named below "layers.<layer>".
  std::function<std::unique_ptr<Mlp>(const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                     DType dtype, const ModelMakers& makers)>
      mlp;
  // The model that the runner gets, around the decoder: one that computes a part of the rows, for one. Empty: the decoder.
  std::function<std::unique_ptr<Model>(std::unique_ptr<Model> decoder)> around_decoder;
};

// The makers' answers, or the defaults. `max_parts`: of a linear of all experts, whose number no table of names says.
LinearOptions make_linear_options(const ModelMakers& makers, const OpContext& ctx, const std::string& name,
                                  const DecoderSpec& spec, DType dtype, bool bias,
                                  int64_t max_parts = std::numeric_limits<int64_t>::max());
std::unique_ptr<Attention> make_attention(const ModelMakers& makers, const OpContext& ctx, int64_t layer,
                                          const KvCacheSpec& cache);
std::unique_ptr<Mlp> make_mlp(const ModelMakers& makers, const OpContext& ctx, int64_t layer,
                              const DecoderSpec& spec, DType dtype);

}  // namespace ladder
