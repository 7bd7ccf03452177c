#include "step4_runner/redundant_experts.h"

#include <string>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// "0 or 8", "2, 6, 10, ... or 18": from so many that the ranks divide the sum, to a copy of each expert on every rank.
std::string numbers_that_fit(int64_t num_experts, int64_t ranks) {
  const int64_t first = (ranks - num_experts % ranks) % ranks, last = num_experts * (ranks - 1);
  std::string text = std::to_string(first);
  for (int64_t number = first + ranks; number < last && number <= first + 2 * ranks; number += ranks)
    text += fmt::format(", {}", number);
  if (last > first + 3 * ranks) text += ", ...";
  return last == first ? text : fmt::format("{} or {}", text, last);
}

}  // namespace

void check_redundant_experts(int64_t num_experts, int64_t ranks, int64_t num_redundant) {
  LADDER_CHECK(ranks >= 1 && num_experts >= ranks, "{} experts on {} ranks: expected one for each at least",
               num_experts, ranks);
  LADDER_CHECK(num_redundant >= 0 && num_redundant <= num_experts * (ranks - 1) &&
                   (num_experts + num_redundant) % ranks == 0,
               "--num-redundant-experts {}: {} experts and these on {} ranks, each with as many: expected {}",
               num_redundant, num_experts, ranks, numbers_that_fit(num_experts, ranks));
}

}  // namespace ladder
