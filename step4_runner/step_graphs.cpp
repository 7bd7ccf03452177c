#include "step4_runner/step_graphs.h"

#include <algorithm>

#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/core/device.h"
#include "step1_layers/linear/matmul.h"

namespace ladder {

// >>> task 4.6: which sizes, how they are captured, and which one a batch takes
std::vector<GraphSize> decode_graph_sizes(int64_t max_num_seqs, int64_t max_model_len) {
  std::vector<GraphSize> sizes;
  const auto add = [&](int64_t rows) {
    if (rows <= kMaxFewSeqs && kShortDecodeKeys < max_model_len) sizes.push_back({rows, kShortDecodeKeys});
    sizes.push_back({rows, max_model_len});
  };
  for (int64_t rows = 1; rows < max_num_seqs;) {
    add(rows);
    rows += rows < 8 ? rows : rows < 256 ? 8 : 32;
  }
  add(max_num_seqs);
  return sizes;
}

std::vector<GraphSize> mixed_graph_sizes(int64_t max_rows) {
  std::vector<GraphSize> sizes;
  for (const int64_t rows : row_classes(std::min(max_rows, kMaxMixedRows)))
    sizes.push_back({rows, kMaxMixedKeys});
  return sizes;
}

size_t find_graph_size(std::span<const GraphSize> sizes, GraphSize wanted) {
  const auto has_room = [&](const GraphSize& size) {
    return size.rows >= wanted.rows && size.max_seq_len >= wanted.max_seq_len;
  };
  return static_cast<size_t>(std::find_if(sizes.begin(), sizes.end(), has_room) - sizes.begin());
}

void StepGraphs::capture(const OpContext& ctx, std::vector<GraphSize> sizes,
                         const std::function<Tensor(GraphSize size)>& forward) {
  sizes_ = std::move(sizes);
  graphs_.resize(sizes_.size());
  for (size_t i = sizes_.size(); i-- > 0;) {
    Graph& graph = graphs_[i];
    graph.size = sizes_[i];
    {
      ArenaScope scope(*ctx.arena);
      forward(graph.size);
    }
    device_synchronize(ctx.device, ctx.stream);
    ArenaScope scope(*ctx.arena);
    graph.graph.capture(ctx, [&] { graph.output = forward(graph.size); });
    graph.arena_bytes = ctx.arena->used_bytes();
  }
}

const StepGraphs::Graph* StepGraphs::find(GraphSize wanted) const {
  const size_t at = find_graph_size(sizes_, wanted);
  return at == sizes_.size() ? nullptr : &graphs_[at];
}
// <<< task 4.6

}  // namespace ladder
