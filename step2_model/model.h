#pragma once
// Task 2.4: the model as the runner sees it.
//
// forward() takes the flattened rows of one step (no padding, any mix of sequences) and returns their hidden
// states; compute_logits() multiplies the rows that need logits by the LM head. A Model is one rank's shard
// and runs the layer range it was made with: a later step's pipeline passes hidden states from one range to
// the next.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "step1_layers/attention/kv_cache.h"
#include "step1_layers/core/context.h"
#include "step1_layers/core/tensor.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/model_makers.h"

namespace ladder {

enum class LoadFormat : uint8_t { automatic, dummy };  // dummy: random weights, config.json is enough

struct ModelOptions {
  DType dtype = DType::f32;
  LoadFormat load_format = LoadFormat::automatic;
  int64_t max_model_len = 0;  // length of the rotary table; 0: max_position_embeddings
  int64_t layer_begin = 0;    // this model runs layers [layer_begin, layer_end)
  int64_t layer_end = -1;     // -1: to the last
  std::function<void(int64_t done, int64_t total)>
      progress;        // bytes loaded, for a progress bar; may be empty
  ModelMakers makers;  // other parts for the decoder's layers; empty: this project's own
};

struct ModelInput {
  Tensor input_ids;  // [num_tokens] i32; unused by a range that does not begin at layer 0
  Tensor positions;  // [num_tokens] i32
  Tensor hidden;     // [num_tokens, hidden_size]: what the range before returned; undefined at layer 0
  AttentionMetadata attention;
  // attention.query_start_loc where the host reads it; undefined in a step that is captured for a graph, in which every
  // sequence has one row.
  Tensor host_query_start_loc;
  std::span<const KvCacheView> kv_caches;  // one per layer of the range
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const DecoderSpec& spec() const = 0;
  virtual DType dtype() const = 0;
  virtual int64_t max_model_len() const = 0;
  virtual std::vector<KvCacheSpec> kv_cache_specs() const = 0;  // this rank's, one per layer of the range
  virtual int64_t weight_bytes() const = 0;                     // this rank's memory for weights and tables

  // Hidden states [num_tokens, hidden_size] in the arena; after the last layer they are normalised. The
  // caller's ArenaScope bounds their life.
  virtual Tensor forward(const OpContext& ctx, const ModelInput& input) = 0;
  // logits [rows, vocab_size] f32 in the arena for hidden rows [rows, hidden_size], on the first tensor-parallel rank;
  // undefined on the others, which take part.
  virtual Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) = 0;
};

// Reads DIR/config.json (and generation_config.json, whose end tokens replace config.json's). Error: missing
// or malformed files, unknown architectures, values that make no sense, keys that change the mathematics and
// are not implemented.
DecoderSpec load_decoder_spec(const std::filesystem::path& directory);

// Loads this rank's shard (ctx.parallel->tp) of DIR's safetensors, or makes dummy weights. Error: lists
// tensors that are missing or unexpected, or have another shape than the config says; names a
// quantization_config for which options.makers has no linear method.
std::unique_ptr<Model> load_model(const OpContext& ctx, const std::filesystem::path& directory,
                                  const DecoderSpec& spec, const ModelOptions& options);

}  // namespace ladder
