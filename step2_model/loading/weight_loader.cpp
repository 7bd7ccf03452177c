#include "step2_model/loading/weight_loader.h"

#include <algorithm>
#include <map>
#include <set>

#include "step1_layers/core/error.h"
#include "step2_model/families/family.h"
#include "step2_model/loading/kv_scales.h"

namespace ladder {
namespace {

constexpr size_t kNamesInAMessage = 10;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// "a", "b" and 3 more
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesInAMessage; ++i)
    text += (i == 0 ? "" : ", ") + printable(names[i]);
  if (names.size() > kNamesInAMessage) text += fmt::format(" and {} more", names.size() - kNamesInAMessage);
  return text;
}

// What is converted where the parameter has another of them; of all other dtypes it has the checkpoint's.
bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// What a checkpoint may hold beside the weights.
bool is_ignorable(const DecoderSpec& spec, std::string_view name) {
  if (ends_with(name, ".rotary_emb.inv_freq")) return true;
  if (!spec.quantization_config.empty() && is_kv_scale(name)) return true;
  return spec.tie_word_embeddings && (name == "lm_head.weight" || name == "model.lm_head.weight");
}

// AutoGPTQ gives every linear it quantizes a bias: of zeros, where the model has none.
bool is_bias_of_nothing(const Checkpoint& checkpoint, const Checkpoint::Entry& entry) {
  constexpr std::string_view kEnd = ".bias";
  const std::string& name = entry.info->name;
  if (!ends_with(name, kEnd) || !is_float(entry.info->dtype)) return false;
  const std::string linear = name.substr(0, name.size() - kEnd.size());
  if (checkpoint.find(linear + ".qweight") == nullptr) return false;
  const Tensor bias = entry.tensor().clone().to(DType::f32);  // in the file it need not be aligned
  return std::all_of(bias.data<float>(), bias.data<float>() + bias.numel(), [](float x) { return x == 0; });
}

// The parameters before the first layer and behind the last.
bool is_at_an_end(const DecoderSpec& spec, std::string_view parameter) {
  if (parameter == "norm.weight") return spec.final_norm;
  if (parameter == "norm.bias") return spec.final_norm && spec.norm == NormKind::layer_norm;
  if (parameter == "lm_head.bias") return spec.lm_head_bias;
  if (parameter.starts_with("lm_head.") && !spec.quantization_config.empty() && !spec.tie_word_embeddings)
    return true;
  if (parameter == "embed_positions.weight") return spec.learned_positions;
  if (parameter == "project_in.weight" || parameter == "project_out.weight") return spec.embedding_size > 0;
  return parameter == "embed_tokens.weight" || parameter == "lm_head.weight";
}

// Another range of a pipeline owns this tensor. `field_names`: what the layers of this one have; where only some of the
// model's have experts or are quantized, those of another range may have other ones.
bool belongs_to_another_range(const DecoderSpec& spec, const TensorTarget& target,
                              const std::vector<std::string>& field_names, bool has_layer) {
  if (target.layer < 0) return is_at_an_end(spec, target.parameter);  // which this range does not have
  if (has_layer || target.layer >= spec.num_layers) return false;
  const int64_t expert_layers = spec.num_expert_layers();
  if (expert_layers > 0 && expert_layers < spec.num_layers) return true;
  if (!spec.quantization_config.empty()) return true;  // which may name some of the layers only
  const std::string field = target.parameter.substr(target.parameter.find('.', 7) + 1);  // after "layers.N."
  return std::find(field_names.begin(), field_names.end(), field) != field_names.end();
}

struct Move {
  const Checkpoint::Entry* entry;
  Parameter* parameter;
  int part;
};

}  // namespace

// >>> task 2.3.loading: every tensor to its place, every parameter filled exactly once
void load_weights(const Checkpoint& checkpoint, const DecoderSpec& spec,
                  std::span<Parameter* const> parameters, const LoadProgress& progress) {
  const ModelFamily& family = family_of(spec.architecture);
  std::map<std::string, Parameter*, std::less<>> by_name;
  std::vector<std::string> layer_fields;  // "qkv_proj.weight": what a layer of this model has
  for (Parameter* parameter : parameters) {
    by_name[parameter->name] = parameter;
    if (parameter->name.rfind("layers.", 0) == 0)
      layer_fields.push_back(parameter->name.substr(parameter->name.find('.', 7) + 1));
  }

  std::vector<Move> moves;
  std::vector<std::string> unexpected;
  int64_t total_bytes = 0;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const auto target = find_tensor_target(family, entry.info->name);
    const auto place = target ? by_name.find(target->parameter) : by_name.end();
    if (is_ignorable(spec, entry.info->name)) continue;
    if (place != by_name.end()) {
      moves.push_back({&entry, place->second, target->part});
      total_bytes += entry.info->nbytes();
    } else if (!target ||
               !belongs_to_another_range(
                   spec, *target, layer_fields,
                   by_name.contains(fmt::format("layers.{}.input_layernorm.weight", target->layer)))) {
      if (is_bias_of_nothing(checkpoint, entry)) continue;
      unexpected.push_back(entry.info->name);
    }
  }

  std::set<std::pair<const Parameter*, int>> filled;
  for (const Move& move : moves) filled.emplace(move.parameter, move.part);
  std::vector<std::string> missing;
  for (const Parameter* parameter : parameters)
    for (int part = 0; part < parameter->num_parts; ++part)
      if (!filled.contains({parameter, part}))
        missing.push_back(checkpoint_name_of(family, parameter->name, part));
  const std::string folder = checkpoint.directory().string();
  if (!missing.empty() || !unexpected.empty()) {
    std::string message = folder + ": the weights do not fit config.json";
    if (!missing.empty()) message += fmt::format("; {} missing: {}", missing.size(), listed(missing));
    if (!unexpected.empty())
      message += fmt::format("; {} unexpected: {}", unexpected.size(), listed(unexpected));
    throw Error(message);
  }

  // The largest first: while a tensor is copied it is in memory twice, in the file's pages and in its
  // parameter, and by this order the sum never passes what all parameters take together.
  std::stable_sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
    return a.entry->info->nbytes() > b.entry->info->nbytes();
  });
  int64_t done_bytes = 0;
  for (const Move& move : moves) {
    const SafetensorsInfo& info = *move.entry->info;
    try {
      const DType wanted = move.parameter->tensor.dtype();
      if (is_float(wanted))
        LADDER_CHECK(is_float(info.dtype), "has the dtype {}, expected f32, bf16 or f16",
                     dtype_name(info.dtype));
      else
        LADDER_CHECK(info.dtype == wanted, "has the dtype {}, expected {}", dtype_name(info.dtype),
                     dtype_name(wanted));
      move.parameter->load(move.entry->tensor(), move.part);
    } catch (const Error& error) {
      fail("{}: tensor {}: {}", move.entry->file->path().string(), printable(info.name), error.what());
    }
    move.entry->file->release(info);
    done_bytes += info.nbytes();
    if (progress) progress(done_bytes, total_bytes);
  }
}
// <<< task 2.3.loading

}  // namespace ladder
