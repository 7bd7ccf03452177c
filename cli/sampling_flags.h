#pragma once
// The flags of SamplingParams, under vLLM's names.
#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

#include "step3_sequence/sampling_params.h"

namespace ladder {

// add() declares the flags, params() gives what they say after parsing.
class SamplingFlags {
 public:
  // `defaults` is what --help shows.
  void add(CLI::App& app, const SamplingParams& defaults = {});

  // `defaults` with the flags that were given. Error naming the flag.
  SamplingParams params(SamplingParams defaults) const;

 private:
  std::vector<std::function<void(SamplingParams&)>> given_;  // one per flag that was given
};

}  // namespace ladder
