#pragma once
// Task 8.5: what is to be done to a model: FILE.json, or the flags --scheme and --method.
//
//   {"stages": [
//     {"method": "rtn", "scheme": "W8A16", "targets": ["re:.*down_proj"]},
//     {"method": "gptq", "scheme": {"weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 64}},
//      "ignore": ["re:.*down_proj"], "actorder": "weight", "damping": 0.01}]}
//
//   method        rtn, gptq, awq: they round;
//                 magnitude, wanda, sparsegpt: two of every four neighbours become 0 (algorithms/sparse.h). What is pruned may be
//                 rounded by a later stage, which leaves the zeros; else it is kept dense, in the checkpoint's dtype;
//                 smoothquant, which goes before a stage that rounds
//   scheme        a name of compressed-tensors (W4A16, FP8_DYNAMIC, ...), or a config group of its: weights, input_activations;
//                 of methods that round, and of sparsegpt, which then prunes and rounds in one loop
//   targets       ["Linear"]: every linear of the decoder layers. Names as checkpoints have them ("model.layers.0.mlp.up_proj"),
//                 or "re:" and a pattern that matches from the name's beginning on. "lm_head", or a pattern that names it, is the
//                 head, by rtn without scales of inputs that calibration finds; a tied one gets a table of its own
//   ignore        [], the same; embedding and routers are never rounded
//   gptq          actorder ("weight"; "group", "none"), damping (0.01), block_size (128), clipped_grids (false)
//   sparsegpt     damping, block_size; with a scheme actorder ("weight"; "none") and clipped_grids, as gptq
//   smoothquant   smoothing_strength (0.5); of its targets those count whose input a norm gives: q, k, v, gate, up, fc1
//
// Beside the stages "kv_cache_scheme", compressed-tensors' arguments of 8 bits: each layer gets the scales k_scale and v_scale, for
// engines whose cache has one scale a layer (strategy "tensor") or a head ("attn_head"). This one's cache does not use them.
// And, experimental, "rotation": {"kind": "hadamard", "seed": 1}: what passes from layer to layer is rotated first (rotate_model.h), for
// stages that round inputs to four bits.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step8_advanced/quantization/stored_linear.h"

namespace ladder {

enum class QuantizationMethod : uint8_t { rtn, gptq, awq, smoothquant, magnitude, wanda, sparsegpt };
std::string_view method_name(QuantizationMethod method);

struct RecipeStage {
  std::string where;  // "FILE.json: stages[1]", for messages
  QuantizationMethod method = QuantizationMethod::rtn;
  std::string scheme_name;             // as the recipe has it, for people
  std::optional<StoredLinear> linear;  // none: nothing is rounded
  DType dense_dtype = DType::bf16;     // of weights that are pruned alone: the checkpoint's
  std::vector<std::string> targets = {"Linear"}, ignore;
  // gptq, sparsegpt
  ActivationOrder actorder = ActivationOrder::weight;
  double damping = 0.01;
  int64_t block_size = 128;
  bool clipped_grids = false;
  // smoothquant
  double smoothing_strength = 0.5;

  bool rounds() const { return linear.has_value(); }
  bool smooths() const { return method == QuantizationMethod::smoothquant; }
  bool prunes() const;
  // Whether it looks at what goes through the layers.
  bool needs_calibration() const;
};

struct Recipe {
  std::vector<RecipeStage> stages;
  std::optional<StoredKvCache> kv_cache;  // whose scales are found
  std::optional<uint64_t> rotation;       // its seed
  std::string text;                       // as JSON, for the report

  bool needs_calibration() const;
};

// `checkpoint_dtype`: what the scales are kept in, where the format has a choice. Error, beginning with `what`: a key, method,
// scheme or order that is not known, no stage that rounds or prunes, options of another method.
Recipe parse_recipe(std::string_view json, std::string_view what, DType checkpoint_dtype);
// One stage for all linears, as the flags say it.
Recipe recipe_of(std::string_view scheme, std::string_view method, DType checkpoint_dtype);

// Of a layer's experts all gates and ups are parts of one linear, "layers.0.experts.gate_up", and all downs of another: how many of
// its parts are one expert's. 0: a linear of something else.
int parts_per_expert(std::string_view linear);

// Which of its layer's two norms gives a linear's input where norms stand in front: 0 attention's, 1 the MLP's; -1: neither.
int norm_before(std::string_view linear);

// A linear of a decoder layer, as the checkpoint has it; one part of a merged one.
struct CheckpointLinear {
  std::string name;    // "model.layers.0.self_attn.q_proj"
  std::string linear;  // "layers.0.qkv_proj", whose part it is
  int part = 0;
  int64_t layer = 0;
  int64_t expert = -1;  // whose it is, by its number in the layer; -1: no expert's
  int64_t n = 0, k = 0;
  bool reads_norm = false;  // smoothquant moves factors between a norm and what reads it
  bool is_router = false;   // it weighs experts, a shared one too: never rounded, whatever names it
  bool is_head =
      false;       // "lm_head", whose layer is the one behind the last; a target names it, "Linear" does not
  int stage = -1;  // of the recipe, that rounds it; -1: none
  int smooth_stage = -1;  // that smooths it
  int prune_stage = -1;   // that prunes it; equal to `stage`: in one loop

  bool is_rounded() const { return stage >= 0; }
  bool is_changed() const { return stage >= 0 || prune_stage >= 0; }
};

// What is done to a linear's weight; nullptr: not that.
struct LinearStages {
  const RecipeStage* prune = nullptr;
  const RecipeStage* round = nullptr;
};
LinearStages stages_of(const Recipe& recipe, const CheckpointLinear& linear);

// All linears of the model's layers, those of one layer together and in the order of their part in the layer's, and the head behind
// them. Error: the checkpoint is quantized already, or has a bare
// model's names, without "model.".
std::vector<CheckpointLinear> find_linears(const Checkpoint& checkpoint, const DecoderSpec& spec);

// The checkpoint's tensor that a linear multiplies by: "<name>.weight", or the embedding's of a head that is tied to it.
std::string weight_name(const CheckpointLinear& linear, const DecoderSpec& spec);

// Sets `stage`, `smooth_stage` and `prune_stage`. Error, naming stage, pattern or linear: a target or an entry of `ignore` that names none
// of the linears (of smoothquant's targets: none that reads a norm), a stage without one, a linear that two stages round or prune, that is
// pruned after it was rounded, or smoothed and not rounded, parts of one merged linear (q, k, v; all experts' gates and ups) that differ,
// experts with act-order `group` (each has an order of its own, and the parts share one), a head with a method that looks at its inputs, a
// group that does not divide k, fours that do not divide k or a group.
void assign_stages(const Recipe& recipe, std::span<CheckpointLinear> linears);

}  // namespace ladder
