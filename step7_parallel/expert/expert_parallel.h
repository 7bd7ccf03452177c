#pragma once
// 7.9: the experts of a layer shared out over the tensor-parallel ranks of a stage, each one whole on one of them.
//
//                     rank 0                      rank 1
//   attention         heads 0 to 3                heads 4 to 7              as without
//   router            all experts                 all experts               both choose the same
//   experts           0 to 3 of 8, whole          4 to 7                    instead of half of each
//   token of 1, 6     its expert 1                its expert 6
//   the sum                        one all-reduce                           as without
//
// All ranks have all tokens, so nothing need be sent to an expert: a rank leaves out what is elsewhere, and the sum that tensor
// parallelism takes anyway puts the parts together. Splitting widths, every rank reads a piece of every touched expert; here
// it reads whole ones, whose products are larger, and a width need not divide. But the ranks wait for the one whose experts
// were asked for most.
//
// Replicas of an engine that step together (step7_parallel/data/lockstep_group.h) share the experts out over all of their
// ranks, and there tokens do have to be sent: by expert_exchange.h. (Lepikhin et al., "GShard", 2020; vLLM's --enable-expert-parallel)
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/moe_mlp.h"
#include "step2_model/model_makers.h"

namespace ladder {

// Of every expert the number under which this rank has it, counted from 0, or -1: it is on another rank.
std::vector<int32_t> expert_map(int64_t num_experts, int64_t ranks, int64_t rank);

// What MoeMlp calls on ranks of expert_group() where replicas share out experts. `rank_of`: as of an exchange (expert_exchange.h).
// On GPUs all ranks make it at the same time.
ExpertRun bring_to_ranks(const OpContext& ctx, const DecoderSpec& spec, DType dtype,
                         std::vector<int32_t> rank_of);
// The same for so many experts, as expert_map says; empty where no replicas do, and tokens stay where they are.
ExpertRun bring_to_experts(const OpContext& ctx, const DecoderSpec& spec, DType dtype, int64_t num_experts);
// `run` without the rows that only fill up: on GPUs, where replicas fill up to equal numbers. Empty stays empty.
ExpertRun without_spare_rows(const OpContext& ctx, ExpertRun run);

// A maker of MLPs (ModelMakers::mlp): those with experts have the rank's share of them (RunnerConfig::expert_parallel), others
// are what they are without. Where a stage has one rank it makes what the empty maker makes. With a group of
// ParallelContext::ep, of the ranks of all replicas, its ranks share them out; else the tensor-parallel ones do.
std::unique_ptr<Mlp> make_expert_parallel_mlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                              DType dtype, const ModelMakers& makers);

}  // namespace ladder
