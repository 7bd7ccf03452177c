// The quantization_config of programs that know one scheme for all linears, and some of them exceptions: AutoGPTQ and GPTQModel,
// AutoAWQ, AutoRound, and the fp8 of DeepSeek and AutoFP8.
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/read_config.h"

namespace ladder {
namespace {

constexpr int64_t kMaxGroup = 1 << 20;
constexpr std::string_view kHead = "lm_head";

// A group of -1 columns is a whole row.
void set_group(const ConfigObject& config, const std::string& key, int64_t default_value,
               QuantizationArgs& args) {
  const int64_t size = config.integer(key, -1, kMaxGroup, default_value);
  LADDER_CHECK(size != 0, "{}: expected -1 or more than 0, found 0", config.name(key));
  args.strategy = size > 0 ? ScaleStrategy::group : ScaleStrategy::channel;
  args.group_size = std::max<int64_t>(size, 0);
}

ReadGroups one_group(const StoredLinear& linear, std::vector<std::string> ignored, IgnoreRule rule) {
  return {.groups = {{{"Linear"}, linear}}, .ignored = std::move(ignored), .ignore_rule = rule};
}

// These programs leave the routers as they are, whether the list says so or not, and the head unless "lm_head" is true, which only
// GPTQ's know; AutoRound's own form names it among the exceptions.
std::vector<std::string> dense_modules(const ConfigObject& config, const std::string& key) {
  std::vector<std::string> names = string_list(config, key);
  for (const char* name : {"mlp.gate", "block_sparse_moe.gate", "mlp.shared_expert_gate"})
    names.push_back(name);
  if (!config.boolean("lm_head", false)) names.push_back("lm_head");
  return names;
}

// The value under the first of two names that is there; Error: both are and differ.
std::string either(const ConfigObject& config, const std::string& name, const std::string& old_name) {
  const Json *value = config.find(name), *old = config.find(old_name);
  LADDER_CHECK(value == nullptr || old == nullptr || *value == *old, "{}: {} beside {}, which is {}",
               config.name(old_name), json_brief(*old), name, json_brief(*value));
  return value == nullptr && old != nullptr ? old_name : name;
}

// How AutoRound (github.com/intel/auto-round) found the codes that it writes in GPTQ's and AWQ's forms, for which check_common has that it
// did not round activations, and in fp8 (check_fp8_of_auto_round).
constexpr std::string_view kAutoRoundKeys[] = {"provider",
                                               "autoround_version",
                                               "model_free",
                                               "dataset",
                                               "quant_block_list",
                                               "data_type",
                                               "scale_dtype",
                                               "iters",
                                               "lr",
                                               "minmax_lr",
                                               "nsamples",
                                               "n_samples",
                                               "seqlen",
                                               "train_bs",
                                               "batch_size",
                                               "gradient_accumulate_steps",
                                               "amp",
                                               "low_gpu_mem_usage",
                                               "enable_quanted_input",
                                               "enable_minmax_tuning",
                                               "enable_norm_bias_tuning",
                                               "to_quant_block_names",
                                               "act_bits",
                                               "act_group_size",
                                               "act_sym",
                                               "act_dynamic",
                                               "act_data_type"};

// Numbers of so many bits are as the model has them.
constexpr int64_t kNotRounded = 16;

// What GPTQModel and AutoRound write for each of their methods.
void check_common(const ConfigObject& config, std::string_view method) {
  const std::string found = lower_string(config, "method", method);
  LADDER_CHECK(found == method, "{}: expected {}, found {}", config.name("method"), method,
               json_brief(Json(found)));
  refuse_unless_empty(config, "rotation", "rotated activations are not supported");
  refuse_unless_empty(config, "activation", "rounded activations are not supported");
  const int64_t activation_bits = config.integer("act_bits", 1, 64, kNotRounded);
  LADDER_CHECK(activation_bits >= kNotRounded, "{}: rounded activations are not supported, found {}",
               config.name("act_bits"), activation_bits);
  const std::string type = lower_string(config, "data_type", "int");
  LADDER_CHECK(type == "int", "{}: expected int, found {}", config.name("data_type"), json_brief(Json(type)));
  const std::string words = lower_string(config, "pack_dtype", "int32");
  LADDER_CHECK(words == "int32", "{}: expected int32, found {}", config.name("pack_dtype"),
               json_brief(Json(words)));
}

// Whether "meta" names GPTQModel as the program that wrote the file: "quantizer": "gptqmodel:4.0.0", or several.
bool is_of_gptqmodel(const ConfigObject& config) {
  const Json* meta = config.find("meta");
  if (meta == nullptr || !meta->is_object() || !meta->contains("quantizer")) return false;
  const Json& named = (*meta)["quantizer"];
  const auto is_it = [](const Json& name) {
    return name.is_string() && name.get_ref<const std::string&>().starts_with("gptqmodel");
  };
  return is_it(named) || (named.is_array() && std::ranges::any_of(named, is_it));
}

// Numbers, groups and order.
void read_gptq_scheme(const ConfigObject& config, QuantizationArgs& args) {
  args.scale_format = ScaleFormat::f16;
  args.num_bits = static_cast<int>(config.integer("bits", 2, 8));
  LADDER_CHECK(args.num_bits <= 4 || args.num_bits == 8, "{}: expected 2, 3, 4 or 8, found {}",
               config.name("bits"), args.num_bits);
  args.symmetric = config.boolean("sym", true);
  set_group(config, "group_size", -1, args);
  if (!config.boolean("desc_act", false)) return;
  bool neighbours = config.boolean("static_groups", false) || args.strategy == ScaleStrategy::channel;
  if (const Json* meta = config.find("meta"); meta != nullptr)  // where GPTQModel says it
    neighbours = neighbours || ConfigObject(*meta, config.name("meta")).boolean("static_groups", false);
  args.actorder = neighbours ? ActivationOrder::weight : ActivationOrder::group;
}

// The linears of a rule that says what is different of theirs.
StoredLinear with_different(const ConfigObject& config, const Json& different, const StoredLinear& of_all,
                            const std::string& what) {
  Json all = config.json();
  for (const auto& [key, value] : different.items())
    if (!value.is_null()) all[key] = value;
  StoredLinear linear = of_all;
  linear.scheme.weights = {};
  read_gptq_scheme(ConfigObject(all, what), linear.scheme.weights);
  return linear;
}

constexpr StoredLinear kLeftDense = {.format = StoredFormat::dense};

// What "modules_in_block_to_quantize" names, [[names], ...] or [names].
std::vector<std::string> quantized_ends(const ConfigObject& config) {
  const std::string key = "modules_in_block_to_quantize";
  const Json* lists = config.find(key);
  std::vector<std::string> ends;
  if (lists == nullptr || *lists == false) return ends;
  LADDER_CHECK(lists->is_array(), "{}: expected lists of names, found {}", config.name(key),
               json_brief(*lists));
  const auto add = [&](const Json& name) {
    ends.push_back(json_string(name, config.name(key)));
    LADDER_CHECK(!ends.back().empty(), "{}: expected names, found \"\"", config.name(key));
  };
  for (const Json& list : *lists)
    if (list.is_array())
      std::ranges::for_each(list, add);
    else
      add(list);
  return ends;
}

// GPTQModel's "dynamic": {"-:PATTERN": {}} leaves modules dense, {"+:PATTERN": {"bits": 8}}, or without "+:", says what is different of
// theirs. Patterns begin where the name does, as those of targets, and the first that fits counts.
void add_dynamic_rules(const ConfigObject& config, std::span<const std::string> in_order,
                       const StoredLinear& of_all, ReadGroups& read) {
  const Json* rules = config.find("dynamic");
  if (rules == nullptr || *rules == false) return;
  LADDER_CHECK(rules->is_object(), "{}: expected an object of patterns, found {}", config.name("dynamic"),
               json_brief(*rules));
  read.first_counts = true;
  for (const std::string& pattern : in_order) {
    const Json& different = rules->at(pattern);
    const bool leaves_out = pattern.starts_with("-:");
    const std::string target = "re:" + pattern.substr(leaves_out || pattern.starts_with("+:") ? 2 : 0);
    const std::string what = fmt::format("{}: {}", config.name("dynamic"), json_brief(Json(pattern)));
    const ConfigObject rule(different, what);
    if (leaves_out) {
      read.groups.push_back({{target}, kLeftDense});
      continue;
    }
    refuse_unknown_keys(rule,
                        {"bits", "group_size", "sym", "desc_act", "static_groups", "damp_percent",
                         "damp_auto_increment", "mse", "hyb_act", "act_group_aware", "true_sequential"});
    read.groups.push_back({{target}, with_different(config, different, of_all, what)});
  }
}

// What names an exception of AutoRound's: a linear's whole name, which begins with "model." but for the head's, or a pattern, looked for
// anywhere in a name: what its user wrote ("down_proj") is one too, and is written down as it is without a calibration ("model_free").
std::string exception_target(const std::string& module, const std::string& where) {
  const bool is_class = !module.empty() && module[0] >= 'A' && module[0] <= 'Z';
  LADDER_CHECK(!is_class && !module.starts_with("re:"),
               "{}: expected a module's name or a pattern, a class is not supported", where);
  const bool is_plain = module.find_first_of("*+?()[]|^$\\") == std::string::npos;
  if (is_plain && (module.starts_with("model.") || module == kHead)) return module;
  // Those that it writes itself begin so, and need not be looked for at each place.
  const bool begins_anywhere = module.starts_with(".*") && module.find('|') == std::string::npos;
  return begins_anywhere ? "re:" + module : "re:.*(?:" + module + ")";
}

// The same as compressed-tensors says it: with another --format AutoRound writes that beside the same tensors. The head is dense.
Json small_floats_of_auto_round(const ConfigObject& config) {
  const std::string type = lower_string(config, "data_type", "");
  const bool is_nvfp4 = type == "nv_fp";
  LADDER_CHECK(is_nvfp4 || type == "mx_fp", "{}: expected mx_fp or nv_fp, found {}", config.name("data_type"),
               json_brief(Json(type)));
  const int64_t bits = config.integer("bits", 4, is_nvfp4 ? 4 : 8), size = is_nvfp4 ? 16 : 32;
  config.integer("group_size", size, size);
  LADDER_CHECK(!config.boolean("lm_head", false),
               "{}: expected false, a head in codes is not supported in this form", config.name("lm_head"));
  Json numbers = {{"num_bits", bits},
                  {"type", "float"},
                  {"strategy", is_nvfp4 ? "tensor_group" : "group"},
                  {"group_size", size},
                  {"symmetric", config.boolean("sym", true)}};
  Json group = {{"targets", {"Linear"}}, {"weights", numbers}};
  if (config.integer("act_bits", 1, 64, kNotRounded) < kNotRounded) {
    config.integer("act_bits", bits, bits);
    config.integer("act_group_size", size, size);
    const std::string_view wanted = is_nvfp4 ? "nv_fp4_with_static_gs" : "mx_fp";
    const std::string inputs = lower_string(config, "act_data_type", "");
    LADDER_CHECK(inputs == wanted, "{}: expected {}, found {}", config.name("act_data_type"), wanted,
                 json_brief(Json(inputs)));
    for (const char* key : {"act_dynamic", "act_sym"})
      LADDER_CHECK(config.boolean(key, true), "{}: expected true", config.name(key));
    numbers["dynamic"] = is_nvfp4 ? Json("local") : Json(true);
    group["input_activations"] = numbers;
  }
  const char* format = is_nvfp4    ? "nvfp4-pack-quantized"
                       : bits == 4 ? "mxfp4-pack-quantized"
                                   : "mxfp8-quantized";
  return {{"format", format}, {"config_groups", {{"group_0", group}}}, {"ignore", {kHead}}};
}

// AutoRound's words for what the others say too: whether they are the same.
void check_fp8_of_auto_round(const ConfigObject& config, const QuantizationArgs& inputs) {
  config.integer("bits", 8, 8, 8);
  config.integer("act_bits", 8, 8, 8);
  for (const char* key : {"data_type", "act_data_type"})
    LADDER_CHECK(lower_string(config, key, "fp") == "fp", "{}: expected fp, found {}", config.name(key),
                 json_brief(*config.find(key)));
  for (const char* key : {"sym", "act_sym"})
    LADDER_CHECK(config.boolean(key, true), "{}: expected true, floats have no zero point", config.name(key));
  LADDER_CHECK(config.boolean("act_dynamic", inputs.dynamic) == inputs.dynamic, "{}: expected {}, as {}",
               config.name("act_dynamic"), inputs.dynamic, config.name("activation_scheme"));
  const Json *group = config.find("group_size"), *block = config.find("weight_block_size");
  LADDER_CHECK(group == nullptr || (block != nullptr && *group == *block),
               "{}: expected what {} is, found {}", config.name("group_size"),
               config.name("weight_block_size"), json_brief(*group));
  if (config.has("act_group_size")) config.integer("act_group_size", inputs.group_size, inputs.group_size);
}

}  // namespace

ReadGroups read_gptq(const ConfigObject& config, std::span<const std::string> in_order) {
  // From true_sequential on: how the file was made, or how others are to run it. Nothing of that is in the tensors.
  refuse_unknown_keys(config,
                      {"quant_method",
                       "method",
                       "bits",
                       "group_size",
                       "desc_act",
                       "static_groups",
                       "sym",
                       "checkpoint_format",
                       "format",
                       "pack_dtype",
                       "dynamic",
                       "rotation",
                       "activation",
                       "modules_in_block_to_quantize",
                       "lm_head",
                       "modules_to_not_convert",
                       "is_marlin_format",
                       "true_sequential",
                       "damp_percent",
                       "damp_auto_increment",
                       "mse",
                       "hyb_act",
                       "act_group_aware",
                       "meta",
                       "quantizer",
                       "dataset",
                       "tokenizer",
                       "model_name_or_path",
                       "model_file_base_name",
                       "use_cuda_fp16",
                       "model_seqlen",
                       "block_name_to_quantize",
                       "module_name_preceding_first_block",
                       "pad_token_id",
                       "use_exllama",
                       "disable_exllama",
                       "max_input_length",
                       "exllama_config",
                       "cache_block_outputs",
                       "backend",
                       "version"},
                      kAutoRoundKeys);
  check_common(config, "gptq");
  refuse_unless_empty(config, "is_marlin_format", "weights ordered for one kernel are not supported");

  StoredLinear linear;
  linear.format = StoredFormat::gptq;
  linear.stored_scales = ScaleFormat::f16;
  read_gptq_scheme(config, linear.scheme.weights);
  const std::string key = either(config, "checkpoint_format", "format");
  const std::string format = lower_string(config, key, "gptq");
  LADDER_CHECK(format == "gptq" || format == "gptq_v2", "{}: expected gptq or gptq_v2, found {}",
               config.name(key), json_brief(Json(format)));
  linear.zeros_are_one_less = format == "gptq";
  linear.zeros_borrow = linear.zeros_are_one_less && is_of_gptqmodel(config);
  ReadGroups read = one_group(linear, dense_modules(config, "modules_to_not_convert"), IgnoreRule::module);
  read.quantized_ends = quantized_ends(config);
  add_dynamic_rules(config, in_order, linear, read);
  return read;
}

ReadGroups read_awq(const ConfigObject& config) {
  refuse_unknown_keys(
      config,
      {"quant_method", "method", "format", "checkpoint_format", "pack_dtype", "dynamic", "rotation",
       "activation", "lm_head", "desc_act", "sym", "meta", "bits", "w_bit", "group_size", "q_group_size",
       "zero_point", "version", "modules_to_not_convert", "backend", "do_fuse", "fuse_max_seq_len",
       "modules_to_fuse", "exllama_config",
       // Of GPTQ, with its defaults: transformers 5 writes them for both.
       "tokenizer", "dataset", "damp_percent", "hyb_act", "act_group_aware", "true_sequential",
       "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block",
       "modules_in_block_to_quantize", "pad_token_id", "max_input_length", "cache_block_outputs"},
      kAutoRoundKeys);
  check_common(config, "awq");
  refuse_unless_empty(config, "dynamic", "schemes of single modules are not supported");
  refuse_unless_empty(config, "modules_in_block_to_quantize", "expected all linears of a layer");
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    const std::string version = lower_string(config, key, "gemm");
    LADDER_CHECK(version == "gemm", "{}: expected gemm, found {}", config.name(key),
                 json_brief(Json(version)));
  }
  StoredLinear linear;
  linear.format = StoredFormat::awq;
  linear.stored_scales = ScaleFormat::f16;
  QuantizationArgs& args = linear.scheme.weights;
  args.scale_format = ScaleFormat::f16;
  args.num_bits = static_cast<int>(config.integer(either(config, "bits", "w_bit"), 4, 4));
  set_group(config, either(config, "group_size", "q_group_size"), 128, args);
  // "sym" beside "zero_point" may be a default of GPTQ's, whatever the file holds.
  args.symmetric = !config.boolean("zero_point", !config.boolean("sym", false));
  // As AutoAWQ reads it: "gate" keeps gate_proj dense too.
  std::vector<std::string> dense = string_list(config, "modules_to_not_convert");
  if (!config.boolean("lm_head", false)) dense.push_back("lm_head");
  return one_group(linear, std::move(dense), IgnoreRule::substring);
}

