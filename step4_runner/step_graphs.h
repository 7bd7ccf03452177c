#pragma once
// Task 4.6: CUDA graphs for steps.
//
// A step launches the same kernels as the one before, over other numbers: what the kernels are told by the
// host (grids, row counts) may be an upper bound, how many sequences there are and how long they are stands
// on the device. So a step is recorded once for a few numbers of rows and replayed with one call; a batch
// takes the next larger graph, whose spare rows stand in no slot and see no key. There are two sets:
//
//   decode: every row is a sequence of its own; the LM head is part of the graph
//   mixed:  the rows are those of any sequences, prompts and decodes
//
// There is no mixed graph for long steps, whose kernels take long enough to hide their launches, and none for
// long sequences: attention cuts their keys into parts for idle blocks, and how many is for the host to say,
// who must know the lengths.
//
// The largest is captured first and all of them share one arena: graphs never run at the same time, and the
// largest takes the most. vLLM: CUDAGraphDispatcher and capture_model(), where attention of prompts is left
// out of the graphs.
#include <cstdint>
#include <functional>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/device_graph.h"

namespace ladder {

// 1, 2, 4, 8, then every eighth size up to 256, every 32nd beyond; the largest is max_num_seqs itself.
std::vector<int64_t> decode_graph_sizes(int64_t max_num_seqs);

// Rows of a mixed graph, and keys of a sequence in it, at most: for fewer than 1,024 keys the prefill kernels
// never have two parts (cut_keys).
inline constexpr int64_t kMostMixedRows = 1024, kMostMixedKeys = 1023;
// The row classes (matmul.h) up to kMostMixedRows or max_rows: an eager step of so many rows would take the
// same products.
std::vector<int64_t> mixed_graph_sizes(int64_t max_rows);

class StepGraphs {
 public:
  struct Graph {
    int64_t rows = 0;
    DeviceGraph graph;
    Tensor output;            // [rows, ...]: what `forward` returned, where a replay leaves it
    int64_t arena_bytes = 0;  // that a replay leaves in use of the arena, from its start
  };

  // `forward(rows)` launches a step of so many rows and returns its result; it takes memory from ctx.arena,
  // which is empty and never moves. It is called twice for a size: kernels load and plans are made in the
  // first call.
  void capture(const OpContext& ctx, const std::vector<int64_t>& sizes,
               const std::function<Tensor(int64_t rows)>& forward);

  const Graph* find(int64_t rows) const;  // the smallest that has room; nullptr: none
  bool empty() const { return graphs_.empty(); }

 private:
  std::vector<Graph> graphs_;  // ascending
};

}  // namespace ladder
