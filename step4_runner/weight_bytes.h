#pragma once
// What the weights take, before any is loaded: every parameter that a rank's model will have, counted from the model's
// sizes and from how its linears are stored (RunnerConfig::linear_method).
#include <cstdint>

#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/rank_grid.h"
#include "step4_runner/runner_config.h"

namespace ladder {

// Bytes of one rank, by how a step of decoding reads them.
struct WeightBytes {
  int64_t whole = 0;    // whole: linears, norms, routers, the head
  int64_t experts = 0;  // of the routed experts those that the step's tokens chose
  int64_t looked_up =
      0;  // a row for each token: the embedding where it is not the head too, positions, the rotary table

  int64_t total() const { return whole + experts + looked_up; }  // what Model::weight_bytes() will say
};

// Error: a linear's format that the method refuses.
WeightBytes weight_bytes(const DecoderSpec& spec, const RunnerConfig& config, GridPlace place);

}  // namespace ladder