// AutoRound's own form is one of theirs, GPTQ's without g_idx, or compressed-tensors' of small floats; its list of exceptions leaves modules dense, or has other bits and groups
// of theirs. A name goes before a pattern, and of two patterns the first counts.
ReadGroups read_auto_round(const ConfigObject& config, const std::string& what,
                           std::span<const std::string> in_order) {
  refuse_unknown_keys(config,
                      {"quant_method", "packing_format", "extra_config", "bits", "group_size", "sym",
                       "block_name_to_quantize", "lm_head", "quant_lm_head", "backend"},
                      kAutoRoundKeys);
  refuse_unless_empty(config, "quant_lm_head", "a head in codes is not supported in this form");
  const std::string packing = lower_string(config, "packing_format", "");
  // The shorter names are transformers'.
  const bool as_gptq = packing == "auto_round:auto_gptq" || packing == "auto_round:gptq";
  const bool as_awq = packing == "auto_round:auto_awq" || packing == "auto_round:awq";
  LADDER_CHECK(
      as_gptq || as_awq || packing == "auto_round:llm_compressor",
      "{}: expected auto_round:auto_gptq, auto_round:auto_awq or auto_round:llm_compressor, found {}",
      config.name("packing_format"), json_brief(Json(packing)));
  Json same = config.json();
  for (const char* key : {"quant_method", "packing_format", "extra_config", "quant_lm_head"}) same.erase(key);
  if (!as_gptq && !as_awq) same = small_floats_of_auto_round(config);
  const ConfigObject form(same, what);
  ReadGroups read = as_gptq ? read_gptq(form, {}) : as_awq ? read_awq(form) : read_compressed_tensors(form);
  if (as_gptq) read.groups[0].linear.has_g_idx = false;
  const Json* exceptions = config.find("extra_config");
  if (exceptions == nullptr) return read;
  LADDER_CHECK(exceptions->is_object(), "{}: expected an object of modules, found {}",
               config.name("extra_config"), json_brief(*exceptions));
  read.first_counts = true;
  for (const std::string& module : in_order) {
    const Json& different = exceptions->at(module);
    const std::string where = fmt::format("{}: {}", config.name("extra_config"), json_brief(Json(module)));
    const ConfigObject exception(different, where);
    const std::string target = exception_target(module, where);
    if (exception.integer("bits", 1, 32, read.groups[0].linear.scheme.weights.num_bits) >= kNotRounded) {
      exception.integer("act_bits", kNotRounded, 32, kNotRounded);
      read.groups.push_back({{target}, kLeftDense});
      continue;
    }
    LADDER_CHECK(as_gptq, "{}: another scheme is supported in the form auto_round:auto_gptq alone", where);
    refuse_unknown_keys(exception, {"bits", "group_size", "sym", "data_type"}, kAutoRoundKeys);
    check_common(exception, "gptq");
    read.groups.push_back({{target}, with_different(form, different, read.groups[0].linear, where)});
    if (target == kHead) std::erase(read.ignored, kHead);
  }
  return read;
}

