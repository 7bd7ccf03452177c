#pragma once
// Many replicas and a balancer in virtual time: the same policies that stand before engines (balancer.h), at sizes that
// nobody has on a desk.
//
//   arrivals (Poisson) --> Balancer::choose() --> SimulatedReplica x N, each with steps of its own length
//        ^                                                  |
//        +---- a session's next turn, after thinking -------+
//
// Everything follows from the seed. What a balancer sees of waiting, running and KV use is as old as the replica's last step
// and what was sent since; num_in_flight is exact.
#include <cstdint>
#include <string>
#include <vector>

#include "step7_parallel/data/simulation/session_plan.h"
#include "step7_parallel/data/simulation/simulated_replica.h"

namespace ladder {

struct FleetConfig {
  SchedulerConfig scheduler;  // of each replica
  StepTimeModel model;
  int num_replicas = 1;
  std::string balancer = "round_robin";
  double sessions_per_second = 0;  // of the whole fleet; 0: all begin at once, and nobody thinks
  // Measured is between the moments at which these shares of all output tokens have come: a fleet that fills or runs empty
  // is another one than a fleet at work.
  double measure_from = 0, measure_to = 1;
  uint64_t seed = 0;
};

struct FleetResult {
  int64_t num_requests = 0;
  double seconds = 0;  // until the last answer's end
  // Of what was measured: requests that came in that time, however late their first token is; tokens and arrivals of it.
  double measured_seconds = 0;
  double ttft_p50 = 0, ttft_p99 = 0, inter_token_mean = 0,
         inter_token_p99 = 0;  // seconds; the last within 1 %
  double imbalance = 0;  // most requests in flight on a replica / the mean, as arrivals find it, in the mean
  double hit_rate = 0;   // of all prompt tokens
  double output_tokens_per_second = 0;
};

// Until all is answered. Error: no such balancer, or a prompt that Scheduler::add() refuses.
FleetResult simulate_fleet(const FleetConfig& config, const std::vector<PlannedSession>& sessions);

}  // namespace ladder
