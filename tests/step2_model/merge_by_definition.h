#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ladder::testing {

// Byte pair encoding as the definition has it, on ids: rank by rank, leftmost first.
inline std::vector<int32_t> merge_by_definition(const std::string& text,
                                                const std::vector<std::array<int32_t, 3>>& merges) {
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<uint8_t>(byte));
  while (true) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (size_t rank = 0; rank < best_rank; ++rank)
        if (merges[rank][0] == ids[i] && merges[rank][1] == ids[i + 1]) {
          best_rank = rank;
          best = i;
        }
    if (best_rank == merges.size()) return ids;
    ids[best] = merges[best_rank][2];
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace ladder::testing
