#pragma once
// From a folder and a few switches to an engine that is ready to run.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/tokenizer/tokenizer.h"
#include "step4_runner/memory.h"
#include "step4_runner/runner_config.h"
#include "step6_engine/engine.h"
#include "step6_engine/engine_makers.h"

namespace ladder {

struct EngineOptions {
  std::filesystem::path model;
  std::optional<DType> dtype;  // none: what config.json says the weights are
  // `dtype` is set from the above. A max_num_batched_tokens that is not set is at least max_model_len where
  // prompts must be computed whole.
  RunnerConfig runner;
  SchedulingPolicy policy = SchedulingPolicy::fcfs;
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  // How prompts share a step, and what an admission leaves free: as in SchedulerConfig.
  int64_t max_num_partial_prefills = SchedulerConfig{}.max_num_partial_prefills;
  int64_t max_long_partial_prefills = SchedulerConfig{}.max_long_partial_prefills;
  int64_t long_prefill_token_threshold = SchedulerConfig{}.long_prefill_token_threshold;
  double watermark = SchedulerConfig{}.watermark;
  int64_t max_logprobs = SchedulerConfig{}.max_logprobs;  // of a token, that a request may ask for
  bool static_batching = false;
  bool recompute_everything = false;
  // Prompts may fill max_model_len: one more token is sampled, and never computed. For scoring.
  bool full_length_prompts = false;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of weights loaded; may be empty
  EngineMakers makers;
};

// What is read of a folder before any weights are.
struct ModelFolder {
  DecoderSpec spec;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: there is no tokenizer.json
  SamplingParams default_sampling;             // of requests that do not say otherwise
};
// `generation_config` as in generation_config.h. Error: missing or malformed files.
ModelFolder open_model_folder(const std::filesystem::path& folder,
                              const std::string& generation_config = "auto");

// The runner's configuration, resolved (step4_runner/kv_cache_size.h). Error: sizes that this model or this
// machine cannot hold.
RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec,
                                    MachineMemory memory);
// With the memory that the device has.
RunnerConfig resolved_runner_config(const EngineOptions& options, const DecoderSpec& spec);

// What an executor of these options is made from.
ExecutorOptions executor_options(const EngineOptions& options, const ModelFolder& folder,
                                 const RunnerConfig& config);

// Loads the weights, allocates the KV cache, warms up.
std::unique_ptr<Engine> load_engine(const EngineOptions& options, const ModelFolder& folder);

}  // namespace ladder
