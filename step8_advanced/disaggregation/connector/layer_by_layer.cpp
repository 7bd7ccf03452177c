#include "step8_advanced/disaggregation/connector/layer_by_layer.h"

#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#include "step4_runner/rank_grid.h"
#ifdef LADDER_HAS_CUDA
#include "step8_advanced/disaggregation/connector/layer_events_cuda.h"
#endif

namespace ladder {

#ifndef LADDER_HAS_CUDA
class LayerEvents {
 public:
  void launched(const OpContext&, int64_t, const Tensor&) {}
  void catch_up() {}
};
#endif

namespace {

// `events`: of ranks on a GPU, which have launched a layer long before it is stored; else null.
class TellingAttention final : public Attention {
 public:
  TellingAttention(std::unique_ptr<Attention> inner, KvLayerListener& listener,
                   std::shared_ptr<LayerEvents> events, int rank, int64_t layer)
      : inner_(std::move(inner)),
        listener_(listener),
        events_(std::move(events)),
        rank_(rank),
        layer_(layer) {}

  KvCacheSpec kv_cache_spec() const override { return inner_->kv_cache_spec(); }
  void forward(const OpContext& ctx, const QkNormRopeStoreArgs& args, const AttentionMetadata& metadata,
               double scale, const Tensor& out) const override {
    inner_->forward(ctx, args, metadata, scale, out);
    const Tensor& slots = args.slot_mapping;
    if (events_ != nullptr) return events_->launched(ctx, layer_, slots);
    listener_.save_kv_layer(rank_, layer_, {slots.data<int64_t>(), static_cast<size_t>(slots.numel())});
  }

 private:
  const std::unique_ptr<Attention> inner_;
  KvLayerListener& listener_;
  const std::shared_ptr<LayerEvents> events_;
  const int rank_;
  const int64_t layer_;
};

class TellingExecutor final : public Executor {
 public:
  TellingExecutor(std::unique_ptr<Executor> inner, std::shared_ptr<KvCacheRegistry> owner,
                  KvLayerListener& listener, std::shared_ptr<LayerEvents> events)
      : owner_(std::move(owner)), listener_(listener), events_(std::move(events)), inner_(std::move(inner)) {}

  Ticket submit(const SchedulerOutput& step) override {
    listener_.begin_step(step);
    return inner_->submit(step);
  }
  StepOutput collect(Ticket ticket) override {
    StepOutput output = inner_->collect(ticket);
    if (events_ != nullptr) events_->catch_up();
    return output;
  }
  int max_in_flight() const override { return inner_->max_in_flight(); }
  void check() override { inner_->check(); }
  bool is_awaited() const override { return inner_->is_awaited(); }
  void run_along() override { inner_->run_along(); }
  void on_awaited(std::function<void()> wake) override { inner_->on_awaited(std::move(wake)); }

 private:
  const std::shared_ptr<KvCacheRegistry> owner_;  // of the listener
  KvLayerListener& listener_;
  const std::shared_ptr<LayerEvents> events_;
  const std::unique_ptr<Executor> inner_;  // its ranks end first
};

}  // namespace

ExecutorMaker tells_layers(ExecutorMaker inner) {
  return [inner = std::move(inner)](const ExecutorOptions& options) {
    const auto& owner = options.runner_makers.kv_caches;
    auto* const listener = dynamic_cast<KvLayerListener*>(owner.get());
    if (listener == nullptr || !listener->wants_layers()) return inner(options);
    std::shared_ptr<LayerEvents> events;
#ifdef LADDER_HAS_CUDA
    if (options.config.device.type == DeviceType::cuda) {
      LADDER_CHECK(num_ranks(options.config) == 1,
                   "keys and values layer by layer: {} ranks on GPUs, expected one",
                   num_ranks(options.config));
      events = std::make_shared<LayerEvents>(*listener, 0, options.config.device);
    }
#endif
    ExecutorOptions telling = options;
    telling.model_makers.attention = [listener, events, makers = options.model_makers](
                                         const OpContext& ctx, int64_t layer, const KvCacheSpec& cache) {
      const int rank = tp_group(ctx).rank() + pp_group(ctx).rank() * tp_group(ctx).size();
      return std::make_unique<TellingAttention>(make_attention(makers, ctx, layer, cache), *listener, events,
                                                rank, layer);
    };
    MadeExecutor made = inner(telling);
    made.executor = std::make_unique<TellingExecutor>(std::move(made.executor), owner, *listener, events);
    return made;
  };
}

}  // namespace ladder
