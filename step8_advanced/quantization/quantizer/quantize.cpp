#include "step8_advanced/quantization/quantizer/quantize.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/checkpoint.h"
#include "step2_model/json.h"
#include "step8_advanced/quantization/config/quantization_config.h"
#include "step8_advanced/quantization/numbers/quantize_weight.h"
#include "step8_advanced/quantization/quantizer/calibrate_kv.h"
#include "step8_advanced/quantization/quantizer/check_weights.h"
#include "step8_advanced/quantization/quantizer/copy_files.h"
#include "step8_advanced/quantization/quantizer/finished_layers.h"
#include "step8_advanced/quantization/quantizer/rotate_model.h"
#include "step8_advanced/quantization/quantizer/smooth_layer.h"

namespace ladder {
namespace {

// FNV-1a over words of eight bytes: it tells checkpoints apart, and is as fast as the disc.
uint64_t hash_bytes(const void* data, int64_t size, uint64_t hash) {
  const auto* bytes = static_cast<const char*>(data);
  for (int64_t i = 0; i < size; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, static_cast<size_t>(std::min<int64_t>(8, size - i)));
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  return hash;
}
constexpr uint64_t kEmptyHash = 0xcbf29ce484222325u;

std::span<const CheckpointLinear> of_layer(const std::vector<CheckpointLinear>& all, int64_t layer) {
  const auto first =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.layer == layer; });
  const auto last = std::find_if(first, all.end(), [&](const auto& one) { return one.layer != layer; });
  return {first, last};
}

// "model.layers.3.self_attn", in which q, k and v are.
std::string attention_name(std::span<const CheckpointLinear> linears) {
  for (const CheckpointLinear& linear : linears)
    if (linear.linear.ends_with(".qkv_proj")) return linear.name.substr(0, linear.name.rfind('.'));
  fail("a layer without projections of keys and values");
}

// Without calibration: the checkpoint's weights, and nothing run.
FinishedLayer round_weights(const Checkpoint& checkpoint, const DecoderSpec& spec, const Recipe& recipe,
                            std::span<const CheckpointLinear> linears) {
  const auto weight_of = [&](const CheckpointLinear& linear) {
    const std::string name = weight_name(linear, spec);
    const Checkpoint::Entry* weight = checkpoint.find(name);
    LADDER_CHECK(weight != nullptr, "{}: no tensor {}", checkpoint.directory().string(), name);
    return weight->tensor().to(DType::f32);
  };
  FinishedLayer finished;
  for (const CheckpointLinear& linear : linears) {
    if (!linear.is_changed()) continue;
    const LinearStages stages = stages_of(recipe, linear);
    float global_scale = 0;
    if (linear.is_rounded() &&
        stages.round->linear->format == StoredFormat::nvfp4) {  // parts with the same input share it
      float largest = 0;
      for (const CheckpointLinear& other : linears)
        if (other.linear == linear.linear && other.expert == linear.expert)
          largest = std::max(largest, largest_absolute(weight_of(other)));
      global_scale = nvfp4_global_scale(largest);
    }
    finished.linears.push_back(quantize_linear(linear.name, weight_of(linear), stages, {}, global_scale));
  }
  return finished;
}

// "quantization_config": the stage with most linears names all of them as "Linear", the others theirs one by one; what no
// stage rounds is ignored by name. Weights that are only pruned are dense ones with zeros in them, of which a reader need not know.
Json quantization_config(const Recipe& recipe, const std::vector<CheckpointLinear>& linears) {
  std::vector<int64_t> counts(recipe.stages.size());
  std::vector<std::string> ignore;
  for (const CheckpointLinear& linear : linears) {
    if (linear.is_rounded())
      ++counts[static_cast<size_t>(linear.stage)];
    else
      ignore.push_back(linear.name);
  }
  const auto most = std::max_element(counts.begin(), counts.end()) - counts.begin();
  std::vector<QuantizationGroup> groups;
  for (size_t stage = 0; stage < recipe.stages.size(); ++stage) {
    if (counts[stage] == 0) continue;
    QuantizationGroup group{{}, *recipe.stages[stage].linear};
    if (static_cast<std::ptrdiff_t>(stage) == most)
      group.targets = {"Linear"};
    else
      for (const CheckpointLinear& linear : linears)
        if (linear.stage == static_cast<int>(stage)) group.targets.push_back(linear.name);
    groups.push_back(std::move(group));
  }
  return parse_json(to_json(groups, ignore, recipe.kv_cache), "quantization_config");
}

