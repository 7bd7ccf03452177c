#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/config/config.h"
#include "step2_model/families/family.h"
#include "step2_model/model.h"

namespace ladder {
namespace {

// Generous bounds: a size beyond them is a damaged file, and products of sizes stay far from 2^63.
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr int64_t kMaxExpertWidths = int64_t{1} << 24;  // of a layer's experts together

std::string read_architecture(const ConfigObject& config) {
  const auto model_type = config.string("model_type");
  const Json* list = config.find("architectures");
  std::string architecture;
  if (list != nullptr && !(list->is_array() && list->empty())) {
    LADDER_CHECK(list->is_array() && list->size() == 1, "{}: expected a list of one name, found {}",
                 config.name("architectures"), json_brief(*list));
    architecture = json_string((*list)[0], config.name("architectures"));
  } else {
    LADDER_CHECK(model_type.has_value(), "{} is missing", config.name("architectures"));
    for (const ModelFamily* family : all_families())
      if (family->model_type == *model_type) architecture = family->architecture;
    LADDER_CHECK(!architecture.empty(), "{}: unknown model type {}", config.name("model_type"),
                 json_brief(Json(*model_type)));
  }
  try {
    const ModelFamily& family = family_of(architecture);
    LADDER_CHECK(!model_type || *model_type == family.model_type, "{} goes with model_type {}, found {}",
                 architecture, family.model_type, json_brief(Json(*model_type)));
  } catch (const Error& error) {
    fail("{}: {}", config.name("architectures"), error.what());
  }
  return architecture;
}

MlpActivation read_activation(const ConfigObject& config, const ModelFamily& family) {
  const std::string name = config.string(family.activation_key).value_or(family.default_activation);
  if (name == "relu") return MlpActivation::relu;
  if (name == "silu" || name == "swish") return MlpActivation::silu;
  if (name == "gelu") return MlpActivation::gelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_fast")
    return MlpActivation::gelu_tanh;
  fail("{}: expected silu, gelu, gelu_pytorch_tanh or relu, found {}", config.name(family.activation_key),
       json_brief(Json(name)));
}

DType read_dtype(const ConfigObject& config) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  std::string name = config.string(key).value_or("float32");  // what transformers takes an absent key for
  if (name.rfind("torch.", 0) == 0) name = name.substr(6);
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  fail("{}: expected float32, bfloat16 or float16, found {}", config.name(key), json_brief(Json(name)));
}

// One id, a list of ids, or null.
std::vector<int64_t> read_token_ids(const ConfigObject& config, const std::string& key) {
  const Json* value = config.find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value}))
    ids.push_back(json_int(id, config.name(key), 0, INT32_MAX));
  return ids;
}

// compression_config is an older name of it. Whether there is a linear method for it, load_model says. Its members stay in their order, which
// rules for single linears may have a meaning for.
std::string read_quantization_config(const ConfigObject& config, std::string_view text) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json* value = config.find(key);
    if (value == nullptr || *value == false || value->empty()) continue;
    LADDER_CHECK(value->is_object(), "{}: expected an object, found {}", config.name(key),
                 json_brief(*value));
    return parse_ordered_json(text, config.name(key)).at(key).dump();
  }
  return {};
}

// Where older programs say what they have done, in a file of their own alone: ModelOpt as {"producer": ..., "quantization": {...}}, AutoGPTQ
// and AutoAWQ as config.json would have it, but for the method.
struct ConfigBeside {
  const char* file;
  const char* method;
  bool within_quantization;
};
constexpr ConfigBeside kConfigsBeside[] = {{"hf_quant_config.json", "modelopt", true},
                                           {"quantize_config.json", "gptq", false},
                                           {"quant_config.json", "awq", false}};

std::string read_beside(std::string_view text, const std::string& what, const ConfigBeside& beside) {
  const Json root = parse_json(text, what);
  const ConfigObject file(root, what);
  const Json& quantization =
      beside.within_quantization ? json_at(root, "quantization", file.name("quantization")) : root;
  LADDER_CHECK(quantization.is_object(), "{}: expected an object, found {}", file.name("quantization"),
               json_brief(quantization));
  const OrderedJson in_order = parse_ordered_json(text, what);
  OrderedJson config = beside.within_quantization ? in_order.at("quantization") : in_order;
  if (beside.within_quantization || !file.has("quant_method")) config["quant_method"] = beside.method;
  return config.dump();
}

}  // namespace

