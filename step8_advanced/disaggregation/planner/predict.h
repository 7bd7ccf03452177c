#pragma once
// Task 8.7.planner: what a deployment does for its users at a rate, by formulas.h, in microseconds of our own time.
//
// A share of requests comes out, not a mean: a promise to 90 or 99 of 100 is about the slow ones.
#include "step8_advanced/disaggregation/planner/formulas.h"

namespace ladder {

struct Prediction {
  bool stable = false;                  // else nothing but the utilisations and decode_batch is told
  double attained = 0;                  // share of requests within the level
  double ttft_mean = 0, tpot_mean = 0;  // seconds
  double ttft = 0;                      // that the level's share of requests does not exceed
  double prefill_utilisation = 0;
  double decode_batch = 0;      // sequences in a step of an instance
  double link_utilisation = 0;  // disaggregated: of the links on the side that has fewer
  // Disaggregated: tokens of prompts that are computed and not yet fetched, on all instances: r I (wait for a link + transfer).
  // Not stable where they leave no room for a prompt in the caches.
  double pinned_tokens = 0;
};

// Of the problem's requests coming `rate` a second. Error: no step times of that size.
Prediction predict(const PlanProblem& problem, const Deployment& deployment, double rate);

// The highest rate at which the level's share of requests is within the level; 0: not even alone.
double predicted_goodput(const PlanProblem& problem, const Deployment& deployment);

DecodeLoad decode_load(const PlanProblem& problem);
// Of a prompt without what both instances have.
double transfer_seconds(const PlanProblem& problem, const PlannedRequest& request);

}  // namespace ladder