Json report_json(const QuantizeReport& report, const Recipe& recipe) {
  Json linears = Json::array();
  for (const LinearReport& one : report.linears) {
    Json line = {{"name", one.name},
                 {"method", one.method},
                 {"scheme", one.scheme},
                 {one.calibrated ? "output_error" : "weight_error", one.error}};
    if (one.unreached) line["unreached"] = true;
    if (one.damping > 0) {
      line["damping"] = one.damping;
      line["dead_columns"] = one.dead_columns;
    }
    linears.push_back(line);
  }
  return {{"recipe", parse_json(recipe.text, "recipe")},
          {"calibration_tokens", report.calibration_tokens},
          {"bytes_before", report.bytes_before},
          {"bytes_after", report.bytes_after},
          {"linears", linears}};
}

// The result, whole, below `folder`: the checkpoint's tensors in its order, each rounded weight replaced by what stands for it.
void write_result(const std::filesystem::path& folder, const QuantizeOptions& options,
                  const Checkpoint& checkpoint, const FinishedLayers& done,
                  const std::vector<CheckpointLinear>& linears, QuantizeReport& report) {
  std::map<std::string, std::vector<NamedTensor>> instead;  // of "<linear>.weight"; norms of themselves
  std::vector<NamedTensor> behind;  // scales of keys and values, and a head that was the embedding
  for (int64_t layer = 0; done.has(layer); ++layer) {
    for (NamedTensor& one : done.stored(layer)) {
      const std::string weight = one.name.substr(0, one.name.rfind('.')) + ".weight";
      if (checkpoint.find(one.name) != nullptr)
        instead[one.name].push_back(std::move(one));
      else if (checkpoint.find(weight) != nullptr)
        instead[weight].push_back(std::move(one));
      else
        behind.push_back(std::move(one));
    }
  }
  std::vector<NamedTensor> tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    const auto found = instead.find(entry.info->name);
    if (found == instead.end())
      tensors.push_back({entry.info->name, entry.tensor()});
    else
      tensors.insert(tensors.end(), found->second.begin(), found->second.end());
  }
  tensors.insert(tensors.end(), behind.begin(), behind.end());
  for (const NamedTensor& one : tensors) report.bytes_after += one.tensor.nbytes();
  std::filesystem::create_directories(folder);
  write_checkpoint(folder, tensors);
  OrderedJson config = parse_ordered_json(read_text_file(options.model / "config.json"), "config.json");
  if (std::any_of(linears.begin(), linears.end(), [](const auto& one) { return one.is_rounded(); }))
    config["quantization_config"] = quantization_config(options.recipe, linears);
  // Codes of its own: no longer the embedding's table.
  if (linears.back().is_rounded()) config["tie_word_embeddings"] = false;
  write_file_atomically(folder / "config.json", config.dump(2) + "\n");
  copy_other_files(options.model, folder);
  write_file_atomically(folder / "quantize_report.json", report_json(report, options.recipe).dump(1) + "\n");
}

}  // namespace

std::string quantize_key(const QuantizeOptions& options) {
  uint64_t model = kEmptyHash;
  const Checkpoint checkpoint(options.model);
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    model = hash_bytes(entry.info->name.data(), std::ssize(entry.info->name), model);
    const Tensor tensor = entry.tensor();
    model = hash_bytes(tensor.raw(), tensor.nbytes(), model);
    entry.file->release(*entry.info);
  }
  const std::string config = read_text_file(options.model / "config.json");
  model = hash_bytes(config.data(), std::ssize(config), model);
  uint64_t texts = kEmptyHash;
  for (const TokenIds& ids : options.texts) {
    const int64_t count = std::ssize(ids);
    texts = hash_bytes(&count, sizeof(count), texts);
    texts = hash_bytes(ids.data(), count * static_cast<int64_t>(sizeof(int32_t)), texts);
  }
  const Json key = {{"model", fmt::format("{:016x}", model)},
                    {"recipe", parse_json(options.recipe.text, "recipe")},
                    {"texts", fmt::format("{:016x}", texts)},
                    {"samples", options.texts.size()}};
  return key.dump(1) + "\n";
}

// To find a weight's code takes as long as about so many multiplications of a product.
constexpr double kOperationsOfACode = 500;

