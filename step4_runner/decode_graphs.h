#pragma once
// Task 4.6: CUDA graphs for decode steps.
//
// A decode step launches the same kernels as the one before, over other numbers. So it is recorded once for a
// few batch sizes and replayed with one call; a batch takes the next larger graph, whose spare rows stand in
// no slot and see no key. The largest is captured first and all of them share one arena: graphs never run at
// the same time, and the largest takes the most. Prompts are not replayed: their shapes differ from step to
// step, and from a few hundred tokens on their kernels are long enough to hide a launch. vLLM:
// CUDAGraphDispatcher and capture_model().
#include <cstdint>
#include <functional>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/device_graph.h"

namespace ladder {

// 1, 2, 4, 8, then every eighth size up to 256, every 32nd beyond; the largest is max_num_seqs itself.
std::vector<int64_t> decode_graph_sizes(int64_t max_num_seqs);

class DecodeGraphs {
 public:
  struct Graph {
    int64_t rows = 0;
    DeviceGraph graph;
    Tensor logits;            // f32 [rows, vocab], where a replay leaves them
    int64_t arena_bytes = 0;  // what a replay uses of the arena, from its start
  };

  // `forward(rows)` launches a decode step of so many rows and returns its logits; it takes memory from
  // ctx.arena, which is empty and never moves. It is called twice for a size: kernels load and plans are made
  // in the first call.
  void capture(const OpContext& ctx, const std::vector<int64_t>& sizes,
               const std::function<Tensor(int64_t rows)>& forward);

  const Graph* find(int64_t rows) const;  // the smallest that has room; nullptr: none
  bool empty() const { return graphs_.empty(); }

 private:
  std::vector<Graph> graphs_;  // ascending
};

}  // namespace ladder
