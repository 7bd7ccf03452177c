#include "step6_engine/load_engine.h"

#include "step1_layers/core/error.h"
#include "step2_model/model.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/memory.h"

namespace ladder {

ModelFolder open_model_folder(const std::filesystem::path& folder) {
  LADDER_CHECK(std::filesystem::is_directory(folder), "--model {}: there is no such folder", folder.string());
  ModelFolder result{load_decoder_spec(folder), nullptr};
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    result.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(folder));
    if (const auto eos = result.tokenizer->eos_token_id()) result.spec.add_eos_token(*eos);
  }
  return result;
}

RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec,
                                    MachineMemory memory) {
  RunnerConfig config = options.runner;
  config.dtype = options.dtype.value_or(spec.checkpoint_dtype);
  RunnerConfig resolved = resolve_runner_config(spec, config, memory);
  if (!options.enable_chunked_prefill &&
      resolved.batch.max_num_batched_tokens < resolved.batch.max_model_len) {
    LADDER_CHECK(config.batch.max_num_batched_tokens == 0,
                 "--max-num-batched-tokens {}: with --no-chunked-prefill a prompt is computed whole, "
                 "expected at least the {} tokens of the longest sequence (--max-model-len)",
                 resolved.batch.max_num_batched_tokens, resolved.batch.max_model_len);
    config.batch.max_model_len = resolved.batch.max_model_len;
    config.batch.max_num_batched_tokens = resolved.batch.max_model_len;
    resolved = resolve_runner_config(spec, config, memory);
  }
  return resolved;
}

RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec) {
  return resolved_runner_config(options, spec, memory_of(options.runner.device));
}

std::unique_ptr<Engine> load_engine(const EngineOptions& options, const ModelFolder& folder) {
  std::unique_ptr<LocalExecutor> executor = make_local_executor(
      options.model, folder.spec, resolved_runner_config(options, folder.spec), options.progress);
  SchedulerConfig scheduler;
  scheduler.batch = executor->config().batch;
  if (options.full_length_prompts) ++scheduler.batch.max_model_len;
  scheduler.vocab_size = folder.spec.vocab_size;
  scheduler.eos_token_ids = folder.spec.eos_token_ids;
  scheduler.policy = options.policy;
  scheduler.enable_prefix_caching = options.enable_prefix_caching;
  scheduler.enable_chunked_prefill = options.enable_chunked_prefill;
  scheduler.static_batching = options.static_batching;
  scheduler.recompute_everything = options.recompute_everything;
  return std::make_unique<Engine>(std::move(executor), std::move(scheduler), folder.tokenizer);
}

}  // namespace ladder
