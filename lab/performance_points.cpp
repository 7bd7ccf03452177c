#include "lab/performance_points.h"

#include <algorithm>

namespace lab {

const std::vector<Counted>& counted() {
  static const std::vector<Counted> kCounted = {
      {.problem = "pool", .count = "allocations"},
      {.problem = "blocks", .count = "tokens_hit", .more_is_better = true},
      {.problem = "blocks", .count = "allocations", .within = 1.25},
      {.problem = "prefix", .count = "tokens_hit", .more_is_better = true},
      {.problem = "prefix", .count = "names", .within = 1.25},
      {.problem = "batch", .count = "table_entries"},
      {.problem = "batch", .count = "allocations", .within = 1.25},
      {.problem = "copies", .count = "copies"},
      {.problem = "copies", .count = "bytes"},
      {.problem = "copies", .count = "waits", .within = 1.5},
      {.problem = "ahead", .count = "copies"},
      {.problem = "ahead", .count = "bytes"},
      {.problem = "ahead", .count = "waits", .within = 1.5},
      {.problem = "static", .count = "steps"},
      {.problem = "static", .count = "rows"},
      {.problem = "mixed", .count = "steps"},
      {.problem = "mixed", .count = "longest_gap", .slack = 0},
      {.problem = "mixed", .count = "total_wait", .within = 1.15},
      {.problem = "shared", .count = "steps"},
      {.problem = "shared", .count = "rows"},
      {.problem = "shared", .count = "tokens_hit", .more_is_better = true},
      {.problem = "shared", .count = "preemptions", .within = 1.25},
      {.problem = "crowded", .count = "steps"},
      {.problem = "crowded", .count = "preemptions", .within = 1.25},
      {.problem = "crowded", .count = "recomputed", .within = 1.25},
      {.problem = "turns", .count = "steps"},
      {.problem = "turns", .count = "rows"},
      {.problem = "turns", .count = "tokens_hit", .more_is_better = true},
  };
  return kCounted;
}

std::vector<Counted> counted_in(const std::string& problem) {
  std::vector<Counted> found;
  std::ranges::copy_if(counted(), std::back_inserter(found),
                       [&](const Counted& of) { return of.problem == problem; });
  return found;
}

double counted_share(const Counted& of, int64_t count, int64_t reference) {
  if (count < 0) return 0;
  const auto seen = static_cast<double>(of.more_is_better ? reference : count);
  const double allowed =
      of.within * static_cast<double>(of.more_is_better ? count : reference) + static_cast<double>(of.slack);
  return seen <= allowed ? 1.0 : allowed / seen;
}

double raced_share(double ratio, double share_of_roofline) {
  double least = 0;
  if (share_of_roofline >= 0.25) least = 0.4;
  if (share_of_roofline >= 0.5) least = 0.7;
  if (share_of_roofline >= 0.75) least = 0.9;
  return ratio <= 1.2 ? 1.0 : std::max(least, 1.2 / ratio);
}

}  // namespace lab
