#include "step8_advanced/disaggregation/planner/formulas.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

PromptCost prompt_cost(const StepTimeModel& model, const PlannedRequest& request, int64_t room) {
  PromptCost cost;
  StepWork all;
  for (int64_t before = request.num_cached; before < request.num_prompt; before += room) {
    const int64_t rows = std::min(room, request.num_prompt - before);
    all.num_sequences += 1;
    all.num_prompt_tokens += rows;
    all.num_kv_tokens += before;
    all.num_prompt_pairs += prompt_pairs(rows, before);
    ++cost.num_steps;
  }
  cost.seconds = model.seconds(all) - model.fixed;
  cost.steps = static_cast<double>(request.num_prompt - request.num_cached) / static_cast<double>(room);
  return cost;
}

double decode_step(const StepTimeModel& model, const DecodeLoad& load, double batch) {
  return model.fixed + batch * (model.per_sequence + load.context * model.per_kv_token);
}

// >>> task 8.7.planner: queues before prompts, and how many answers are in a step
constexpr double kPrefillUtilisation = 0.7;

double Queue::share_within(double seconds) const {
  if (!stable || seconds < 0) return 0;
  return wait > 0 ? 1 - waits * std::exp(-seconds / wait) : 1;
}

Queue make_queue(double rate, double mean, double mean_square, int num_servers) {
  Queue queue;
  const double offered = rate * mean;  // servers that are busy, in the mean
  queue.utilisation = offered / num_servers;
  queue.stable = queue.utilisation < 1;
  if (!queue.stable || offered <= 0) return queue;
  // Erlang's B by its recursion, which stays in range, and C from it.
  double blocked = 1;
  for (int i = 1; i <= num_servers; ++i) blocked = offered * blocked / (i + offered * blocked);
  queue.waits = blocked / (1 - queue.utilisation * (1 - blocked));
  queue.wait = mean_square / (2 * mean) / (num_servers * (1 - queue.utilisation));
  return queue;
}

double decode_batch(const StepTimeModel& model, const DecodeLoad& load, double rate) {
  // B = r O (a + b B)
  const double per_sequence = model.per_sequence + load.context * model.per_kv_token;
  const double tokens = rate * load.num_output;
  if (tokens * per_sequence >= 1) return std::numeric_limits<double>::infinity();
  return tokens * model.fixed / (1 - tokens * per_sequence);
}

double largest_batch(const PlannedEngine& engine, const DecodeLoad& load, double tpot) {
  const double per_sequence = engine.model.per_sequence + load.context * engine.model.per_kv_token;
  double batch = static_cast<double>(engine.max_num_seqs);
  if (load.context > 0) batch = std::min(batch, static_cast<double>(engine.num_kv_tokens) / load.context);
  if (per_sequence > 0) batch = std::min(batch, (tpot - engine.model.fixed) / per_sequence);
  if (tpot < engine.model.fixed) batch = 0;
  return batch < 1 ? 0 : std::floor(batch);
}

int prefill_instances(double rate, double mean_seconds) {
  return std::max(1, static_cast<int>(std::ceil(rate * mean_seconds / kPrefillUtilisation)));
}

int decode_instances(const PlannedEngine& engine, const DecodeLoad& load, double rate, double tpot) {
  const double batch = largest_batch(engine, load, tpot);
  if (batch < 1) return 0;
  return std::max(1, static_cast<int>(
                         std::ceil(rate * load.num_output * decode_step(engine.model, load, batch) / batch)));
}

double exposed_transfer(double transfer, double compute, int64_t num_layers) {
  // The last layer's keys exist only at the end; the others' travel during later layers, as far as these last.
  const auto layers = static_cast<double>(num_layers);
  return std::max(transfer / layers, transfer - compute * (layers - 1) / layers);
}
// <<< task 8.7.planner

}  // namespace ladder
