#pragma once
// A deployment in virtual time, with the engine's own scheduler in every instance: what the formulas are checked against.
//
//   arrivals --> the instance with the fewest requests --> SimulatedReplica x N                  engines that do both
//
//   arrivals --> P with the fewest prompts --> link --> D with the fewest requests               disaggregated
//                one token, which is dropped    ^       the prompt loaded but for its last token, which it computes again
//                                               each instance has one; a transfer needs one on either side
//
// Steps last what the problem's StepTimeModel says. Everything follows from the problem and the seed. Blocks are held as in the
// engine, by the scheduler's own seam (step5_scheduler/kv_connector.h): those of a finished prompt at P until they are fetched,
// so that other prompts may have to wait for them, and at D from the moment that it has room for the request, which is when the
// transfer begins.
#include <cstdint>
#include <vector>

#include "step8_advanced/disaggregation/planner/plan_problem.h"

namespace ladder {

struct SimulatedAnswer {
  double ttft = 0;  // seconds, all three
  double tpot = 0;  // mean gap between its tokens; 0 of one token
  double longest_gap = 0;
};

struct ClusterResult {
  std::vector<SimulatedAnswer> answers;  // of the measured requests, in their order
  double attained = 0;                   // share of these within the level
  double ttft_p50 = 0, ttft_p90 = 0, ttft_p99 = 0;
  double tpot_p50 = 0, tpot_p90 = 0, tpot_p99 = 0;
  double gap_p50 = 0, gap_p99 = 0, gap_max = 0;  // of all gaps of the measured requests
  double seconds = 0;                            // to the end of the last answer
  int64_t num_transfers = 0;
  int64_t peak_pinned_tokens = 0;  // of prompts that are computed and not yet fetched, on all P together
};

// A moment at which a request got a token.
struct TokenTime {
  int64_t request = 0;
  double time = 0;
};

struct ClusterOptions {
  // Of the first and the last so many share nothing is measured: a cluster that fills or runs empty is another one.
  double leave_out = 0.1;
  int64_t block_size = 16;
  uint64_t seed = 0;
  std::vector<TokenTime>* tokens = nullptr;  // all of them, if wanted
};

// Runs the problem's requests, at their arrivals, until all are answered. Those with cached tokens share these: they all begin
// with the same ones. Error: as check_problem(), or a request that an engine's cache does not hold.
ClusterResult simulate_cluster(const PlanProblem& problem, const Deployment& deployment,
                               const ClusterOptions& options = {});

// The highest rate, within 4 %, at which the level's share of requests is within the level; 0: not even at a hundredth of
// `guess`. The problem's requests come at that rate, each as it is.
double simulated_goodput(const PlanProblem& problem, const Deployment& deployment, double guess,
                         const ClusterOptions& options = {});

}  // namespace ladder
