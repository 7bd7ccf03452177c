#pragma once
// 7.9: a rank's model whose experts change places by load, every so many steps (balanced_mlp.h).
//
//   step            warm-up | 0 | 1 | ... | N - 1 |               N | ...
//                             tokens are counted   all ranks of the group add up their counts; experts of the layers that get
//                                                  a better placement by them (expert_balancer.h) move; counting begins again
//
// A move stands between two steps, which all ranks of the group make as often: nothing is in flight there that was routed by the old
// tables. On the CPU that is the start of a forward pass; on a GPU, where a step may be replayed without one, who launches
// the steps says so (before_step). The warm-up's tokens are all the same and say nothing: its rows are known by having
// no slot in the cache, as are those that only fill up. Steps of a replica that runs along without rows count like the others'.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "step2_model/model.h"
#include "step7_parallel/expert/balanced_mlp.h"

namespace ladder {

// What one turn did in the layers of a stage. Imbalances are those of the tokens counted since the turn before.
struct ExpertsMoved {
  int64_t layers = 0, layers_moved = 0;  // with experts
  int64_t first_layer = 0, last_layer = 0;
  int64_t copies = 0, bytes = 0;                                              // that went to another rank
  double mean_before = 1, worst_before = 1, mean_after = 1, worst_after = 1;  // over the layers
  std::vector<int64_t> tokens = {};                                           // counted, by layer

  std::string str() const;  // one line for people
};

struct ExpertBalance {
  int64_t num_redundant = 0;
  int64_t step_interval = 3000;
  // A layer stays as it is unless its imbalance falls by this share: from 1.05 to 1 and no less. What moves takes time, too.
  double least_gain = 0.05;
  std::function<void(const ExpertsMoved&)> on_moved = {};  // on the group's first rank; may be empty
};

class BalancedModel final : public Model {
 public:
  // `layers` are the decoder's.
  BalancedModel(std::unique_ptr<Model> decoder, std::vector<BalancedMlp*> layers, ExpertBalance balance);

  const DecoderSpec& spec() const override { return decoder_->spec(); }
  DType dtype() const override { return decoder_->dtype(); }
  int64_t max_model_len() const override { return decoder_->max_model_len(); }
  std::vector<KvCacheSpec> kv_cache_specs() const override { return decoder_->kv_cache_specs(); }
  int64_t weight_bytes() const override { return decoder_->weight_bytes(); }
  // On a GPU before each step but the warm-up's, on the host: nothing of it is captured. Moves the experts when it is time, behind what
  // the stream has; waits for it then.
  void before_step(const OpContext& ctx);
  Tensor forward(const OpContext& ctx, const ModelInput& input) override;
  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override {
    return decoder_->compute_logits(ctx, hidden);
  }

 private:
  void move_experts(const OpContext& ctx);

  std::unique_ptr<Model> decoder_;
  std::vector<BalancedMlp*> layers_;
  ExpertBalance balance_;
  int64_t steps_ = 0;  // since the last turn
};

// Fills in the makers of such a model and its layers. Where a stage has one rank, or no layer with experts, they make what empty
// makers make. Error: there is a maker of a model already.
void move_experts_by_load(ModelMakers& makers, const ExpertBalance& balance);

}  // namespace ladder
