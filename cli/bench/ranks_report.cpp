#include "cli/bench/ranks_report.h"

#include <algorithm>

#include "cli/run_requests.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"

namespace ladder {

double communication_share(const EngineMetrics& metrics) {
  const double seconds = metrics.execute_seconds - metrics.stage_wait_seconds;
  return seconds > 0.0 ? metrics.communicate_seconds / seconds : 0.0;
}

double bubble_share(const Measurement& measurement) {
  const double busy = measurement.engine.execute_seconds - measurement.engine.stage_wait_seconds;
  return measurement.seconds > 0.0 ? std::clamp(1.0 - busy / measurement.seconds, 0.0, 1.0) : 0.0;
}

std::vector<std::pair<std::string, std::string>> describe_shares(const RunnerConfig& config,
                                                                 const Measurement& measurement) {
  std::vector<std::pair<std::string, std::string>> lines;
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100.0 * share); };
  if (config.tensor_parallel_size > 1 && config.device.is_cpu())
    lines.push_back({"communication's share of a step", percent(communication_share(measurement.engine))});
  if (config.pipeline_parallel_size > 1)
    lines.push_back(
        {"bubbles: share of time without work for the last stage", percent(bubble_share(measurement))});
  return lines;
}

DecoderSpec model_of_a_rank(DecoderSpec spec, int ranks) {
  spec.num_heads /= ranks;
  spec.num_kv_heads = std::max<int64_t>(spec.num_kv_heads / ranks, 1);
  spec.intermediate_size /= ranks;
  spec.experts.intermediate_size /= ranks;
  spec.experts.shared_intermediate_size /= ranks;
  spec.vocab_size = (spec.vocab_size + ranks - 1) / ranks;
  return spec;
}

EngineOptions options_of_a_rank(EngineOptions options) {
  RunnerConfig& runner = options.runner;
  LADDER_CHECK(!runner.device.is_cpu(),
               "--communication-share: on a CPU the share is measured anyway: expected GPUs");
  LADDER_CHECK(runner.tensor_parallel_size > 1 && num_ranks(runner) == runner.tensor_parallel_size &&
                   runner.decode_context_parallel_size == 1 && !runner.expert_parallel,
               "--communication-share: expected --tensor-parallel-size 2 or more, and no other ranks");
  runner.tensor_parallel_size = 1;
  runner.load_format = LoadFormat::dummy;
  options.makers.executor = make_executor_in_process;
  return options;
}

Measurement measure_a_rank(const EngineOptions& options, const ModelFolder& folder,
                           const std::vector<Request>& warm_up, const std::vector<Request>& requests) {
  ModelFolder part = folder;
  part.spec = model_of_a_rank(folder.spec, options.runner.tensor_parallel_size);
  const std::unique_ptr<Engine> engine = load_engine_with_progress(options_of_a_rank(options), part);
  engine->generate(warm_up);
  return measure(*engine, requests, "without communication");
}

std::pair<std::string, std::string> describe_communication(double with, double without) {
  return {"communication's share of a step",
          fmt::format("{:.1f} %: {} in place of {}", 100.0 * (1.0 - without / with), format_seconds(with),
                      format_seconds(without))};
}

std::vector<RankCapacity> rank_capacities(const EngineOptions& options, const DecoderSpec& spec,
                                          MachineMemory memory) {
  std::vector<RankCapacity> capacities;
  for (const int ranks : {1, 2, 4, 8}) {
    RankCapacity& capacity = capacities.emplace_back();
    capacity.ranks = ranks;
    EngineOptions with = options;
    with.runner.tensor_parallel_size = ranks;
    try {
      const RunnerConfig config = resolved_runner_config(with, spec, memory);
      const MemoryPlan plan = predict_rank_memory(spec, config, {});
      const int64_t tokens = config.batch.num_kv_blocks * config.batch.block_size;
      capacity.weight_bytes = plan.weights;
      capacity.kv_bytes_per_token = plan.kv / tokens;
      capacity.cached_tokens = tokens;
    } catch (const Error& error) {
      capacity.refused = error.what();
    }
  }
  return capacities;
}

std::string describe_capacities(const std::vector<RankCapacity>& capacities) {
  std::vector<std::vector<std::string>> table{{"tensor-parallel ranks", "weights of a rank",
                                               "KV cache of a token, on a rank", "tokens in the cache"}};
  for (const RankCapacity& one : capacities) {
    table.push_back({std::to_string(one.ranks)});
    if (one.refused.empty())
      table.back().insert(table.back().end(),
                          {format_bytes(one.weight_bytes), format_bytes(one.kv_bytes_per_token),
                           format_count(one.cached_tokens)});
    else
      table.back().insert(table.back().end(), {"-", "-", "-"});
  }
  return format_table(table);
}

}  // namespace ladder
