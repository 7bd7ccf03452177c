#pragma once
// 7.9: from one placement of a layer's experts to the next: what stays, and who sends the rest.
//
//   now       rank 0: e0 e1 e2     rank 1: e3 e0 e1        4 experts and 2 redundant ones
//   wanted    { e3 e1 e0 }  { e2 e0 e1 }
//   next      rank 0: e0 e1 e2     rank 1: e3 e0 e1        nothing moves: the lists change ranks, and have another order
//   wanted    { e3 e1 e2 }  { e0 e1 e2 }
//   next      rank 0: e0 e1 e2     rank 1: e3 e2 e1        one move: e2 from rank 0, into the place of e0
#include <cstdint>
#include <vector>

#include "step7_parallel/expert/expert_balancer.h"

namespace ladder {

// Before anything is known: places count through the ranks, and experts, in their order, through the places; redundant ones are
// copies of the first. Without any, what experts_of_rank() says. Error: numbers that do not fit (step4_runner/redundant_experts.h).
ExpertPlacement first_placement(int64_t num_experts, int64_t ranks, int64_t num_redundant);

// `wanted`, whose lists may go to any rank and be in any order, so that little moves: again and again the list and the rank
// that have most experts in common are brought together, and what is there already keeps its place.
ExpertPlacement settle(const ExpertPlacement& now, const ExpertPlacement& wanted);

struct ExpertMove {
  int32_t expert = 0;
  int64_t from_rank = 0, from_place = 0, to_rank = 0, to_place = 0;
  bool operator==(const ExpertMove&) const = default;
};
// In the order of to_rank and to_place. `next` is settled. Of an expert's copies, ranks in turn ask another one.
std::vector<ExpertMove> plan_moves(const ExpertPlacement& now, const ExpertPlacement& next);

}  // namespace ladder
