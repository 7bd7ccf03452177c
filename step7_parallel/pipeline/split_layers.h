#pragma once
// Which layers each stage of a pipeline gets.
//
// A pipeline runs as fast as its slowest stage. The layers of a decoder are all alike, but the last stage also has the
// LM head, as much work as two or three layers where the vocabulary is large and the model small. (The embedding, at
// the other end, reads one row for each token: no work beside that of a layer.)
//
//   Llama-3.1-8B, 2 stages: the head reads 2.4 times what a layer reads
//     even    16 | 16 + 2.4    the first stage waits for 13 % of the time
//     by cost 17 | 15 + 2.4    for 2 %
//
// vLLM splits evenly and takes VLLM_PP_LAYER_PARTITION from whoever knows better.
#include <cstdint>
#include <vector>

#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// Parameters that one token's matrix products read: of a layer, and of the LM head (tied or not).
struct LayerCosts {
  int64_t layer = 0;
  int64_t head = 0;
};
LayerCosts layer_costs(const DecoderSpec& spec);

// The layers at which the stages end (RunnerConfig::stage_ends), so that the most expensive stage costs the least; among
// such splits the one with the most layers in the last stage. The others are even; what is left over goes to the last of
// them, one layer each: the middle of the pipeline, where no table takes memory from the KV cache. No stage is empty.
// Error: stages < 1 or > spec.num_layers.
std::vector<int64_t> split_layers(const DecoderSpec& spec, int stages);

// The most expensive stage over the mean of all: 1 is a perfect split, and 1 - 1 / this the share of time that the stages
// wait for it on the average.
double imbalance(const DecoderSpec& spec, const std::vector<int64_t>& stage_ends);

}  // namespace ladder
