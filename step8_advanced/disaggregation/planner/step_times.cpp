#include "step8_advanced/disaggregation/planner/step_times.h"

#include <algorithm>
#include <fstream>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"

namespace ladder {

namespace {

constexpr int64_t kMost = int64_t{1} << 50;  // sums of a few such still fit

MeasuredSteps read_row(const Json& row, const std::string& what) {
  const auto count = [&](const char* name, int64_t least) {
    return json_int(json_at(row, name, what), what + "." + name, least, kMost);
  };
  MeasuredSteps steps;
  steps.num_steps = count("steps", 1);
  steps.work = {count("sequences", 1), count("prompt_tokens", 0), count("kv_tokens", 0),
                count("prompt_pairs", 0)};
  steps.seconds = json_number(json_at(row, "seconds", what), what + ".seconds");
  LADDER_CHECK(steps.seconds > 0, "{}.seconds is {}: expected more than 0", what, steps.seconds);
  if (const Json* source = json_find(row, "source", what))
    steps.source = json_string(*source, what + ".source");
  return steps;
}

const Json& list_at(const Json& object, const char* name, const std::string& what) {
  const Json& list = json_at(object, name, what);
  LADDER_CHECK(list.is_array() && !list.empty(), "{}.{}: expected a list that is not empty", what, name);
  return list;
}

}  // namespace

StepTimes load_step_times(const std::filesystem::path& file) {
  const Json json = load_json(file);
  const std::string what = file.string();
  StepTimes times;
  times.model = json_string(json_at(json, "model", what), what + ": model");
  times.device = json_string(json_at(json, "device", what), what + ": device");
  times.command = json_string(json_at(json, "command", what), what + ": command");
  times.kv_bytes_per_token =
      json_int(json_at(json, "kv_bytes_per_token", what), what + ": kv_bytes_per_token", 1, 1 << 30);
  times.num_layers = json_int(json_at(json, "num_layers", what), what + ": num_layers", 1, 1 << 16);
  int64_t index = 0;
  for (const Json& entry : list_at(json, "engines", what)) {
    const std::string where = fmt::format("{}: engines[{}]", what, index++);
    MeasuredEngine engine;
    engine.tensor_parallel_size = static_cast<int>(
        json_int(json_at(entry, "tensor_parallel_size", where), where + ".tensor_parallel_size", 1, 1 << 10));
    engine.num_kv_tokens = json_int(json_at(entry, "kv_tokens", where), where + ".kv_tokens", 1, kMost);
    engine.max_num_seqs =
        json_int(json_at(entry, "max_num_seqs", where), where + ".max_num_seqs", 1, 1 << 16);
    LADDER_CHECK(std::ranges::find(times.engines, engine.tensor_parallel_size,
                                   &MeasuredEngine::tensor_parallel_size) == times.engines.end(),
                 "{}.tensor_parallel_size: {} is there twice", where, engine.tensor_parallel_size);
    for (const Json& row : list_at(entry, "steps", where))
      engine.steps.push_back(read_row(row, fmt::format("{}.steps[{}]", where, engine.steps.size())));
    times.engines.push_back(std::move(engine));
  }
  return times;
}

void save_step_times(const std::filesystem::path& file, const StepTimes& times) {
  OrderedJson engines = OrderedJson::array();
  for (const MeasuredEngine& engine : times.engines) {
    OrderedJson rows = OrderedJson::array();
    for (const MeasuredSteps& steps : engine.steps) {
      OrderedJson row{{"steps", steps.num_steps},
                      {"sequences", steps.work.num_sequences},
                      {"prompt_tokens", steps.work.num_prompt_tokens},
                      {"kv_tokens", steps.work.num_kv_tokens},
                      {"prompt_pairs", steps.work.num_prompt_pairs},
                      {"seconds", steps.seconds}};
      if (!steps.source.empty()) row["source"] = steps.source;
      rows.push_back(std::move(row));
    }
    engines.push_back({{"tensor_parallel_size", engine.tensor_parallel_size},
                       {"kv_tokens", engine.num_kv_tokens},
                       {"max_num_seqs", engine.max_num_seqs},
                       {"steps", std::move(rows)}});
  }
  const OrderedJson json{{"model", times.model},           {"device", times.device},
                         {"command", times.command},       {"kv_bytes_per_token", times.kv_bytes_per_token},
                         {"num_layers", times.num_layers}, {"engines", std::move(engines)}};
  std::ofstream out(file);
  out << json.dump(1) << "\n";
  out.flush();
  LADDER_CHECK(out.good(), "{}: cannot be written", file.string());
}

}  // namespace ladder
