#include "step7_parallel/data/common_rows.h"

#include <algorithm>
#include <vector>

#include "step4_runner/step_graphs.h"

namespace ladder {

int64_t common_rows(int64_t most, const BatchConfig& batch) {
  const int64_t max_rows = batch.max_num_batched_tokens;
  const std::vector<GraphSize> decode = decode_graph_sizes(std::min(batch.max_num_seqs, max_rows), 1),
                               mixed = mixed_graph_sizes(max_rows);
  const auto next = [](const std::vector<GraphSize>& sizes, int64_t rows) {
    const size_t at = find_graph_size(sizes, {rows, 0});
    return at == sizes.size() ? rows : sizes[at].rows;  // beyond all graphs a step has its own rows
  };
  for (int64_t rows = std::max<int64_t>(most, 1);;) {
    const int64_t more = next(mixed, next(decode, rows));
    if (more == rows) return rows;
    rows = more;
  }
}

}  // namespace ladder
