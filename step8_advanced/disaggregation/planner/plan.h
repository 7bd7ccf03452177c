#pragma once
// Which deployment of all that the GPUs allow, and why not the other kind.
#include <cstdint>
#include <string>
#include <vector>

#include "step8_advanced/disaggregation/planner/predict.h"

namespace ladder {

struct PlannedCandidate {
  Deployment deployment;
  double goodput = 0;  // requests a second, of all instances together; predicted
};

struct Plan {
  std::vector<PlannedCandidate> candidates;  // all, best first
  Deployment chosen;
  double goodput = 0;                                  // of the chosen
  Prediction at_rate;                                  // of the chosen, at the problem's rate
  double best_monolithic = 0, best_disaggregated = 0;  // their goodput; 0: there is none
  std::string reason;                                  // one sentence: why it is disaggregated, or not
  int64_t block_size = 16;                             // of KV blocks
  // For the problem's rate, by the formulas alone, of the chosen deployment's sizes or else of the best disaggregated one's;
  // 0: there is none.
  int prefill_needed = 0, decode_needed = 0;
};

// Two instances more to run, and formulas that are a few per cent wrong: disaggregation has to be better by this.
inline constexpr double kWorthDisaggregating = 1.05;

// All that the GPUs of the problem can be made into, no size of which could be larger.
std::vector<Deployment> possible_deployments(const PlanProblem& problem);

// The largest power of two from 16 to 256 of which half a block (what a sequence wastes at its end) is at most 2 % of a
// sequence: larger blocks travel faster, as fewer pieces.
int64_t block_size_for(const PlanProblem& problem);

// Error: as check_problem(); or nothing that is possible answers a single request within the level.
Plan make_plan(const PlanProblem& problem);

}  // namespace ladder
