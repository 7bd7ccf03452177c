#include "step8_advanced/quantization/quantizer/recipe.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "step1_layers/core/error.h"
#include "step2_model/config/config_file.h"
#include "step2_model/families/family.h"
#include "step8_advanced/quantization/config/presets.h"
#include "step8_advanced/quantization/config/quantization_config.h"

namespace ladder {
namespace {

constexpr std::string_view kMethods[] = {"rtn",       "gptq",  "awq",      "smoothquant",
                                         "magnitude", "wanda", "sparsegpt"};

QuantizationMethod parse_method(const std::string& name, const std::string& where) {
  for (size_t i = 0; i < std::size(kMethods); ++i)
    if (name == kMethods[i]) return static_cast<QuantizationMethod>(i);
  fail("{}: method {}: expected one of {}", where, json_brief(Json(name)), fmt::join(kMethods, ", "));
}

ActivationOrder parse_order(const std::string& name, const std::string& where) {
  if (name == "none") return ActivationOrder::none;
  if (name == "group") return ActivationOrder::group;
  LADDER_CHECK(name == "weight", "{}: actorder {}: expected weight, group or none", where,
               json_brief(Json(name)));
  return ActivationOrder::weight;
}

const char* format_that_reads(const Json& group) {
  const Json weights = group.value("weights", Json::object());
  if (!weights.is_object()) return "int-quantized";
  const bool is_float = weights.value("type", Json("int")) == "float";
  const bool four = weights.value("num_bits", Json(8)) == 4;
  if (!is_float) return group.contains("input_activations") ? "int-quantized" : "pack-quantized";
  if (!four) return weights.value("group_size", Json()) == 32 ? "mxfp8-quantized" : "float-quantized";
  return weights.value("group_size", Json()) == 32 ? "mxfp4-pack-quantized" : "nvfp4-pack-quantized";
}

// compressed-tensors' object of one group; its reader is the one for schemes.
StoredLinear parse_scheme(const Json& scheme, const std::string& where) {
  if (scheme.is_string()) {
    const std::string& name = json_string(scheme, where);
    LADDER_CHECK(is_preset(name), "{}: {}: expected one of {}", where, json_brief(scheme),
                 fmt::join(preset_names(), ", "));
    return stored_linear(preset_scheme(name), where);
  }
  LADDER_CHECK(scheme.is_object(), "{}: expected a scheme's name or an object, found {}", where,
               json_brief(scheme));
  Json group = scheme;
  LADDER_CHECK(!group.contains("targets"), "{}: targets stand beside the scheme, not in it", where);
  if (const Json weights = group.value("weights", Json::object()); weights.is_object())
    LADDER_CHECK(weights.value("actorder", Json()).is_null(),
                 "{}: actorder stands beside the scheme, not in it", where);
  group["targets"] = {"Linear"};
  // Any that its reader takes: how the scheme is stored follows from it, below.
  if (!group.contains("format")) group["format"] = format_that_reads(group);
  const Json config = {{"quant_method", "compressed-tensors"}, {"config_groups", {{"group_0", group}}}};
  const StoredLinear read = QuantizationConfig::parse(config.dump(), where).groups().at(0).linear;
  LADDER_CHECK(read.format != StoredFormat::dense, "{}: weights: missing", where);
  return stored_linear(read.scheme, where);
}

// Scales as the model has its numbers, unless the format says how they are kept.
void keep_scales_in(StoredLinear& linear, DType dtype) {
  if (linear.format != StoredFormat::plain && linear.format != StoredFormat::packed) return;
  linear.stored_scales = linear.scheme.weights.scale_format = dtype == DType::bf16  ? ScaleFormat::bf16
                                                              : dtype == DType::f16 ? ScaleFormat::f16
                                                                                    : ScaleFormat::f32;
}

std::vector<std::string> patterns_of(const ConfigObject& stage, const std::string& key,
                                     std::vector<std::string> default_value) {
  const Json* list = stage.find(key);
  if (list == nullptr) return default_value;
  LADDER_CHECK(list->is_array(), "{}: expected a list of names and patterns, found {}", stage.name(key),
               json_brief(*list));
  std::vector<std::string> patterns;
  for (const Json& entry : *list) patterns.push_back(json_string(entry, stage.name(key)));
  return patterns;
}

std::vector<std::string> known_keys(QuantizationMethod method, bool has_scheme) {
  std::vector<std::string> known = {"method", "targets", "ignore"};
  switch (method) {
    case QuantizationMethod::smoothquant:
      known.push_back("smoothing_strength");
      break;
    case QuantizationMethod::magnitude:
    case QuantizationMethod::wanda:
      break;
    case QuantizationMethod::sparsegpt:
      known.insert(known.end(), {"scheme", "damping", "block_size"});
      if (has_scheme) known.insert(known.end(), {"actorder", "clipped_grids"});
      break;
    case QuantizationMethod::gptq:
      known.insert(known.end(), {"scheme", "actorder", "damping", "block_size", "clipped_grids"});
      break;
    case QuantizationMethod::rtn:
    case QuantizationMethod::awq:
      known.push_back("scheme");
      break;
  }
  return known;
}

// How the stage's linears are stored.
void read_scheme(RecipeStage& stage, const Json& scheme, const std::string& what) {
  stage.scheme_name = scheme.is_string() ? scheme.get<std::string>() : scheme.dump();
  stage.linear = parse_scheme(scheme, what);
  keep_scales_in(*stage.linear, stage.dense_dtype);
  QuantizationArgs& weights = stage.linear->scheme.weights;
  // Only groups have an order on disk; for other grids it is the algorithm's affair alone.
  const bool ordered = (stage.method == QuantizationMethod::gptq || stage.prunes()) &&
                       weights.strategy == ScaleStrategy::group;
  LADDER_CHECK(stage.actorder != ActivationOrder::group ||
                   (stage.linear->format == StoredFormat::packed && weights.strategy == ScaleStrategy::group),
               "{}: actorder group: expected a scheme of packed integers in groups", stage.where);
  LADDER_CHECK(stage.actorder != ActivationOrder::group || !stage.prunes(),
               "{}: actorder group: fours of neighbours stay together, expected weight or none", stage.where);
  weights.actorder =
      ordered && stage.linear->format == StoredFormat::packed ? stage.actorder : ActivationOrder::none;
  LADDER_CHECK(stage.method != QuantizationMethod::awq || weights.strategy == ScaleStrategy::group ||
                   weights.strategy == ScaleStrategy::channel,
               "{}: awq: expected a scheme with a scale per group or channel", stage.where);
  const auto& activations = stage.linear->scheme.input_activations;
  LADDER_CHECK(!activations || activations->scale_format != ScaleFormat::e4m3,
               "{}: activations with NVFP4's scales: expected NVFP4A16, weights alone", stage.where);
}

RecipeStage parse_stage(const Json& json, const std::string& where, DType checkpoint_dtype) {
  const ConfigObject object(json, where);
  RecipeStage stage;
  stage.where = where;
  stage.dense_dtype = checkpoint_dtype;
  const auto method = object.string("method");
  LADDER_CHECK(method.has_value(), "{}: expected a method, one of {}", where, fmt::join(kMethods, ", "));
  stage.method = parse_method(*method, where);
  const Json* scheme = object.find("scheme");
  const std::vector<std::string> known = known_keys(stage.method, scheme != nullptr);
  for (const auto& [key, value] : json.items())
    LADDER_CHECK(std::find(known.begin(), known.end(), key) != known.end(), "{}: {}: not known; {} has {}",
                 where, json_brief(Json(key)), *method, fmt::join(known, ", "));
  stage.targets = patterns_of(object, "targets", {"Linear"});
  stage.ignore = patterns_of(object, "ignore", {});
  LADDER_CHECK(!stage.targets.empty(), "{}: targets: expected at least one", where);
  stage.actorder = parse_order(object.string("actorder").value_or("weight"), where);
  stage.damping = object.number("damping", stage.damping);
  stage.block_size = object.integer("block_size", 1, 1 << 20, stage.block_size);
  stage.clipped_grids = object.boolean("clipped_grids", false);
  stage.smoothing_strength = object.number("smoothing_strength", stage.smoothing_strength);
  LADDER_CHECK(stage.damping > 0 && stage.damping <= 1, "{}: damping {}: expected above 0, at most 1", where,
               stage.damping);
  LADDER_CHECK(stage.smoothing_strength >= 0 && stage.smoothing_strength <= 1,
               "{}: smoothing_strength {}: expected 0 to 1", where, stage.smoothing_strength);
  LADDER_CHECK(scheme != nullptr || stage.smooths() || stage.prunes(), "{}: expected a scheme", where);
  if (scheme != nullptr) read_scheme(stage, *scheme, object.name("scheme"));
  return stage;
}

// Whether a target or an entry of `ignore` names a linear: the reader of quantization_config decides, as it will when the
// result is loaded.
class NamePattern {
 public:
  NamePattern(const std::string& pattern, const std::string& where)
      : config_(QuantizationConfig::parse(
            Json({{"quant_method", "compressed-tensors"},
                  {"config_groups", {{"W4A16", std::vector<std::string>{pattern}}}}})
                .dump(),
            where)) {}
  bool names(const std::string& linear) const { return config_.linear(std::span(&linear, 1)).has_value(); }

