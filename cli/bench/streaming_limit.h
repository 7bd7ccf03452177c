#pragma once
// What a GPU's memory allows. A decoding step reads every weight once, and every sequence's keys and values
// once; no arithmetic of it takes as long. The rate is that of a device-to-device copy, measured in the same
// run: the datasheet's is never reached.
#include <cstdint>
#include <vector>

#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/runner_config.h"
#include "step6_engine/request.h"

namespace ladder {

// Bytes read and written per second by a copy of 4 GiB (or of a quarter of what is free), the median of
// eleven. 0 on the CPU.
double copy_bandwidth(Device device);

// What a step of decoding with so many tokens reads of the whole model's weights, as they are stored: all but the embedding
// table, of which it takes single rows, unless the table is the LM head too. Of experts as many as the tokens touch on
// average if each goes to any of them alike: a router that prefers some touches fewer.
double streamed_weight_bytes(const DecoderSpec& spec, const RunnerConfig& config, int64_t tokens);

// What decoding these requests reads: the weights once for every token of the longest output, and
// the keys and values before every token. Their prompts are not counted: computing them is bound by
// arithmetic.
double streamed_bytes(const std::vector<Request>& requests, const DecoderSpec& spec,
                      const RunnerConfig& config);

}  // namespace ladder