// >>> task 2.1.spec: config.json into a DecoderSpec
DecoderSpec parse_decoder_spec(std::string_view config_text, std::string_view what,
                               std::string_view generation_text, std::string_view generation_what) {
  const Json root = parse_json(config_text, what);
  const ConfigObject config(root, std::string(what));
  DecoderSpec spec;
  spec.architecture = read_architecture(config);
  spec.vocab_size = config.integer("vocab_size", 1, kMaxVocabulary);
  spec.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  const ModelFamily& family = family_of(spec.architecture);
  spec.intermediate_size = config.integer(family.intermediate_size_key, 1, kMaxWidth);
  spec.num_layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  spec.num_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  spec.max_position_embeddings = config.integer("max_position_embeddings", 1, kMaxPositions);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  LADDER_CHECK(spec.norm_eps >= 0 && spec.norm_eps < 1, "{}: expected a number in [0, 1), found {}",
               config.name("rms_norm_eps"), spec.norm_eps);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.activation = read_activation(config, family);
  spec.checkpoint_dtype = read_dtype(config);
  spec.quantization_config = read_quantization_config(config, config_text);
  refuse_unsupported_keys(config, spec.num_layers, family.has_experts);
  family.read_config(config, spec);
  LADDER_CHECK(spec.experts.num_experts * spec.experts.intermediate_size <= kMaxExpertWidths,
               "{}: {} experts of width {}: expected a width of at most {} in all", what,
               spec.experts.num_experts, spec.experts.intermediate_size, kMaxExpertWidths);
  LADDER_CHECK(spec.experts.num_experts == 0 || spec.activation == MlpActivation::silu,
               "{}: experts with another activation than silu are not supported", config.name("hidden_act"));
  LADDER_CHECK(spec.activation != (spec.gated_mlp ? MlpActivation::relu : MlpActivation::silu),
               "{}: {} is not supported in an MLP {} a gate", config.name(family.activation_key),
               spec.gated_mlp ? "relu" : "silu", spec.gated_mlp ? "with" : "without");
  if (spec.learned_positions)
    spec.rope = {.kind = RopeKind::none, .rotary_dim = spec.head_dim};
  else
    spec.rope = parse_rope_config(config, spec.head_dim, spec.max_position_embeddings);

  // generation_config.json's end tokens replace config.json's, as in transformers and vLLM.
  std::vector<int64_t> eos_token_ids = read_token_ids(config, "eos_token_id");
  if (!generation_text.empty()) {
    const Json generation_root = parse_json(generation_text, generation_what);
    const ConfigObject generation(generation_root, std::string(generation_what));
    if (generation.has("eos_token_id")) eos_token_ids = read_token_ids(generation, "eos_token_id");
  }
  // Small test models keep the end token of the large vocabulary they were cut from: it is left out.
  for (const int64_t id : eos_token_ids) spec.add_eos_token(id);
  const std::vector<int64_t> bos = read_token_ids(config, "bos_token_id");
  if (!bos.empty() && bos.front() < spec.vocab_size) spec.bos_token_id = static_cast<int32_t>(bos.front());
  return spec;
}
// <<< task 2.1.spec

DecoderSpec load_decoder_spec(const std::filesystem::path& directory) {
  LADDER_CHECK(std::filesystem::is_directory(directory), "{}: there is no such folder", directory.string());
  constexpr int64_t kMaxConfigBytes = 16 << 20;
  const auto config = directory / "config.json", generation = directory / "generation_config.json";
  const std::string text = read_text_file(config, kMaxConfigBytes);
  const std::string generation_text =
      std::filesystem::exists(generation) ? read_text_file(generation, kMaxConfigBytes) : "{}";
  LADDER_CHECK(!generation_text.empty(), "{}: expected a JSON object, the file is empty",
               generation.string());
  DecoderSpec spec = parse_decoder_spec(text, config.string(), generation_text, generation.string());
  for (const ConfigBeside& beside : kConfigsBeside) {
    const auto path = directory / beside.file;
    if (spec.quantization_config.empty() && std::filesystem::exists(path))
      spec.quantization_config = read_beside(read_text_file(path, kMaxConfigBytes), path.string(), beside);
  }
  return spec;
}

}  // namespace ladder