 private:
  QuantizationConfig config_;
};

// Which linears one of the patterns names; of smoothquant's targets those that read a norm. Error: a pattern that names none, or, of
// targets, none but routers.
std::vector<bool> named_by(const std::vector<std::string>& patterns, bool targets, const RecipeStage& stage,
                           std::span<const CheckpointLinear> linears) {
  const char* list = targets ? "target" : "ignore";
  const bool of_norms = targets && stage.smooths();
  std::vector<bool> named(linears.size());
  for (const std::string& pattern : patterns) {
    const NamePattern one(pattern, fmt::format("{}: {}", stage.where, list));
    bool any = false;
    for (size_t i = 0; i < linears.size(); ++i)
      if (!(targets && linears[i].is_router) && !(linears[i].is_head && pattern == "Linear") &&
          !(of_norms && !linears[i].reads_norm) && one.names(linears[i].name))
        named[i] = any = true;
    LADDER_CHECK(any || !of_norms,
                 "{}: {} {}: it names no linear that reads a norm, and smoothquant changes no other",
                 stage.where, list, json_brief(Json(pattern)));
    LADDER_CHECK(any, "{}: {} {}: it names none of the {} linears; they are called as {} is", stage.where,
                 list, json_brief(Json(pattern)), linears.size(), linears.empty() ? "" : linears[0].name);
  }
  return named;
}

// Calibration looks at what goes through the layers, and ends before the head.
void check_head(const RecipeStage& stage) {
  LADDER_CHECK(stage.method == QuantizationMethod::rtn && !stage.needs_calibration(),
               "{}: lm_head by {}{}: expected rtn without such scales, or lm_head in ignore", stage.where,
               method_name(stage.method),
               stage.method == QuantizationMethod::rtn ? " with a scale of its inputs" : "");
}

void check_shape(const RecipeStage& stage, const CheckpointLinear& linear) {
  if (linear.is_head) check_head(stage);
  LADDER_CHECK(linear.expert < 0 || stage.actorder != ActivationOrder::group,
               "{}: actorder group: each expert has an order of its own ({}), expected weight or none",
               stage.where, linear.name);
  if (stage.prunes())
    LADDER_CHECK(linear.k % 4 == 0, "{}: {} has {} columns; two of every four need a multiple of 4",
                 stage.where, linear.name, linear.k);
  if (!stage.rounds()) return;
  const QuantizationArgs& weights = stage.linear->scheme.weights;
  LADDER_CHECK(weights.strategy != ScaleStrategy::group || linear.k % weights.group_size == 0,
               "{}: groups of {} do not divide the {} columns of {}", stage.where, weights.group_size,
               linear.k, linear.name);
  LADDER_CHECK(!weights.is_float || weights.num_bits != 4 || linear.k % 2 == 0,
               "{}: {} has {} columns, expected an even number", stage.where, linear.name, linear.k);
  LADDER_CHECK(!stage.prunes() || weights.strategy != ScaleStrategy::group || weights.group_size % 4 == 0,
               "{}: groups of {}; two of every four need a multiple of 4", stage.where, weights.group_size);
  const auto& x = stage.linear->scheme.input_activations;
  LADDER_CHECK(!x || x->strategy != ScaleStrategy::group || linear.k % x->group_size == 0,
               "{}: activations in groups of {} do not divide the {} columns of {}", stage.where,
               x->group_size, linear.k, linear.name);
}

void read_kv_cache_scheme(Recipe& recipe, const Json& scheme, const std::string& what) {
  recipe.kv_cache = parse_kv_cache_scheme(scheme, what);
  LADDER_CHECK(!recipe.kv_cache->args.dynamic, "{}: dynamic: no scale is stored then, expected false", what);
  LADDER_CHECK(recipe.kv_cache->args.num_bits == 8, "{}: num_bits: expected 8, found {}", what,
               recipe.kv_cache->args.num_bits);
  // config.json says it in the quantization_config, which weights that are pruned alone do not have.
  LADDER_CHECK(
      std::any_of(recipe.stages.begin(), recipe.stages.end(), [](const auto& one) { return one.rounds(); }),
      "{}: no stage rounds weights: expected one", what);
}

// Its seed.
uint64_t read_rotation(const Json& rotation, const std::string& where) {
  LADDER_CHECK(rotation.is_object(), "{}: expected an object, found {}", where, json_brief(rotation));
  const ConfigObject object(rotation, where);
  for (const auto& [key, value] : rotation.items())
    LADDER_CHECK(key == "kind" || key == "seed", "{}: {}: not known; a rotation has \"kind\" and \"seed\"",
                 where, json_brief(Json(key)));
  const std::string kind = object.string("kind").value_or("");
  LADDER_CHECK(kind == "hadamard", "{}: expected hadamard, found {}", object.name("kind"),
               json_brief(Json(kind)));
  return static_cast<uint64_t>(object.integer("seed", 0, int64_t{1} << 32, 1));
}

}  // namespace

std::string_view method_name(QuantizationMethod method) {
  return kMethods[static_cast<size_t>(method)];
}

bool RecipeStage::prunes() const {
  return method == QuantizationMethod::magnitude || method == QuantizationMethod::wanda ||
         method == QuantizationMethod::sparsegpt;
}

bool RecipeStage::needs_calibration() const {
  if (method == QuantizationMethod::magnitude) return false;
  if (method != QuantizationMethod::rtn) return true;
  const auto& activations = linear->scheme.input_activations;
  return activations && !activations->dynamic;
}

bool Recipe::needs_calibration() const {
  return kv_cache || std::any_of(stages.begin(), stages.end(),
                                 [](const RecipeStage& stage) { return stage.needs_calibration(); });
}

Recipe parse_recipe(std::string_view json, std::string_view what, DType checkpoint_dtype) {
  const Json root = parse_json(json, what);
  const std::string where(what);
  LADDER_CHECK(root.is_object(), "{}: expected an object, found {}", where, json_brief(root));
  for (const auto& [key, value] : root.items())
    LADDER_CHECK(key == "stages" || key == "kv_cache_scheme" || key == "rotation",
                 "{}: {}: not known; a recipe has \"stages\", \"kv_cache_scheme\" and \"rotation\"", where,
                 json_brief(Json(key)));
  const Json& stages = json_at(root, "stages", where);
  LADDER_CHECK(stages.is_array() && !stages.empty(), "{}: stages: expected a list of at least one", where);
  Recipe recipe;
  recipe.text = root.dump();
  bool changes = false;
  for (size_t i = 0; i < stages.size(); ++i) {
    recipe.stages.push_back(
        parse_stage(stages[i], fmt::format("{}: stages[{}]", where, i), checkpoint_dtype));
    const bool smooths = recipe.stages.back().smooths();
    LADDER_CHECK(!smooths || !changes,
                 "{}: stages[{}]: smoothquant after a stage that rounds or prunes: expected it before", where,
                 i);
    changes = changes || !smooths;
  }
  LADDER_CHECK(changes, "{}: no stage rounds or prunes anything: expected one", where);
  if (const auto scheme = root.find("kv_cache_scheme"); scheme != root.end())
    read_kv_cache_scheme(recipe, *scheme, where + ": kv_cache_scheme");
  if (const auto rotation = root.find("rotation"); rotation != root.end())
    recipe.rotation = read_rotation(*rotation, where + ": rotation");
  return recipe;
}

Recipe recipe_of(std::string_view scheme, std::string_view method, DType checkpoint_dtype) {
  const Json stage = {{"method", method}, {"scheme", scheme}};
  return parse_recipe(Json({{"stages", Json::array({stage})}}).dump(), "--scheme and --method",
                      checkpoint_dtype);
}

int parts_per_expert(std::string_view linear) {
  return linear.ends_with(".experts.gate_up") ? 2 : linear.ends_with(".experts.down") ? 1 : 0;
}

int norm_before(std::string_view linear) {
  if (linear.ends_with(".qkv_proj")) return 0;
  for (const char* end : {".gate_up_proj", ".fc1", ".experts.gate_up"})
    if (linear.ends_with(end)) return 1;
  return -1;
}

std::vector<CheckpointLinear> find_linears(const Checkpoint& checkpoint, const DecoderSpec& spec) {
  LADDER_CHECK(spec.quantization_config.empty(), "{}: quantized already, expected dense weights",
               checkpoint.directory().string());
  constexpr std::string_view kWeight = ".weight";
  const ModelFamily& family = family_of(spec.architecture);
  std::vector<CheckpointLinear> linears;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const auto target = find_tensor_target(family, entry.info->name);
    if (!target || target->layer < 0 || entry.info->shape.ndim() != 2 ||
        !target->parameter.ends_with(kWeight))
      continue;
    const auto without = [&](const std::string& name) {
      return name.substr(0, name.size() - kWeight.size());
    };
    // Loaders look for linears in the config by their whole names, whatever the file calls them.
    LADDER_CHECK(entry.info->name.starts_with("model."),
                 "{}: tensor {}: a bare model's name, expected it behind \"model.\"",
                 checkpoint.directory().string(), json_brief(Json(entry.info->name)));
    CheckpointLinear linear;
    linear.name = without(entry.info->name);
    linear.linear = without(target->parameter);
    linear.part = target->part;
    linear.layer = target->layer;
    if (const int parts = parts_per_expert(linear.linear); parts > 0) linear.expert = linear.part / parts;
    linear.reads_norm = !spec.post_norm && norm_before(linear.linear) >= 0;
    linear.n = entry.info->shape[0];
    linear.k = entry.info->shape[1];
    // Names of linears have room for scales; a matrix that is called by its name alone is read dense.
    linear.is_router = !find_tensor_target(family, linear.name + ".weight_scale");
    linears.push_back(std::move(linear));
  }
  CheckpointLinear head{.name = "lm_head", .linear = "lm_head", .layer = spec.num_layers, .is_head = true};
  head.n = spec.vocab_size;
  head.k = spec.embedding_width();
  linears.push_back(std::move(head));
  std::sort(linears.begin(), linears.end(), [](const CheckpointLinear& a, const CheckpointLinear& b) {
    return std::tie(a.layer, a.linear, a.part) < std::tie(b.layer, b.linear, b.part);
  });
  return linears;
}

