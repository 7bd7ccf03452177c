#pragma once
// Task 8.7.planner, the formulas: queues before prompts, batches of answers, how much of a transfer shows.
//
// Prompts are computed one after the other, so they queue: Poisson arrivals, a time S that follows from the prompt, N servers.
// Of one server and equal prompts it is M/D/1, whose mean wait is r S^2 / (2 (1 - r S)) (DistServe, arXiv:2401.09670). In
// general, as Lee and Longton approximate it,
//
//   share of arrivals that wait = Erlang's C of N servers of which N rho are busy,   rho = r E[S] / N
//   their wait, exponential, with the mean E[S^2] / (2 E[S]) / (N (1 - rho))
//
// Answers are computed together, so they slow each other down: a step of B sequences takes T(B) = a + b B, and so many are in it
// as arrive in the time that one stays (Little): B = r O T(B).
#include <cstdint>

#include "step8_advanced/disaggregation/planner/plan_problem.h"

namespace ladder {

struct Queue {
  bool stable = false;  // utilisation below 1; else all waits grow for ever
  double utilisation = 0;
  double waits = 0;  // share of arrivals that wait at all
  double wait = 0;   // seconds of those, in the mean; exponential

  double mean_wait() const { return waits * wait; }
  // Share of arrivals that wait no longer than this. None if it is below 0, or the queue is not stable.
  double share_within(double seconds) const;
};

// `mean` and `mean_square` of the seconds of service. Rate or mean 0: stable, nobody waits.
Queue make_queue(double rate, double mean, double mean_square, int num_servers);

// What a prompt costs an engine.
struct PromptCost {
  double seconds = 0;     // all but StepTimeModel::fixed
  double steps = 0;       // rows / room, a fraction: prompts share steps where they queue
  int64_t num_steps = 0;  // of it alone, whole ones
};
// Of one whose first num_cached tokens are there, at most `room` rows a step.
PromptCost prompt_cost(const StepTimeModel& model, const PlannedRequest& request, int64_t room);

// What is being decoded, in the mean: a long answer is seen more often.
struct DecodeLoad {
  double num_output = 0;  // tokens of an answer after its first
  double context = 0;     // tokens before one of them
};

// Seconds of a step of `batch` such sequences and nothing else.
double decode_step(const StepTimeModel& model, const DecodeLoad& load, double batch);
// Sequences in a step where `rate` of them come each second: Little's law with decode_step(), solved for B. Infinite if they
// come faster than any batch answers them.
double decode_batch(const StepTimeModel& model, const DecodeLoad& load, double rate);
// The largest batch whose step takes no longer than `tpot`, whose contexts the cache holds, and that is at most max_num_seqs.
// Whole; 0: not even one.
double largest_batch(const PlannedEngine& engine, const DecodeLoad& load, double tpot);

// Instances for `rate`, at least 1. For prompts of `mean_seconds`: so many that they are busy for at most 0.7 of the time (at 0.9
// a queue is four times as long). For answers: r O T(B) / B at the largest batch; 0 if that is none.
int prefill_instances(double rate, double mean_seconds);
int decode_instances(const PlannedEngine& engine, const DecodeLoad& load, double rate, double tpot);

// Seconds for which a request waits for a transfer whose layers are sent as they are computed, `compute` seconds of the whole
// prompt: the last layer's share, or all that did not fit beside the other layers, whichever is longer.
double exposed_transfer(double transfer, double compute, int64_t num_layers);

}  // namespace ladder
