#include "step7_parallel/context/prefill_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// >>> task 7.12: every row to one rank, about as many to each
std::vector<std::vector<RowSpan>> share_out_rows(std::span<const int32_t> query_start_loc, int ranks) {
  LADDER_CHECK(ranks >= 1, "a context-parallel group of {} ranks", ranks);
  std::vector<std::vector<RowSpan>> shares(static_cast<size_t>(ranks));
  std::vector<int64_t> rows(shares.size());
  std::vector<size_t> emptiest(shares.size());  // ranks
  std::iota(emptiest.begin(), emptiest.end(), size_t{0});
  for (size_t sequence = 0; sequence + 1 < query_start_loc.size(); ++sequence) {
    const int64_t length = query_start_loc[sequence + 1] - query_start_loc[sequence];
    std::vector<ZigzagShare> largest;
    for (int place = 0; place < ranks; ++place) largest.push_back(zigzag_share(length, ranks, place));
    std::stable_sort(largest.begin(), largest.end(),
                     [](const ZigzagShare& a, const ZigzagShare& b) { return a.size() > b.size(); });
    std::sort(emptiest.begin(), emptiest.end(),
              [&](size_t a, size_t b) { return std::pair(rows[a], a) < std::pair(rows[b], b); });
    for (size_t i = 0; i < shares.size(); ++i) {
      for (const TokenSpan& span : {largest[i].early, largest[i].late})
        if (span.size() > 0) shares[emptiest[i]].push_back({static_cast<int64_t>(sequence), span});
      rows[emptiest[i]] += largest[i].size();
    }
  }
  return shares;
}
// <<< task 7.12

int64_t num_rows(const std::vector<RowSpan>& spans) {
  int64_t rows = 0;
  for (const RowSpan& span : spans) rows += span.tokens.size();
  return rows;
}

}  // namespace ladder