ReadGroups read_fp8(const ConfigObject& config) {
  refuse_unknown_keys(
      config,
      {"quant_method", "fmt", "activation_scheme", "weight_block_size", "modules_to_not_convert",
       "ignored_layers", "kv_cache_scheme", "scale_fmt", "modules_to_convert", "dequantize", "bits",
       "group_size", "sym", "block_name_to_quantize"},
      kAutoRoundKeys);
  refuse_unless_empty(config, "modules_to_convert", "a list of all that is quantized is not supported");
  refuse_unless_empty(config, "dequantize",
                      "weights that are written out when they are loaded are not supported");
  const std::string floats = lower_string(config, "fmt", "e4m3");
  LADDER_CHECK(floats == "e4m3" || floats == "float8_e4m3fn", "{}: expected e4m3, found {}",
               config.name("fmt"), json_brief(Json(floats)));
  const std::string scales = lower_string(config, "scale_fmt", "float");
  LADDER_CHECK(scales == "float", "{}: expected float, found {}", config.name("scale_fmt"),
               json_brief(Json(scales)));
  const std::string activations = lower_string(config, "activation_scheme", "dynamic");
  LADDER_CHECK(activations == "dynamic" || activations == "static",
               "{}: expected dynamic or static, found {}", config.name("activation_scheme"),
               json_brief(Json(activations)));

  StoredLinear linear;
  linear.stored_scales = ScaleFormat::f32;
  QuantizationArgs& args = linear.scheme.weights;
  args.is_float = true;
  QuantizationArgs inputs = args;
  inputs.dynamic = activations == "dynamic";
  if (inputs.dynamic) inputs.strategy = ScaleStrategy::token;
  if (const Json* block = config.find("weight_block_size"); block != nullptr) {
    LADDER_CHECK(block->is_array() && block->size() == 2, "{}: expected [rows, columns], found {}",
                 config.name("weight_block_size"), json_brief(*block));
    LADDER_CHECK(inputs.dynamic, "{}: blocks are for the activation_scheme \"dynamic\"",
                 config.name("weight_block_size"));
    args.strategy = ScaleStrategy::block;
    args.block_rows = json_int((*block)[0], config.name("weight_block_size"), 1, kMaxGroup);
    args.block_columns = json_int((*block)[1], config.name("weight_block_size"), 1, kMaxGroup);
    inputs.strategy = ScaleStrategy::group;
    inputs.group_size = args.block_columns;
    linear.scale_is_inverse = true;
  }
  check_fp8_of_auto_round(config, inputs);
  linear.scheme.input_activations = inputs;
  std::vector<std::string> dense = dense_modules(config, "modules_to_not_convert");
  for (std::string& name : string_list(config, "ignored_layers")) dense.push_back(std::move(name));
  ReadGroups read = one_group(linear, std::move(dense), IgnoreRule::module);
  if (config.has("kv_cache_scheme")) {  // one word: E4M3 with one scale a layer
    const std::string scheme = lower_string(config, "kv_cache_scheme", "");
    LADDER_CHECK(scheme == "static" || scheme == "dynamic", "{}: expected static or dynamic, found {}",
                 config.name("kv_cache_scheme"), json_brief(Json(scheme)));
    read.kv_cache = StoredKvCache{.args = {.is_float = true, .dynamic = scheme == "dynamic"}};
  }
  return read;
}

}  // namespace ladder
