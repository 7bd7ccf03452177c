#pragma once
// Task 4.6: CUDA graphs for steps.
//
// A step launches the same kernels as the one before, over other numbers: what the host passes to the kernels
// (grids, row counts) may be an upper bound; how many sequences there are and how long they are is read from
// the device. So a step is recorded once for a few sizes and replayed with one call; a batch takes the
// smallest graph that has room for it. DeviceInputs::load_padded() (device_inputs.h) fills the graph's spare
// rows: they are in no slot and see no key. (SchedulerOutput::num_static_padding_rows is something else:
// the rows that the static baseline wastes.) There are two sets:
//
//   decode: every row is a sequence of its own; the LM head is part of the graph. Of few sequences there are
//           two graphs, for short ones and for any: attention takes another kernel for long ones
//   mixed:  the rows are those of any sequences, prompts and decodes
//
// There is no mixed graph for long steps, whose kernels take long enough to hide their launches, and none for
// long sequences: attention cuts their keys into parts for idle blocks, and the host, which says how many,
// must know the lengths.
//
// The largest is captured first and all of them share one arena: graphs never run at the same time, and the
// largest takes the most. vLLM: CUDAGraphDispatcher and capture_model(), where attention of prompts is left
// out of the graphs.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "step1_layers/core/context.h"
#include "step1_layers/core/device_graph.h"

namespace ladder {

// What a graph has room for: rows, and keys of its longest sequence.
struct GraphSize {
  int64_t rows = 0;
  int64_t max_seq_len = 0;
  bool operator==(const GraphSize&) const = default;
};

// Rows 1, 2, 4, 8, then every eighth number up to 256, every 32nd beyond; the largest is max_num_seqs itself.
// Up to kMaxFewSeqs rows (paged_attention.h) twice, for kShortDecodeKeys and for max_model_len, unless that
// is no more.
std::vector<GraphSize> decode_graph_sizes(int64_t max_num_seqs, int64_t max_model_len);

// Rows of a mixed graph, and keys of a sequence in it, at most: for fewer than 1,024 keys the prefill kernels
// never have two parts (cut_keys).
inline constexpr int64_t kMaxMixedRows = 1024, kMaxMixedKeys = 1023;
// The row classes (matmul.h) up to kMaxMixedRows or max_rows: an eager step of so many rows would take the
// same products.
std::vector<GraphSize> mixed_graph_sizes(int64_t max_rows);

// The first of `sizes` (ascending by rows, then by length) that has room; sizes.size(): none.
size_t find_graph_size(std::span<const GraphSize> sizes, GraphSize wanted);

class StepGraphs {
 public:
  struct Graph {
    GraphSize size;
    DeviceGraph graph;
    Tensor output;            // [rows, ...]: what `forward` returned, where a replay leaves it
    int64_t arena_bytes = 0;  // that a replay leaves in use of the arena, from its start
  };

  // `forward(size)` launches a step of that size and returns its result; it takes memory from ctx.arena,
  // which is empty and never moves, and is given back after each call. It is called twice for a size, the second
  // time to be captured when the first is done: kernels load and plans are made in the first call. `sizes` ascend;
  // the largest is captured first.
  void capture(const OpContext& ctx, std::vector<GraphSize> sizes,
               const std::function<Tensor(GraphSize size)>& forward);

  const Graph* find(GraphSize wanted) const;  // the smallest that has room; nullptr: none

 private:
  std::vector<GraphSize> sizes_;
  std::vector<Graph> graphs_;  // of sizes_
};

}  // namespace ladder
