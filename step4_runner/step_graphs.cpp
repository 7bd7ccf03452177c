#include "step4_runner/step_graphs.h"

#include <algorithm>

#include "step1_layers/core/device.h"
#include "step1_layers/linear/matmul.h"

namespace ladder {

// >>> task 4.6: which sizes, how they are captured, and which one a batch takes
std::vector<int64_t> decode_graph_sizes(int64_t max_num_seqs) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < max_num_seqs;) {
    sizes.push_back(size);
    size += size < 8 ? size : size < 256 ? 8 : 32;
  }
  sizes.push_back(max_num_seqs);
  return sizes;
}

std::vector<int64_t> mixed_graph_sizes(int64_t max_rows) {
  return row_classes(std::min(max_rows, kMostMixedRows));
}

void StepGraphs::capture(const OpContext& ctx, const std::vector<int64_t>& sizes,
                         const std::function<Tensor(int64_t rows)>& forward) {
  graphs_.resize(sizes.size());
  for (size_t i = sizes.size(); i-- > 0;) {
    Graph& graph = graphs_[i];
    graph.rows = sizes[i];
    {
      ArenaScope scope(*ctx.arena);
      forward(graph.rows);
    }
    device_synchronize(ctx.device, ctx.stream);
    ArenaScope scope(*ctx.arena);
    graph.graph.capture(ctx.stream, [&] { graph.output = forward(graph.rows); });
    graph.arena_bytes = ctx.arena->used_bytes();
  }
}

const StepGraphs::Graph* StepGraphs::find(int64_t rows) const {
  const auto at = std::lower_bound(graphs_.begin(), graphs_.end(), rows,
                                   [](const Graph& graph, int64_t wanted) { return graph.rows < wanted; });
  return at == graphs_.end() ? nullptr : &*at;
}
// <<< task 4.6

}  // namespace ladder
