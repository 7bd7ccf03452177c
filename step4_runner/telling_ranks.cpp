#include "step4_runner/telling_ranks.h"

#include <mutex>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/distributed/communicator.h"
#ifdef LADDER_HAS_CUDA
#include "step4_runner/kv_layer_events_cuda.h"
#endif

namespace ladder {

#ifndef LADDER_HAS_CUDA
class KvLayerEvents {
 public:
  KvLayerEvents(KvLayerListener&, int, Device) {}
  void launched(const OpContext&, int64_t, const Tensor&) {}
  void catch_up() {}
};
#endif

struct TellingRanks::State {
  KvLayerListener& listener;
  std::mutex mutex = {};
  int rank_on_gpu = -1;
  std::shared_ptr<KvLayerEvents> events = {};  // its own

  std::shared_ptr<KvLayerEvents> events_of(int rank, Device device) {
    if (device.is_cpu()) return nullptr;
    const std::lock_guard lock(mutex);
    LADDER_CHECK(rank_on_gpu == -1 || rank_on_gpu == rank,
                 "keys and values layer by layer: several ranks on GPUs are threads of one process, expected "
                 "one");
    if (events == nullptr) events = std::make_shared<KvLayerEvents>(listener, rank, device);
    rank_on_gpu = rank;
    return events;
  }
};

namespace {

// `events`: of a rank on a GPU, else null.
class TellingAttention final : public Attention {
 public:
  TellingAttention(std::unique_ptr<Attention> inner, KvLayerListener& listener,
                   std::shared_ptr<KvLayerEvents> events, int rank, int64_t layer)
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
    listener_.save_kv_layer(rank_, layer_, listener_.current_launch(),
                            {slots.data<int64_t>(), static_cast<size_t>(slots.numel())});
  }

 private:
  const std::unique_ptr<Attention> inner_;
  KvLayerListener& listener_;
  const std::shared_ptr<KvLayerEvents> events_;
  const int rank_;
  const int64_t layer_;
};

}  // namespace

TellingRanks::TellingRanks(KvLayerListener& listener) : state_(new State{listener}) {}
TellingRanks::~TellingRanks() = default;

ModelMakers TellingRanks::around(ModelMakers makers) {
  ModelMakers telling = makers;
  telling.attention = [state = state_, makers = std::move(makers)](const OpContext& ctx, int64_t layer,
                                                                   const KvCacheSpec& cache) {
    const int rank = tp_group(ctx).rank() + pp_group(ctx).rank() * tp_group(ctx).size();
    return std::make_unique<TellingAttention>(make_attention(makers, ctx, layer, cache), state->listener,
                                              state->events_of(rank, ctx.device), rank, layer);
  };
  return telling;
}

void TellingRanks::catch_up() {
  if (state_->events != nullptr) state_->events->catch_up();
}

}  // namespace ladder
