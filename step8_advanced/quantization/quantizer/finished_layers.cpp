#include "step8_advanced/quantization/quantizer/finished_layers.h"

#include <algorithm>
#include <map>

#include "step1_layers/core/error.h"
#include "step2_model/checkpoint/safetensors.h"
#include "step2_model/json.h"

namespace ladder {
namespace {

constexpr std::string_view kInMemory = "in memory.";  // names of what the result does not have

Json to_json(const FinishedLinear& one) {
  const LinearReport& report = one.report;
  const QuantizedWeight& weight = one.linear.weight;
  return {{"name", report.name},
          {"method", report.method},
          {"scheme", report.scheme},
          {"error", report.error},
          {"calibrated", report.calibrated},
          {"unreached", report.unreached},
          {"damping", report.damping},
          {"dead_columns", report.dead_columns},
          {"seconds", report.seconds},
          {"type", static_cast<int>(weight.type)},
          {"n", weight.n},
          {"k", weight.k},
          {"group_size", weight.group_size},
          {"global_scale", one.linear.global_scale},
          {"input_scale", one.linear.input_scale}};
}

FinishedLinear from_json(const Json& json, const std::map<std::string, Tensor>& tensors) {
  FinishedLinear one;
  LinearReport& report = one.report;
  report.name = json.at("name").get<std::string>();
  report.method = json.at("method").get<std::string>();
  report.scheme = json.at("scheme").get<std::string>();
  report.error = json.at("error").get<double>();
  report.calibrated = json.at("calibrated").get<bool>();
  report.unreached = json.at("unreached").get<bool>();
  report.damping = json.at("damping").get<double>();
  report.dead_columns = json.at("dead_columns").get<int64_t>();
  report.seconds = json.at("seconds").get<double>();
  QuantizedWeight& weight = one.linear.weight;
  weight.type = static_cast<WeightCodes>(json.at("type").get<int>());
  weight.n = json.at("n").get<int64_t>();
  weight.k = json.at("k").get<int64_t>();
  weight.group_size = json.at("group_size").get<int64_t>();
  one.linear.global_scale = json.at("global_scale").get<float>();
  one.linear.input_scale = json.at("input_scale").get<float>();
  const auto find = [&](const char* what) {
    const auto found = tensors.find(fmt::format("{}{}.{}", kInMemory, report.name, what));
    return found == tensors.end() ? Tensor() : found->second;
  };
  weight.codes = find("codes");
  weight.scales = find("scales");
  weight.zeros = find("zeros");
  weight.columns = find("columns");
  one.linear.g_idx = find("g_idx");
  if (!weight.codes.defined()) {
    const auto found = tensors.find(report.name + ".weight");
    LADDER_CHECK(found != tensors.end(), "{}: no codes and no weight", report.name);
    one.dense = found->second;
    return one;
  }
  LADDER_CHECK(weight.scales.defined(), "{}: no scales", report.name);
  return one;
}

constexpr std::string_view kUnfinishedKey = "key.json.writing";  // a run that was stopped at once

std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  return paths;
}

bool holds_nothing_else(const std::filesystem::path& folder, std::string_view name) {
  return std::ranges::all_of(paths_in(folder), [&](const auto& path) { return path.filename() == name; });
}

}  // namespace

FinishedLayers::FinishedLayers(std::filesystem::path folder, const std::string& key)
    : folder_(std::move(folder)) {
  const std::filesystem::path key_file = folder_ / "key.json";
  if (std::filesystem::exists(folder_)) {
    LADDER_CHECK(std::filesystem::is_directory(folder_), "{}: expected a folder of ours", folder_.string());
    const bool is_ours = std::filesystem::exists(key_file);
    LADDER_CHECK(is_ours || holds_nothing_else(folder_, kUnfinishedKey),
                 "{}: not a folder of finished layers, so it is left as it is", folder_.string());
    if (is_ours && read_text_file(key_file) != key) {
      started_over_ = true;
      // The key stays until the new one takes its place: who is stopped in between finds a folder of ours.
      // A layer counts as finished where its .json is, so these go first.
      std::vector<std::filesystem::path> paths = paths_in(folder_);
      std::ranges::partition(paths, [](const auto& path) { return path.extension() == ".json"; });
      for (const std::filesystem::path& path : paths)
        if (path != key_file) std::filesystem::remove_all(path);
    }
  }
  std::filesystem::create_directories(folder_);
  write_file_atomically(key_file, key);
}

std::filesystem::path FinishedLayers::file(int64_t layer, const char* extension) const {
  return folder_ / fmt::format("layer-{:05}.{}", layer, extension);
}

bool FinishedLayers::has(int64_t layer) const {
  return std::filesystem::exists(file(layer, "json"));
}

FinishedLayer FinishedLayers::load(int64_t layer) const {
  const std::filesystem::path path = file(layer, "json");
  const SafetensorsFile tensors_file(file(layer, "safetensors"));
  std::map<std::string, Tensor> tensors;
  for (const SafetensorsInfo& info : tensors_file.tensors()) tensors[info.name] = tensors_file.tensor(info);
  FinishedLayer finished;
  try {
    const Json json = load_json(path);
    for (const Json& one : json.at("linears")) finished.linears.push_back(from_json(one, tensors));
    for (const Json& name : json.at("norms"))
      finished.norms.push_back({name.get<std::string>(), tensors.at(name.get<std::string>())});
  } catch (const std::exception& error) {
    fail("{}: damaged ({}); remove {} to start over", path.string(), error.what(), folder_.string());
  }
  return finished;
}

void FinishedLayers::save(int64_t layer, const FinishedLayer& finished,
                          std::span<const RecipeStage* const> stages) const {
  std::vector<NamedTensor> tensors = finished.norms;
  tensors.insert(tensors.end(), finished.kv_scales.begin(), finished.kv_scales.end());
  Json reports = Json::array(), norms = Json::array();
  for (const NamedTensor& norm : finished.norms) norms.push_back(norm.name);
  for (size_t i = 0; i < finished.linears.size(); ++i) {
    const FinishedLinear& one = finished.linears[i];
    const std::string& name = one.report.name;
    if (one.dense.defined()) {
      tensors.push_back({name + ".weight", one.dense});
    } else {
      for (NamedTensor& stored : stored_tensors(name, one.linear, *stages[i]->linear))
        tensors.push_back(std::move(stored));
    }
    const QuantizedWeight& weight = one.linear.weight;
    for (const auto& [what, tensor] : {std::pair{"codes", weight.codes},
                                       {"scales", weight.scales},
                                       {"zeros", weight.zeros},
                                       {"columns", weight.columns},
                                       {"g_idx", one.linear.g_idx}})
      if (tensor.defined()) tensors.push_back({fmt::format("{}{}.{}", kInMemory, name, what), tensor});
    reports.push_back(to_json(one));
  }
  write_safetensors_file(file(layer, "safetensors"), tensors, {});
  write_file_atomically(file(layer, "json"), Json({{"linears", reports}, {"norms", norms}}).dump(1) + "\n");
}

std::vector<NamedTensor> FinishedLayers::stored(int64_t layer) const {
  const SafetensorsFile from(file(layer, "safetensors"));
  std::vector<NamedTensor> tensors;
  for (const SafetensorsInfo& info : from.tensors())
    if (!info.name.starts_with(kInMemory)) tensors.push_back({info.name, from.tensor(info)});
  return tensors;
}

}  // namespace ladder
