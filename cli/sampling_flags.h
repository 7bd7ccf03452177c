#pragma once
// The flags of SamplingParams, under vLLM's names.
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "step3_sequence/sampling_params.h"

namespace ladder {

// add() declares the flags, params() reads them after parsing.
class SamplingFlags {
 public:
  void add(CLI::App& app, const SamplingParams& defaults = {});
  SamplingParams params() const;  // Error naming the flag

 private:
  SamplingParams params_;
  std::string seed_;
  std::vector<std::string> logit_bias_;
  std::vector<std::string> stop_token_ids_, allowed_token_ids_, logprob_token_ids_;
};

}  // namespace ladder