std::string weight_name(const CheckpointLinear& linear, const DecoderSpec& spec) {
  if (linear.is_head && spec.tie_word_embeddings)
    return checkpoint_name_of(family_of(spec.architecture), "embed_tokens.weight", 0);
  return linear.name + ".weight";
}

LinearStages stages_of(const Recipe& recipe, const CheckpointLinear& linear) {
  const auto stage = [&](int number) {
    return number < 0 ? nullptr : &recipe.stages.at(static_cast<size_t>(number));
  };
  return {stage(linear.prune_stage), stage(linear.stage)};
}

void assign_stages(const Recipe& recipe, std::span<CheckpointLinear> linears) {
  for (size_t s = 0; s < recipe.stages.size(); ++s) {
    const RecipeStage& stage = recipe.stages[s];
    const std::vector<bool> targeted = named_by(stage.targets, true, stage, linears);
    const std::vector<bool> ignored = named_by(stage.ignore, false, stage, linears);
    bool any = false;
    for (size_t i = 0; i < linears.size(); ++i) {
      if (!targeted[i] || ignored[i]) continue;
      any = true;
      CheckpointLinear& linear = linears[i];
      const auto is_free = [&](int taken, const char* what) {
        LADDER_CHECK(taken < 0, "{}: {} is {} by stages[{}] already: expected one stage for it", stage.where,
                     linear.name, what, taken);
      };
      if (stage.smooths()) is_free(linear.smooth_stage, "smoothed");
      if (stage.prunes()) is_free(linear.prune_stage, "pruned");
      if (stage.prunes() || stage.rounds()) is_free(linear.stage, "rounded");
      if (stage.smooths()) linear.smooth_stage = static_cast<int>(s);
      if (stage.prunes()) linear.prune_stage = static_cast<int>(s);
      if (stage.rounds()) linear.stage = static_cast<int>(s);
      check_shape(stage, linear);
    }
    LADDER_CHECK(any, "{}: it ignores every linear that its targets name", stage.where);
  }
  // Parts of one linear are stored alike.
  std::map<std::string, const CheckpointLinear*> first_parts;
  for (const CheckpointLinear& linear : linears) {
    LADDER_CHECK(linear.smooth_stage < 0 || linear.is_rounded(),
                 "{}: {} is smoothed and not rounded: expected a stage that rounds it",
                 recipe.stages[static_cast<size_t>(linear.smooth_stage)].where, linear.name);
    const CheckpointLinear& first = *first_parts.emplace(linear.linear, &linear).first->second;
    LADDER_CHECK(first.stage == linear.stage && first.smooth_stage == linear.smooth_stage &&
                     first.prune_stage == linear.prune_stage,
                 "{} and {} are parts of one linear: expected the same stages for both", first.name,
                 linear.name);
  }
}

}  // namespace ladder
