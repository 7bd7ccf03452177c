#include "step6_engine/load_engine.h"

#include "step1_layers/core/error.h"
#include "step2_model/model.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/memory.h"
#include "step4_runner/rank_grid.h"
#include "step6_engine/generation_config.h"

namespace ladder {

ModelFolder open_model_folder(const std::filesystem::path& folder, const std::string& generation_config) {
  LADDER_CHECK(std::filesystem::is_directory(folder), "--model {}: there is no such folder", folder.string());
  ModelFolder result{load_decoder_spec(folder), nullptr, default_sampling_params(folder, generation_config)};
  // One of another kind is loaded too: the error of that says how to make a tokenizer.json.
  const auto has = [&folder](const char* name) { return std::filesystem::exists(folder / name); };
  if (has("tokenizer.json") || has("tokenizer.model") || has("merges.txt")) {
    result.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(folder));
    if (const auto eos = result.tokenizer->eos_token_id()) result.spec.add_eos_token(*eos);
  }
  return result;
}

RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec,
                                    MachineMemory memory) {
  RunnerConfig config = options.runner;
  config.dtype = options.dtype.value_or(spec.checkpoint_dtype);
  if (!spec.quantization_config.empty() && !config.linear_method)
    config.linear_method = options.makers.model.linear_method;
  const int stages = config.pipeline_parallel_size;
  if (stages > 1 && stages <= spec.num_layers && config.stage_ends.empty() && options.makers.split_layers)
    config.stage_ends = options.makers.split_layers(spec, stages);
  RunnerConfig resolved = resolve_runner_config(spec, config, memory);
  // What the scheduler calls max_model_len, see scheduler_config().
  const int64_t longest = resolved.batch.max_model_len + (options.full_length_prompts ? 1 : 0);
  if (!options.enable_chunked_prefill && resolved.batch.max_num_batched_tokens < longest) {
    LADDER_CHECK(config.batch.max_num_batched_tokens == 0,
                 "--max-num-batched-tokens {}: with --no-chunked-prefill a prompt is computed whole, "
                 "expected at least {} tokens, as --max-model-len is {}",
                 resolved.batch.max_num_batched_tokens, longest, resolved.batch.max_model_len);
    config.batch.max_model_len = resolved.batch.max_model_len;
    config.batch.max_num_batched_tokens = longest;
    resolved = resolve_runner_config(spec, config, memory);
  }
  return resolved;
}

RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec) {
  return resolved_runner_config(options, spec, memory_of(options.runner.device));
}

ExecutorOptions executor_options(const EngineOptions& options, const ModelFolder& folder,
                                 const RunnerConfig& config) {
  return {.model = options.model,
          .spec = folder.spec,
          .config = config,
          .progress = options.progress,
          .tokenizer = folder.tokenizer,
          .model_makers = options.makers.model,
          .runner_makers = options.makers.runner};
}

MadeExecutor make_executor_in_process(const ExecutorOptions& options) {
  std::unique_ptr<LocalExecutor> executor = make_local_executor(options);
  const BatchConfig batch = executor->config().batch;
  return {std::move(executor), batch};
}

namespace {

SchedulerConfig scheduler_config(const EngineOptions& options, const DecoderSpec& spec,
                                 const BatchConfig& batch, int pipeline_depth) {
  SchedulerConfig config;
  config.batch = batch;
  if (options.full_length_prompts) ++config.batch.max_model_len;
  config.vocab_size = spec.vocab_size;
  config.eos_token_ids = spec.eos_token_ids;
  config.policy = options.policy;
  config.enable_prefix_caching = options.enable_prefix_caching;
  config.enable_chunked_prefill = options.enable_chunked_prefill;
  config.max_num_partial_prefills = options.max_num_partial_prefills;
  config.max_long_partial_prefills = options.max_long_partial_prefills;
  config.long_prefill_token_threshold = options.long_prefill_token_threshold;
  config.watermark = options.watermark;
  config.max_logprobs = options.max_logprobs;
  config.pipeline_depth = pipeline_depth;
  config.static_batching = options.static_batching;
  config.recompute_everything = options.recompute_everything;
  return config;
}

}  // namespace

std::unique_ptr<Engine> load_engine(const EngineOptions& options, const ModelFolder& folder) {
  const RunnerConfig config = resolved_runner_config(options, folder.spec);
  const int pipeline_depth = config.pipeline_parallel_size > 1 ? max_steps_in_flight(config) : 1;
  ExecutorOptions parts = executor_options(options, folder, config);
  MadeKvConnector kv;
  if (options.makers.kv_connector) kv = options.makers.kv_connector(parts);
  parts.runner_makers.kv_caches = kv.kv_caches;
  MadeExecutor made = options.makers.executor(parts);
  SchedulerConfig scheduler = scheduler_config(options, folder.spec, made.batch, pipeline_depth);
  if (made.phases == nullptr)
    return std::make_unique<Engine>(std::move(made.executor), std::move(scheduler), folder.tokenizer,
                                    std::move(kv.connector));
  LADDER_CHECK(
      kv.connector == nullptr,
      "lanes for prompts and answers within one engine: a KV connector hands prompts to another one");
  return std::make_unique<Engine>(std::move(made.phases), std::move(scheduler), folder.tokenizer);
}

}  // namespace ladder
