#pragma once
// Task 7.12: prefill context parallelism (vLLM's --prefill-context-parallel-size): ranks that hold the same weights and the
// same cache, and compute a part of every step's rows each.
//
//   rank 0   own rows -> layers                       -> gather, LM head, sampler
//                          | all-gather of new keys   |
//   rank 1   own rows -> layers                       -> its hidden states to rank 0
//
// Rows meet in attention alone: all else in a layer, most of a prompt's work, is done once and shared out. Each rank lays the
// whole step out and picks its rows (prefill_rows.h), so the scheduler, the block manager and the runner know nothing of it.
//
// On a GPU the host plans whose rows are whose and sends the lists with the step; all that is picked by them is picked there. A
// step in which each sequence has one row has the same lists whatever it computes, so it can be captured in a graph.
#include <map>
#include <memory>

#include "step2_model/model.h"
#include "step4_runner/step_io.h"
#include "step7_parallel/context/step_share.h"

namespace ladder {

class PrefillContextModel final : public Model {
 public:
  // `decoder`: a rank's, whose attention is make_prefill_context_attention's.
  explicit PrefillContextModel(std::unique_ptr<Model> decoder) : decoder_(std::move(decoder)) {}

  const DecoderSpec& spec() const override { return decoder_->spec(); }
  DType dtype() const override { return decoder_->dtype(); }
  int64_t max_model_len() const override { return decoder_->max_model_len(); }
  std::vector<KvCacheSpec> kv_cache_specs() const override { return decoder_->kv_cache_specs(); }
  int64_t weight_bytes() const override { return decoder_->weight_bytes(); }

  // `input` is the whole step's, on all ranks of cp_group(ctx). Of the hidden states those of this rank's rows are there;
  // after the last layer all of them on context rank 0. The other rows hold anything.
  Tensor forward(const OpContext& ctx, const ModelInput& input) override;
  // On context rank 0; undefined on the others, which do not take part.
  Tensor compute_logits(const OpContext& ctx, const Tensor& hidden) override;

 private:
  struct Share {
    StepShare plan;
    ShareLists<Tensor> lists;  // on the device
  };

  // This rank's of a step. Its lists are of no use when the step is over.
  Share share_of(const OpContext& ctx, const ModelInput& input);
  // Picks this rank's inputs, but for the hidden states of the stage before.
  ModelInput pick_inputs(const OpContext& ctx, const Share& share, const ModelInput& input) const;

  std::unique_ptr<Model> decoder_;
  StepUpload upload_;
  std::map<int64_t, Share>
      single_rows_;  // of steps of so many sequences with a row each: graphs know where the lists are
};

// Fills in the makers of such a model and its attention; nothing where ranks is 1. Error: there are makers of these already.
void share_out_prefill(ModelMakers& makers, int ranks);

}  // namespace ladder
