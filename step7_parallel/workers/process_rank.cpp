#include "step7_parallel/workers/process_rank.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step4_runner/rank_start.h"
#include "step7_parallel/expert/balanced_model.h"

#ifdef LADDER_HAS_CUDA
#include "step7_parallel/communicators/gpu/gpu_communicator.h"
#include "step7_parallel/expert/gpu/gpu_expert_group.h"
#endif

namespace ladder {

struct ProcessRank::Groups {
#ifdef LADDER_HAS_CUDA
  std::unique_ptr<GpuCommunicator> tensor, column, context_ranks;
  std::unique_ptr<GpuExpertGroup> experts;
#endif
  ParallelContext context;
};

ProcessRank::ProcessRank(const RunnerConfig& config, int rank, int local_rank, const RankGroups& groups)
    : config_(config), rank_(rank), groups_(std::make_unique<Groups>()) {
  set_num_threads(std::max(config_.threads / num_ranks(config_), 1));
  config_.device = device_of_rank(config, local_rank);
  ctx_ = make_rank_context(config_.device, device_);
  ctx_.parallel = &groups_->context;
  if (groups.tensor != nullptr) groups_->context.tp = groups.tensor;
  if (groups.column != nullptr) groups_->context.pp = groups.column;
  if (groups.context != nullptr) groups_->context.cp = groups.context;
  if (groups.experts != nullptr) groups_->context.ep = groups.experts;
#ifdef LADDER_HAS_CUDA
  if (config_.device.type != DeviceType::cuda) return;
  const auto on_gpu = [this](Communicator*& used, std::unique_ptr<GpuCommunicator>& owner,
                             Communicator* host) {
    if (host != nullptr) used = (owner = std::make_unique<GpuCommunicator>(ctx_, *host)).get();
  };
  on_gpu(groups_->context.tp, groups_->tensor, groups.tensor);
  on_gpu(groups_->context.pp, groups_->column, groups.column);
  on_gpu(groups_->context.cp, groups_->context_ranks, groups.context);
  if (groups.experts == nullptr) return;
  const int64_t tokens = config_.batch.max_num_batched_tokens, ranks = config_.tensor_parallel_size;
  groups_->experts = std::make_unique<GpuExpertGroup>(ctx_, *groups.experts, (tokens + ranks - 1) / ranks);
  groups_->context.ep = groups_->experts.get();
#endif
}

ProcessRank::~ProcessRank() = default;

void ProcessRank::start(const ExecutorOptions& options,
                        const std::function<void(std::unique_ptr<Model>&)>& loaded) {
  const auto& make_processor = options.runner_makers.logits_processor;
  runner_ = start_rank(
      ctx_, config_,
      [this, load = model_factory(options, config_), &loaded](const OpContext& ctx) {
        auto model = load(ctx);
        if (!ctx.device.is_cpu()) balanced_ = dynamic_cast<BalancedModel*>(model.get());
#ifdef LADDER_HAS_CUDA
        if (groups_->experts) model = with_slots_for(*groups_->experts, std::move(model));
#endif
        if (loaded) loaded(model);
        return model;
      },
      answers() && make_processor ? make_processor(options) : nullptr);
}

std::shared_ptr<const LaunchedStep> ProcessRank::launch(const SchedulerOutput& step,
                                                        std::span<const KnownTokens> known) {
  if (balanced_ != nullptr) balanced_->before_step(ctx_);
  auto launched = runner_->launch(step, known);
#ifdef LADDER_HAS_CUDA
  for (const GpuCommunicator* group :
       {groups_->tensor.get(), groups_->column.get(), groups_->context_ranks.get(),
        static_cast<GpuCommunicator*>(groups_->experts.get())})
    if (group != nullptr) group->check();
#endif
  return launched;
}

Device device_of_rank(const RunnerConfig& config, int local_rank) {
  return config.device.is_cpu() ? config.device
                                : Device{config.device.type, config.device.index + local_rank};
}

void expect_a_gpu_for_each_rank(const RunnerConfig& config, int ranks) {
  if (config.device.type != DeviceType::cuda) return;
  const int gpus = cuda_device_count();
  LADDER_CHECK(
      config.device.index + ranks <= gpus,
      "--tensor-parallel-size {}, --pipeline-parallel-size {} and --prefill-context-parallel-size {} from {} on: {} "
      "ranks on this machine need a GPU each, and it has {}",
      config.tensor_parallel_size, config.pipeline_parallel_size, config.prefill_context_parallel_size,
      device_name(config.device), ranks, gpus);
}

}  // namespace ladder
