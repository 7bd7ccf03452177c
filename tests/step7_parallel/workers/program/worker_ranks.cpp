// What the tests of worker processes start as workers: PROGRAM MODEL FAULT CONTEXT EXPERTS --fd N. CONTEXT: how many ranks share
// out a step's rows, and a head's keys, and these in which turns. EXPERTS of replicas are "all", "whole" or "split", or "moving R
// N": with R redundant ones, every N steps, or "moving R N FILE": each time with a line in that file. A fault is "none" or "RANK
// KIND FORWARD": on the FORWARD-th forward pass of that rank's first layer (0: while its model is made, 1: the warm-up's) it
// happens what KIND says, between its attention and its MLP. Or "RANK KIND FORWARD ROWS": on that of the passes of so many rows.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>
#include <string>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step2_model/decoder/composites.h"
#include "step4_runner/rank_grid.h"
#include "step6_engine/load_engine.h"
#include "step7_parallel/context/decode_context_attention.h"
#include "step7_parallel/context/prefill_context_model.h"
#include "step7_parallel/expert/balanced_model.h"
#include "step7_parallel/expert/expert_parallel.h"
#include "step7_parallel/expert/split_experts.h"
#include "step7_parallel/workers/worker_process.h"

namespace ladder {
namespace {

struct Fault {
  int rank = -1;
  std::string kind;
  int forward = 0;
  int64_t rows = 0;  // any

  void happen() const {
    if (kind == "kill") raise(SIGKILL);
    if (kind == "stop") raise(SIGSTOP);
    if (kind == "hang")
      for (;;) pause();
    if (kind == "abort") std::abort();
    if (kind == "exit") _exit(3);
    if (kind == "memory") throw std::bad_alloc();
    if (kind == "defect") throw std::logic_error("the disk is on fire");
    if (kind == "mistake") fail("expected a drier disk");
  }
};

class FaultyMlp final : public Mlp {
 public:
  FaultyMlp(std::unique_ptr<Mlp> mlp, Fault fault) : mlp_(std::move(mlp)), fault_(std::move(fault)) {}
  std::vector<Parameter*> parameters() override { return mlp_->parameters(); }
  void process_after_load(const OpContext& ctx) override { mlp_->process_after_load(ctx); }
  void forward(const OpContext& ctx, const Norm& norm, ResidualStream& stream) const override {
    if (fault_.rows == 0 || fault_.rows == stream.residual.dim(0))
      if (++num_forwards_ == fault_.forward) fault_.happen();
    mlp_->forward(ctx, norm, stream);
  }

 private:
  std::unique_ptr<Mlp> mlp_;
  Fault fault_;
  mutable int num_forwards_ = 0;
};

void share_out_experts(ModelMakers& makers, const std::string& experts) {
  std::istringstream words(experts);
  std::string kind;
  ExpertBalance balance;
  std::string file;
  words >> kind >> balance.num_redundant >> balance.step_interval >> file;
  if (!file.empty())
    balance.on_moved = [file](const ExpertsMoved& moved) {
      std::ofstream(file, std::ios::app) << moved.copies << ' ' << moved.tokens.front() << '\n';
    };
  if (kind == "whole") makers.mlp = make_expert_parallel_mlp;
  if (kind == "split") makers.mlp = make_split_experts_mlp;
  if (kind == "moving") move_experts_by_load(makers, balance);
}

void share_out_context(ModelMakers& makers, const std::string& context) {
  std::istringstream words(context);
  int row_ranks = 1, key_ranks = 1;
  int64_t run = 1;
  words >> row_ranks >> key_ranks >> run;
  makers.attention = decode_context_attention(key_ranks, run);
  share_out_prefill(makers, row_ranks);
}

ExecutorOptions options_of(const std::string& model, const Fault& fault, const std::string& context,
                           const std::string& experts) {
  const ModelFolder folder = open_model_folder(model);
  EngineOptions options;
  options.model = model;
  share_out_context(options.makers.model, context);
  share_out_experts(options.makers.model, experts);
  auto made = std::make_shared<bool>(false);
  if (fault.rank >= 0)
    options.makers.model.mlp = [fault, made](const OpContext& ctx, int64_t layer, const DecoderSpec& spec,
                                             DType dtype, const ModelMakers&) -> std::unique_ptr<Mlp> {
      auto mlp = make_mlp({}, ctx, layer, spec, dtype);
      const int rank =
          (pp_group(ctx).rank() * cp_group(ctx).size() + cp_group(ctx).rank()) * tp_group(ctx).size() +
          tp_group(ctx).rank();
      if (rank != fault.rank || std::exchange(*made, true)) return mlp;
      if (fault.forward == 0) fault.happen();
      return std::make_unique<FaultyMlp>(std::move(mlp), fault);
    };
  return executor_options(options, folder, {});
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) try {
  if (argc != 7) return 2;
  ladder::Fault fault;
  if (std::istringstream words(argv[2]); std::string(argv[2]) != "none")
    words >> fault.rank >> fault.kind >> fault.forward >> fault.rows;
  ladder::run_worker_process(std::atoi(argv[6]),
                             [&] { return ladder::options_of(argv[1], fault, argv[3], argv[4]); });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
