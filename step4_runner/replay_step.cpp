// Task 4.6: which steps are replayed from a captured graph, and how the graphs are made.
#include <algorithm>

#include "step1_layers/core/error.h"
#include "step4_runner/model_runner.h"

namespace ladder {

// >>> task 4.6: choose a step's graph, replay it, and capture them all
void ModelRunner::choose_graph(Step& step) const {
  const AttentionMetadata& metadata = batch_.attention();
  const GraphSize size{batch_.input_ids().dim(0), metadata.max_seq_len};
  // One token each, all of which yield one: no prompt token is among what they predict. Or nothing but spare rows, which take a
  // mixed graph where they are too many for decodes.
  const bool decodes =
      metadata.max_query_len <= 1 && std::ssize(batch_.sampled_sequences()) == metadata.num_seqs;
  if (decodes) step.graph = graphs_[context_].decode.find(size);
  step.graph_has_logits = step.graph != nullptr && is_last_stage();
  if (step.graph == nullptr && (metadata.max_query_len > 1 || metadata.num_seqs == 0))
    step.graph = graphs_[context_].mixed.find(size);
}

void ModelRunner::replay(Step& step) {
  arena_->take({step.graph->arena_bytes}, DType::u8);  // what the replay leaves in use
  step.graph->graph.replay(ctx_);
  if (!step.graph_has_logits)
    step.hidden = step.graph->output;
  else if (step.graph->output.defined())  // on the first rank
    step.logits = step.graph->output.rows(step.plan.rows);
}

void ModelRunner::capture_graphs() {
  const Step spare = begin({});  // a step of nothing but spare rows
  const auto stage_spare_rows = [&](int64_t rows) {
    upload_.begin(ctx_, inputs_.upload_bytes(batch_, rows, max_seqs(rows)));
    inputs_.load_padded(batch_, rows, max_seqs(rows), upload_);
    upload_.send(ctx_);
    inputs_.unpack(ctx_);
  };
  if (const std::vector<GraphSize> sizes = decode_sizes(); !sizes.empty()) {
    stage_spare_rows(sizes.back().rows);
    graphs_[context_].decode.capture(ctx_, sizes, [&](GraphSize size) {
      inputs_.view_padded(size.rows, size.rows, 1, size.max_seq_len);
      const Tensor hidden = model_->forward(ctx_, model_input());
      return is_last_stage() ? model_->compute_logits(ctx_, hidden) : hidden;
    });
  }
  if (cp_group(ctx_).size() > 1) return;  // which of a prompt's rows a rank has, the host says
  if (const std::vector<GraphSize> sizes = mixed_sizes(); !sizes.empty()) {
    stage_spare_rows(sizes.back().rows);
    graphs_[context_].mixed.capture(ctx_, sizes, [&](GraphSize size) {
      inputs_.view_padded(size.rows, max_seqs(size.rows), size.rows, size.max_seq_len);
      return model_->forward(ctx_, model_input());
    });
  }
}
// <<< task 4.6

std::vector<GraphSize> ModelRunner::decode_sizes() const {
  if (phase_ == StepPhase::prefill) return {};
  return decode_graph_sizes(max_seqs(config_.batch.max_num_batched_tokens), config_.batch.max_model_len);
}

std::vector<GraphSize> ModelRunner::mixed_sizes() const {
  if (phase_ == StepPhase::decode) return {};
  return mixed_graph_sizes(config_.batch.max_num_batched_tokens);
}

double ModelRunner::replay_last_step(int64_t count) {
  LADDER_CHECK(last_graph_ != nullptr, "the last step was not replayed from a decode graph");
  const ArenaScope scope(*arena_);
  arena_->take({last_graph_->arena_bytes}, DType::u8);
  const Tensor logits = last_graph_->output.rows(last_plan_.rows);
  const Tensor token_ids = inputs_.sampled_ids(last_plan_.rows);
  DeviceEvent begun, done;
  begun.record(ctx_);
  for (int64_t i = 0; i < count; ++i) {
    last_graph_->graph.replay(ctx_);
    sampler_.sample(ctx_, logits, last_plan_, token_ids, download_);
  }
  done.record(ctx_);
  done.wait();
  return done.seconds_since(begun) / static_cast<double>(count);
}

}  // namespace ladder
