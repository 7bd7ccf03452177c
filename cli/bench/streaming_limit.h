#pragma once
// What a GPU's memory allows. A decoding step reads every weight once, and every sequence's keys and values
// once; no arithmetic of it takes as long. The rate is that of a device-to-device copy, measured in the same
// run: the datasheet's is never reached.
#include <cstdint>
#include <functional>
#include <vector>

#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/runner_config.h"
#include "step6_engine/request.h"

namespace ladder {

// Bytes read and written per second by a copy of 4 GiB (or of a quarter of what is free), the median of
// eleven. 0 on the CPU.
double copy_bandwidth(Device device);

// The share of a layer's experts that a step of so many tokens touches: as it was counted (touched_experts.h), or as it is
// expected where each token goes to any of them alike; a router that prefers some touches fewer.
using TouchedShare = std::function<double(int64_t tokens)>;
TouchedShare expected_share(const ExpertsSpec& experts);

// What a step of decoding with so many tokens reads of the whole model's weights, as they are stored: all but the embedding
// table, of which it takes single rows, unless the table is the LM head too, and of experts those that it touches.
double streamed_weight_bytes(const DecoderSpec& spec, const RunnerConfig& config, const TouchedShare& touched,
                             int64_t tokens);

// What decoding these requests reads: the weights once for every token of the longest output, and
// the keys and values before every token. Their prompts are not counted: computing them is bound by
// arithmetic.
double streamed_bytes(const std::vector<Request>& requests, const DecoderSpec& spec,
                      const RunnerConfig& config, const TouchedShare& touched);

}  // namespace ladder
