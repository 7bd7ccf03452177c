#include "step8_advanced/disaggregation/connector/layer_by_layer.h"

#include <utility>

#include "step4_runner/telling_ranks.h"

namespace ladder {

namespace {

class TellingExecutor final : public Executor {
 public:
  TellingExecutor(std::unique_ptr<Executor> inner, std::shared_ptr<KvCacheRegistry> owner,
                  KvLayerListener& listener, const TellingRanks& ranks)
      : owner_(std::move(owner)), listener_(listener), ranks_(ranks), inner_(std::move(inner)) {}

  Ticket submit(const SchedulerOutput& step) override {
    listener_.begin_step(step);
    return inner_->submit(step);
  }
  StepOutput collect(Ticket ticket) override {
    StepOutput output = inner_->collect(ticket);
    ranks_.catch_up();
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
  TellingRanks ranks_;
  const std::unique_ptr<Executor> inner_;  // its ranks end first
};

}  // namespace

ExecutorMaker tells_layers(ExecutorMaker inner) {
  return [inner = std::move(inner)](const ExecutorOptions& options) {
    const auto& owner = options.runner_makers.kv_caches;
    auto* const listener = dynamic_cast<KvLayerListener*>(owner.get());
    if (listener == nullptr || !listener->wants_layers()) return inner(options);
    TellingRanks ranks(*listener);
    ExecutorOptions telling = options;
    telling.model_makers = ranks.around(options.model_makers);
    MadeExecutor made = inner(telling);
    made.executor = std::make_unique<TellingExecutor>(std::move(made.executor), owner, *listener, ranks);
    return made;
  };
}

}  // namespace ladder
