#pragma once
// What an executor is made from: a model's folder, the runner's configuration, and the parts that the program
// may exchange.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step2_model/model_makers.h"
#include "step2_model/tokenizer/tokenizer.h"
#include "step4_runner/kv_cache_registry.h"
#include "step4_runner/logits_edits.h"
#include "step4_runner/proposer.h"
#include "step4_runner/runner_config.h"

namespace ladder {

struct ExecutorOptions;

// Empty: no logits processor beside what requests ask for themselves, and no drafts. A maker is called once,
// by the executor that it is handed to.
struct RunnerMakers {
  // A grammar, for one: the vocabulary is options.spec.vocab_size, what its tokens stand for says
  // options.tokenizer. The processor belongs to the first rank, which samples, and sees no warm-up step.
  // nullptr: none.
  std::function<std::shared_ptr<LogitsProcessor>(const ExecutorOptions& options)> logits_processor;
  // Error, by an executor that verifies no drafts: there is one.
  std::function<std::unique_ptr<Proposer>(const ExecutorOptions& options)> proposer;
  // Hears where each rank's keys and values lie; it outlives the executor. Error, by an executor that cannot show them: there is one.
  std::shared_ptr<KvCacheRegistry> kv_caches;
};

// Groups beyond one executor: the ranks that share out a stage's experts, where they are those of several executors of threads
// (RunnerConfig::expert_replicas).
struct ExpertRanks {
  std::vector<Communicator*> groups;  // of each rank of this executor; they outlive it
  // A rank of this executor has failed: the others' are released from what they wait in.
  std::function<void(const std::string& reason)> fail;
};

struct ExecutorOptions {
  std::filesystem::path model;
  DecoderSpec spec;
  RunnerConfig config;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of weights loaded; may be empty
  std::shared_ptr<const Tokenizer> tokenizer;                 // null: the model's folder has none
  ModelMakers model_makers;                                   // step2_model/model_makers.h
  RunnerMakers runner_makers;
  ExpertRanks expert_ranks = {};
};

}  // namespace ladder