QuantizeEstimate estimate_quantize(const QuantizeOptions& options, const DecoderSpec& spec) {
  const Checkpoint checkpoint(options.model);
  std::vector<CheckpointLinear> linears = find_linears(checkpoint, spec);
  assign_stages(options.recipe, linears);
  QuantizeEstimate estimate;
  estimate.bytes_before = checkpoint.nbytes();
  double tokens = 0;
  for (const TokenIds& ids : options.texts) tokens += static_cast<double>(ids.size());
  const double share_of_experts =  // of the tokens, that one expert sees
      spec.experts.num_experts > 0
          ? static_cast<double>(spec.experts.rule.top_k) / static_cast<double>(spec.experts.num_experts)
          : 0;
  std::map<int64_t, int64_t> layer_elements;
  std::map<int64_t, double> met_elements;  // of a layer, by one token
  std::set<std::pair<std::string, int64_t>> passes;
  std::map<std::string, int64_t> hessians;  // elements of those that are there together
  int64_t largest_k = 0, largest_search = 0;
  for (const CheckpointLinear& linear : linears) {
    const double share = linear.expert < 0 ? 1 : share_of_experts;
    if (linear.is_head && !linear.is_changed()) continue;
    layer_elements[linear.layer] += linear.n * linear.k;
    met_elements[linear.layer] += share * static_cast<double>(linear.n * linear.k);
    if (!linear.is_changed()) continue;
    const auto n = static_cast<double>(linear.n), k = static_cast<double>(linear.k);
    const LinearStages stages = stages_of(options.recipe, linear);
    const bool prunes = stages.prune != nullptr && stages.prune->method == QuantizationMethod::sparsegpt;
    const bool is_gptq = stages.round != nullptr && stages.round->method == QuantizationMethod::gptq;
    if (prunes) estimate.operations += 2 * n * k * k;
    if (is_gptq) estimate.operations += 2 * n * k * k;
    if (stages.round != nullptr) estimate.operations += kOperationsOfACode * n * k;
    if (stages.round != nullptr && stages.round->method == QuantizationMethod::awq) {
      const double rows = std::min(share * tokens, static_cast<double>(kSampleRows));
      estimate.operations += 32 * n * k * rows;  // awq.h
      largest_search = std::max(largest_search, 3 * linear.n * linear.k + kSampleRows * linear.k);
    }
    if (passes.emplace(linear.linear, linear.expert).second) {
      estimate.operations += share * tokens * k * k + (prunes || is_gptq ? k * k * k : 0);
      hessians[linear.linear] += linear.k * linear.k;
      largest_k = std::max(largest_k, linear.k);
    }
  }
  int64_t largest_layer = 0, largest_hessians = 0;
  for (const auto& [layer, elements] : layer_elements) {
    largest_layer = std::max(largest_layer, elements);
    // A pass for each of four linears, and one to go on.
    estimate.operations += options.recipe.needs_calibration() ? 5 * 2 * tokens * met_elements[layer] : 0;
  }
  for (const auto& [name, elements] : hessians) largest_hessians = std::max(largest_hessians, elements);
  const int64_t ends = spec.vocab_size * spec.embedding_width();
  estimate.memory_bytes = 4 * largest_layer;
  if (options.recipe.needs_calibration())
    estimate.memory_bytes +=
        4 * (ends + 2 * static_cast<int64_t>(tokens) * spec.hidden_size + largest_hessians + largest_search) +
        12 * largest_k * largest_k;
  return estimate;
}

