#pragma once
// Experimental: a dense model whose hidden states are rotated and whose answers are what they were (QuaRot: Ashkboos et al., 2024, arXiv
// 2404.00456; SpinQuant's R1: Liu et al., 2024, arXiv 2405.16406).
//
//   h = x Q in place of x, between all layers        Q: HadamardRotation, orthogonal
//
//   embedding             E Q
//   each norm             gain 1: |x Q| = |x|, and the gain moves into what reads the norm:
//   q, k, v, gate, up, routers, head     W diag(gain) Q
//   o, down               Q^T W
//
// Nothing is left to do when the model runs. A feature that is large in every token is spread over all, so inputs of q, k, v, gate and up can be
// rounded to four bits; what o and down take is not rotated: that would take a product with Q at run time.
#include <cstdint>
#include <filesystem>

#include "step2_model/decoder/decoder_spec.h"

namespace ladder {

// Error: a model whose norms have biases or stand behind the additions, biases of o or down, an embedding of another width, or a hidden
// size that HadamardRotation has not.
void check_can_be_rotated(const std::filesystem::path& model, const DecoderSpec& spec);

// Writes the folder: weights in the checkpoint's dtype, each rounded once, the head a tensor of its own. The model's linears are in memory in f32
// meanwhile. Error: as check_can_be_rotated, before anything is written.
void write_rotated_model(const std::filesystem::path& model, const std::filesystem::path& output,
                         uint64_t seed);

}  // namespace ladder
