#include "step4_runner/rank_start.h"

#include "step1_layers/core/error.h"
#include "step4_runner/rank_grid.h"

#ifdef LADDER_HAS_CUDA
#include "step1_layers/core/device_cuda.h"
#endif

namespace ladder {

OpContext make_rank_context(Device device, [[maybe_unused]] std::shared_ptr<void>& owner) {
  if (device.is_cpu()) return {};
#ifdef LADDER_HAS_CUDA
  if (device.type == DeviceType::cuda) {
    const auto cuda = std::make_shared<CudaContext>(device.index);
    owner = cuda;
    return cuda->op_context();
  }
#endif
  fail("this build of ladder has no {}", device_name(device));
}

void SummedProgress::set(int rank, int64_t done, int64_t total) {
  if (!progress_) return;
  std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(rank)] = {done, total};
  Bytes sum;
  for (const Bytes& one : ranks_) {
    sum.done += one.done;
    sum.total += one.total;
  }
  progress_(sum.done, sum.total);
}

ModelFactory model_factory(const ExecutorOptions& options, const RunnerConfig& config) {
  const auto progress = std::make_shared<SummedProgress>(num_ranks(config), options.progress);
  return [options, config, progress](const OpContext& ctx) {
    const GridPlace place{tp_group(ctx).rank(), pp_group(ctx).rank(), cp_group(ctx).rank()};
    const LayerRange layers = layers_of(config, options.spec.num_layers, place.stage);
    ModelOptions model;
    model.dtype = config.dtype;
    model.load_format = config.load_format;
    model.max_model_len = config.batch.max_model_len;
    model.layer_begin = layers.begin;
    model.layer_end = layers.end;
    model.makers = options.model_makers;
    model.makers.kv_cache_dtype = config.kv_cache_dtype;
    model.progress = [progress, rank = rank_at(config, place)](int64_t done, int64_t total) {
      progress->set(rank, done, total);
    };
    return load_model(ctx, options.model, options.spec, model);
  };
}

void apply_config(const RunnerConfig& config, OpContext& ctx) {
  ctx.batch_invariant = config.dtype == DType::f32;
  ctx.dependent_launch &= config.dependent_launch;
  ctx.kernels = config.kernels;
}

std::unique_ptr<ModelRunner> start_rank(OpContext ctx, const RunnerConfig& config,
                                        const ModelFactory& make_model,
                                        const std::shared_ptr<LogitsProcessor>& processor) {
  apply_config(config, ctx);
  auto runner = std::make_unique<ModelRunner>(ctx, config, make_model(ctx));
  runner->warm_up();
  if (runner->samples() && processor) runner->sampler().add_processor(processor);
  return runner;
}

}  // namespace ladder
