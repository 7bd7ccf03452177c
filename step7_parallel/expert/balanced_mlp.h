#pragma once
// 7.9: a layer whose experts change places while the engine runs (vLLM's --enable-eplb). It differs from one whose ranks keep
// their experts (expert_parallel.h) in two tables:
//
//   placement       rank 0: e0 e2     rank 1: e1 e2'                   which expert is in which place
//   a chosen e2     row 0: place 1    row 1: place 3    row 2: 1 ...   its copies in turns, by the row's number
//
// Places are numbered through the ranks and always stay where they are: what is below the choice of a place, the exchange between
// replicas included, takes them for experts that never move. The row's number chooses, so that tensor-parallel ranks, which
// have all tokens, agree on who computes a pair, and nothing has to be kept (choose_places.h).
//
// On a GPU a graph has captured where the tables, the counts and the weights are: a move writes into them, between two steps.
#include <cstdint>
#include <memory>
#include <vector>

#include "step2_model/decoder/moe_mlp.h"
#include "step7_parallel/expert/expert_balancer.h"

namespace ladder {

class BalancedMlp final : public Mlp {
 public:
  // As make_expert_parallel_mlp, of a layer with experts over several ranks. Every rank has (experts + num_redundant) / ranks
  // places. Error: numbers that do not fit (step4_runner/redundant_experts.h).
  BalancedMlp(const OpContext& ctx, int64_t layer, const DecoderSpec& spec, DType dtype,
              const ModelMakers& makers, int64_t num_redundant);
  BalancedMlp(const BalancedMlp&) = delete;
  BalancedMlp& operator=(const BalancedMlp&) = delete;

  std::vector<Parameter*> parameters() override { return mlp_.parameters(); }
  void process_after_load(const OpContext& ctx) override { mlp_.process_after_load(ctx); }
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override {
    mlp_.forward(ctx, norm, stream);
  }

  // Of the next forward(): each row's slot in the KV cache, i64. Rows without one, -1, are no tokens. Undefined: nothing is counted,
  // and all rows have their experts.
  void set_slots(const Tensor& slots) { slots_ = slots; }
  // So many tokens have chosen each expert since the last call. Each token is counted on one rank of the group. On a GPU it waits
  // for the stream.
  std::vector<int64_t> take_counts(const OpContext& ctx);

  int64_t layer() const { return layer_; }
  const ExpertPlacement& placement() const { return placement_; }
  int64_t expert_bytes() const;  // of one expert's weights
  // Brings the experts there, `next` being settled (expert_moves.h), and says how many copies have moved. All ranks of the group
  // at the same time, between two steps. For its time it holds what this rank sends and receives once more.
  int64_t move_to(const OpContext& ctx, const ExpertPlacement& next);

 private:
  void choose(const OpContext& ctx, const Tensor& expert_ids) const;  // places, in place; and counts
  void set_placement(const OpContext& ctx, const ExpertPlacement& placement);

  int64_t layer_;
  ExpertPlacement placement_;
  Tensor places_of_;  // [experts, 1 + ranks] i32: how many copies, then their places, ascending
  Tensor counts_;     // [experts] i64
  Tensor slots_;
  Tensor numbers_of_places_;  // [places] i32: the place on this rank, or -1
  ExpertRun exchange_;        // where replicas share out the places; else empty
  MoeMlp mlp_;
  std::vector<Tensor> weights_;  // of mlp_, [places of this rank, values of an expert]
};

}  // namespace ladder
