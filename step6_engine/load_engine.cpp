#include "step6_engine/load_engine.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step2_model/model.h"
#include "step4_runner/local_executor.h"
#include "step4_runner/memory.h"

namespace ladder {

ModelFolder open_model_folder(const std::filesystem::path& folder) {
  LADDER_CHECK(std::filesystem::is_directory(folder), "--model {}: there is no such folder", folder.string());
  ModelFolder result{load_decoder_spec(folder), nullptr};
  if (std::filesystem::exists(folder / "tokenizer.json"))
    result.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(folder));
  return result;
}

BatchLimits default_batch_limits(DeviceType device) {
  if (device == DeviceType::cuda) return {256, 8192};
  return {RunnerConfig{}.max_num_seqs, RunnerConfig{}.max_num_batched_tokens};
}

RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec,
                                    MachineMemory memory) {
  RunnerConfig config = options.runner;
  config.dtype = options.dtype.value_or(spec.checkpoint_dtype);
  const bool open_budget = config.max_num_batched_tokens == 0;
  const BatchLimits limits = default_batch_limits(config.device.type);
  if (config.max_num_seqs == 0) config.max_num_seqs = limits.max_num_seqs;
  if (open_budget) config.max_num_batched_tokens = limits.max_num_batched_tokens;
  // A step has room for a token of every sequence.
  if (open_budget)
    config.max_num_batched_tokens = std::max(config.max_num_batched_tokens, config.max_num_seqs);
  RunnerConfig resolved = resolve_runner_config(spec, config, memory);
  if (!options.enable_chunked_prefill && resolved.max_num_batched_tokens < resolved.max_model_len) {
    LADDER_CHECK(open_budget,
                 "--max-num-batched-tokens {}: with --no-chunked-prefill a prompt is computed whole, "
                 "expected at least the {} tokens of the longest sequence (--max-model-len)",
                 resolved.max_num_batched_tokens, resolved.max_model_len);
    config.max_model_len = resolved.max_model_len;
    config.max_num_batched_tokens = resolved.max_model_len;
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
  const RunnerConfig& runner = executor->config();
  SchedulerConfig scheduler;
  scheduler.max_num_seqs = runner.max_num_seqs;
  scheduler.max_num_batched_tokens = runner.max_num_batched_tokens;
  scheduler.max_model_len = runner.max_model_len + (options.full_length_prompts ? 1 : 0);
  scheduler.vocab_size = folder.spec.vocab_size;
  scheduler.block_size = runner.block_size;
  scheduler.num_blocks = runner.num_kv_blocks;
  scheduler.eos_token_ids = folder.spec.eos_token_ids;
  scheduler.policy = options.policy;
  scheduler.enable_prefix_caching = options.enable_prefix_caching;
  scheduler.enable_chunked_prefill = options.enable_chunked_prefill;
  scheduler.static_batching = options.static_batching;
  scheduler.recompute_everything = options.recompute_everything;
  return std::make_unique<Engine>(std::move(executor), std::move(scheduler), folder.tokenizer);
}

}  // namespace ladder
