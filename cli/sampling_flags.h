#pragma once
// The flags of SamplingParams, under vLLM's names.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "step3_sequence/sampling_params.h"

namespace ladder {

// add() declares the flags, params() gives what they say after parsing.
class SamplingFlags {
 public:
  // `defaults` is what --help shows.
  void add(CLI::App& app, const SamplingParams& defaults = {});

  // What open_model_folder() takes the defaults from (step6_engine/generation_config.h).
  const std::string& generation_config() const { return generation_config_; }

  // `defaults` with the flags that were given. Error naming the flag.
  SamplingParams params(SamplingParams defaults) const;

 private:
  std::string generation_config_ = "auto";
  std::vector<std::function<void(SamplingParams&)>> given_;  // one per flag that was given
};

}  // namespace ladder