namespace {

bool has_group_order(const RecipeStage& stage) {
  return stage.rounds() && stage.linear->scheme.weights.actorder == ActivationOrder::group;
}

// The layers of `options.model`, and then the whole, which waits in the folder of the finished layers.
QuantizeReport quantize_layers(const OpContext& ctx, const QuantizeOptions& options,
                               const FinishedLayers& done) {
  const bool calibrates = options.recipe.needs_calibration();
  const DecoderSpec spec = load_decoder_spec(options.model);
  const Checkpoint checkpoint(options.model);
  std::vector<CheckpointLinear> linears = find_linears(checkpoint, spec);
  assign_stages(options.recipe, linears);

  QuantizeReport report;
  report.bytes_before = checkpoint.nbytes();
  int64_t longest = 1;
  for (const TokenIds& ids : options.texts) {
    report.calibration_tokens += std::ssize(ids);
    longest = std::max<int64_t>(longest, std::ssize(ids));
  }
  std::vector<Tensor> hidden(options.texts.size());
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const std::span<const CheckpointLinear> of = of_layer(linears, layer);
    const bool was_done = done.has(layer);
    FinishedLayer finished;
    std::vector<const RecipeStage*> stages;  // that round its linears
    if (was_done) {
      finished = done.load(layer);
      ++report.resumed_layers;
    }
    std::optional<WatchedLayer> watched;
    if (calibrates) {
      watched.emplace(ctx, options.model, spec, layer, longest);
      if (was_done) restore_layer(*watched, options.recipe, of, finished);
    }
    if (!was_done) {
      finished = calibrates ? quantize_layer(*watched, options.recipe, of, options.texts, hidden)
                            : round_weights(checkpoint, spec, options.recipe, of);
      for (const FinishedLinear& one : finished.linears)
        for (const CheckpointLinear& linear : of)
          if (linear.name == one.report.name) stages.push_back(stages_of(options.recipe, linear).round);
    }
    const bool finds_scales = options.recipe.kv_cache && !was_done;
    if (calibrates && (layer + 1 < spec.num_layers || finds_scales)) {
      KvMaxima maxima;
      for (size_t text = 0; text < hidden.size(); ++text) {
        hidden[text] = watched->run(options.texts[text], hidden[text]);
        if (finds_scales) maxima.add(watched->cache(), std::ssize(options.texts[text]));
      }
      if (finds_scales)
        finished.kv_scales =
            maxima.scales(attention_name(of), *options.recipe.kv_cache, spec.checkpoint_dtype);
    }
    if (!was_done) done.save(layer, finished, stages);
    for (const FinishedLinear& one : finished.linears) report.linears.push_back(one.report);
    if (options.progress) options.progress(layer + 1, spec.num_layers);
  }
  if (const CheckpointLinear& head = linears.back(); head.is_changed()) {
    const RecipeStage* stage = stages_of(options.recipe, head).round;
    if (!done.has(head.layer))
      done.save(head.layer, round_weights(checkpoint, spec, options.recipe, {&head, 1}), {&stage, 1});
    report.linears.push_back(done.load(head.layer).linears.at(0).report);
    if (spec.tie_word_embeddings && options.say)
      options.say("lm_head: was the embedding's table, which stays as it is: it is stored beside it");
  }

  const std::filesystem::path unfinished = done.folder() / "result";
  std::filesystem::remove_all(unfinished);
  write_result(unfinished, options, checkpoint, done, linears, report);
  std::filesystem::rename(unfinished, options.output);
  return report;
}

}  // namespace

QuantizeReport quantize(const OpContext& ctx, const QuantizeOptions& options) {
  // A link to nothing is there too: the finished folder could not take its place.
  LADDER_CHECK(!std::filesystem::exists(std::filesystem::symlink_status(options.output)),
               "{}: is there already, expected a new folder", options.output.string());
  LADDER_CHECK(!options.recipe.needs_calibration() || !options.texts.empty(),
               "the recipe needs texts for calibration, there are none");
  {
    const DecoderSpec spec = load_decoder_spec(options.model);
    const Checkpoint checkpoint(options.model);
    std::vector<CheckpointLinear> linears = find_linears(checkpoint, spec);
    assign_stages(options.recipe, linears);
    check_weights(checkpoint, spec);
    if (options.recipe.rotation) check_can_be_rotated(options.model, spec);
  }

  const std::filesystem::path partial = options.output.string() + ".partial";
  const FinishedLayers done(partial, quantize_key(options));
  if (done.started_over() && options.say)
    options.say(fmt::format("{}: of another model, recipe or text: starting over", partial.string()));

  if (options.say && std::ranges::any_of(options.recipe.stages, has_group_order))
    options.say(
        "actorder group: compressed-tensors from 0.19 on, and with it transformers, refuse to read it; weight is as good, and all read it");

  QuantizeOptions of_model = options;
  if (options.recipe.rotation) {
    of_model.model = partial / "rotated";
    std::filesystem::remove_all(of_model.model);
    write_rotated_model(options.model, of_model.model, *options.recipe.rotation);
  }
  const QuantizeReport report = quantize_layers(ctx, of_model, done);
  std::filesystem::remove_all(partial);
  return report;
}

}  // namespace ladder
