#pragma once
// 7.9: replicas that split the width of every expert over all of their ranks, where each would else have whole copies.
//
//                     replica 0           replica 1
//   attention         its requests        its requests             as without
//   router            its tokens          its tokens
//   all experts       half of each        half of each
//   its tokens a b    a b c  ------------ a b c    all to all ranks: dispatch
//   and c             half a, b, c        half a, b, c
//                     a b    ------------ c        the halves add up where the token came from: combine
//
// All ranks have the same work whatever the router chooses, and a place for each expert is not needed; but every token goes
// everywhere, and a rank's part of a product becomes narrow. (vLLM: data parallelism without --enable-expert-parallel)
#include <cstdint>
#include <memory>

#include "step2_model/decoder/moe_mlp.h"
#include "step2_model/model_makers.h"

namespace ladder {

// A maker of MLPs (ModelMakers::mlp) for ranks with a group of ParallelContext::ep: of all replicas, in lockstep
// (step7_parallel/data/lockstep_group.h). Layers without experts, and all where there is no such group, are what the empty maker makes.
// Error: the ranks do not divide an expert's width.
std::unique_ptr<Mlp> make_split_experts_mlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                            DType dtype, const ModelMakers& makers);

}  // namespace ladder
