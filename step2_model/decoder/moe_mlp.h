#pragma once
// The MLP of a layer with experts (step1_layers/moe/).
//
//   n = norm(x);   x += sum over the chosen experts of weight * expert(n)  (+ sigmoid(g n) * shared expert(n))
//
// With several tensor-parallel ranks every expert's width is split among them, and so is the shared one's: each rank routes
// all tokens alike, since the router is on all of them, and has a part of every expert's sum. Or a rank has some experts
// whole (step7_parallel/expert): it then has all of their part of the sum, and nothing of the others'. Ranks that have other
// tokens bring them to their experts by an ExpertRun; they too may have a share of every expert's width instead.
#include <functional>
#include <optional>
#include <span>

#include "step1_layers/distributed/communicator.h"
#include "step1_layers/moe/coded_experts.h"
#include "step2_model/model_makers.h"

namespace ladder {

// How routed tokens come to their experts: args.out = this rank's part of the sum. `run_here` does that for the experts of this
// rank; its ids are the layer's, and those of experts that are elsewhere are left out.
using RunHere = std::function<void(const OpContext& ctx, const MoeExpertsArgs& args)>;
using ExpertRun =
    std::function<void(const OpContext& ctx, const MoeExpertsArgs& args, const RunHere& run_here)>;

// The ranks that share out the experts: where replicas do, those of all of them in the stage (ParallelContext::ep), else the
// tensor-parallel ones.
Communicator& expert_group(const OpContext& ctx);

class MoeMlp final : public Mlp {
 public:
  // Parameters: "<name>.router.weight" [experts, hidden]; "<name>.experts.gate_up.weight" [experts, 2 * width, hidden], whose parts
  // 2 e and 2 e + 1 are gate and up of expert e; "<name>.experts.down.weight" [experts, hidden, width], whose part e is expert
  // e's; where a linear method keeps one of the two, what it declares for a linear of these parts takes their place;
  // with a shared expert "<name>.shared_expert.gate_up_proj....", "<name>.shared_expert.down_proj....",
  // "<name>.shared_expert_gate.weight" [1, hidden].
  // `local_numbers`: of every expert the number under which this rank has it whole, counted from 0, or -1; empty: this rank
  // of expert_group() has its share of every expert's width. Parts of experts that are elsewhere are not looked at. Without `run` the experts
  // here run on all tokens. Error: the ranks do not divide a width that is split; on a GPU, a linear method that is no
  // CodedExperts for one of the two.
  MoeMlp(const OpContext& ctx, const std::string& name, const DecoderSpec& spec, DType dtype,
         const ModelMakers& makers, std::span<const int32_t> local_numbers = {}, ExpertRun run = {});

  std::vector<Parameter*> parameters() override;
  void process_after_load(const OpContext& ctx) override;
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override;

 private:
  // Of all experts here, as their linear methods keep them.
  struct StoredExperts {
    Linear gate_up;  // parts 2 e and 2 e + 1 are gate and up of expert e
    Linear down;     // part e is expert e's
  };
  struct SharedExpert {
    MergedColumnParallelLinear gate_up_proj;
    RowParallelLinear down_proj;
    Parameter gate;
  };
  void run_here(const OpContext& ctx, const MoeExpertsArgs& args) const;  // as RunHere
  void run_stored(const OpContext& ctx, const MoeExpertsArgs& args) const;
  // out += what the shared expert makes of n.
  void add_shared(const OpContext& ctx, const Tensor& n, const Tensor& out) const;

  DType dtype_;
  RouterRule rule_;
  Parameter router_;
  Tensor local_numbers_;  // [experts] i32; undefined: all experts are here
  ExpertRun run_;         // what forward() calls for the routed tokens; empty: run_here()
  Parameter gate_up_;     // these two, or stored_
  Parameter down_;
  std::optional<StoredExperts> stored_;
  // The methods of stored_, where they run all experts in one call.
  std::shared_ptr<const CodedExperts> coded_gate_up_, coded_down_;
  std::optional<SharedExpert> shared_;
};

}  // namespace ladder
