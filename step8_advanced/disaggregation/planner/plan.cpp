#include "step8_advanced/disaggregation/planner/plan.h"

#include <algorithm>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// Of deployments that are as good the one with the smallest chunks is chosen: the formulas do not see that short prompts share a
// step, which makes gaps longer than a prompt alone does.
constexpr double kAsGood = 0.98;

bool is_split(const Deployment& deployment) {
  return deployment.kind == DeploymentKind::disaggregated;
}

double best_of(const std::vector<PlannedCandidate>& candidates, bool split) {
  double best = 0;
  for (const PlannedCandidate& candidate : candidates)
    if (is_split(candidate.deployment) == split) best = std::max(best, candidate.goodput);
  return best;
}

std::vector<PlannedCandidate> all_candidates(const PlanProblem& problem) {
  std::vector<PlannedCandidate> candidates;
  for (const Deployment& deployment : possible_deployments(problem))
    candidates.push_back({deployment, predicted_goodput(problem, deployment)});
  std::ranges::stable_sort(candidates, std::ranges::greater(), &PlannedCandidate::goodput);
  return candidates;
}

// Whether it would be disaggregated if the problem were another one.
bool would_split(const PlanProblem& problem) {
  const std::vector<PlannedCandidate> candidates = all_candidates(problem);
  return best_of(candidates, true) > kWorthDisaggregating * best_of(candidates, false);
}

// Seconds of an engine for the prompt of a request, over those for all of it at the largest batch: what there is to separate.
double prompt_share(const PlanProblem& problem) {
  const PlannedEngine& engine = problem.engines.front();
  const DecodeLoad load = decode_load(problem);
  const double batch = std::max(1.0, largest_batch(engine, load, problem.level.tpot));
  double prompts = 0;
  for (const PlannedRequest& request : problem.requests) {
    const PromptCost cost = prompt_cost(engine.model, request, problem.chunks.back());
    prompts +=
        (cost.seconds + cost.steps * engine.model.fixed) / static_cast<double>(problem.requests.size());
  }
  return prompts / (prompts + load.num_output * decode_step(engine.model, load, batch) / batch);
}

std::string reason_of(const PlanProblem& problem, const Plan& plan) {
  const double gain = plan.best_monolithic > 0 ? plan.best_disaggregated / plan.best_monolithic : 0;
  if (is_split(plan.chosen))
    return plan.best_monolithic > 0
               ? fmt::format("disaggregate: {:.2f} times the goodput of engines that do both", gain)
               : "disaggregate: engines that do both keep the level at no rate";
  if (plan.best_disaggregated <= 0 && problem.num_gpus < 2)
    return "do not disaggregate: one GPU cannot be shared out";
  PlanProblem other = problem;
  other.link.bytes_per_second = 1e15;
  other.link.latency = 0;
  if (would_split(other))
    return fmt::format(
        "do not disaggregate: the link is too thin ({:.2f} times the goodput; it would be worth "
        "it if transfers took no time)",
        gain);
  other = problem;
  for (PlannedRequest& request : other.requests) request.num_cached = 0;
  if (would_split(other))
    return fmt::format(
        "do not disaggregate: too much of the prompts is in the cache already ({:.2f} times the "
        "goodput)",
        gain);
  const double share = prompt_share(problem);
  if (share < 0.2)
    return fmt::format(
        "do not disaggregate: prompts are short, {:.0f} % of the work ({:.2f} times the goodput)",
        100 * share, gain);
  return fmt::format(
      "do not disaggregate: engines that do both keep the level as well ({:.2f} times the goodput)", gain);
}

}  // namespace

std::vector<Deployment> possible_deployments(const PlanProblem& problem) {
  std::vector<Deployment> all;
  for (const PlannedEngine& engine : problem.engines) {
    const int size = engine.tensor_parallel_size;
    if (const int count = problem.num_gpus / size; count > 0) {
      all.push_back(
          {DeploymentKind::unchunked, {count, size}, {}, longest_sequence(problem) + engine.max_num_seqs});
      for (const int64_t chunk : problem.chunks)
        all.push_back({DeploymentKind::chunked, {count, size}, {}, chunk});
    }
    for (const PlannedEngine& decode : problem.engines)
      for (int count = 1; count * size < problem.num_gpus; ++count) {
        const int rest = (problem.num_gpus - count * size) / decode.tensor_parallel_size;
        if (rest > 0)
          all.push_back({DeploymentKind::disaggregated,
                         {count, size},
                         {rest, decode.tensor_parallel_size},
                         problem.chunks.back()});
      }
  }
  return all;
}

int64_t block_size_for(const PlanProblem& problem) {
  double tokens = 0;
  for (const PlannedRequest& request : problem.requests)
    tokens += static_cast<double>(request.num_prompt) + static_cast<double>(request.num_output) / 2;
  tokens /= static_cast<double>(problem.requests.size());
  int64_t size = 16;
  while (size < 256 && static_cast<double>(size) <= 0.02 * tokens) size *= 2;
  return size;
}

Plan make_plan(const PlanProblem& problem) {
  check_problem(problem);
  Plan plan;
  plan.candidates = all_candidates(problem);
  plan.best_monolithic = best_of(plan.candidates, false);
  plan.best_disaggregated = best_of(plan.candidates, true);
  LADDER_CHECK(!plan.candidates.empty(), "plan: {} GPUs are fewer than the smallest engine needs",
               problem.num_gpus);
  LADDER_CHECK(
      plan.candidates.front().goodput > 0,
      "plan: no deployment answers {:.0f} % of even lone requests within {} s to the first token and {} "
      "s a token",
      100 * problem.level.share, problem.level.ttft, problem.level.tpot);
  const bool split = plan.best_disaggregated > kWorthDisaggregating * plan.best_monolithic;
  const double best = split ? plan.best_disaggregated : plan.best_monolithic;
  for (const PlannedCandidate& candidate : plan.candidates)
    if (is_split(candidate.deployment) == split && candidate.goodput >= kAsGood * best &&
        (plan.goodput == 0 || candidate.deployment.chunk < plan.chosen.chunk)) {
      plan.chosen = candidate.deployment;
      plan.goodput = candidate.goodput;
    }
  plan.at_rate = predict(problem, plan.chosen, problem.rate);
  plan.block_size = block_size_for(problem);
  plan.reason = reason_of(problem, plan);
  for (const PlannedCandidate& candidate : plan.candidates)
    if (is_split(candidate.deployment)) {
      const PlannedEngine& prefill = engine_of(problem, candidate.deployment.prefill.tensor_parallel_size);
      const PlannedEngine& decode = engine_of(problem, candidate.deployment.decode.tensor_parallel_size);
      double seconds = 0;
      for (const PlannedRequest& request : problem.requests) {
        const PromptCost cost = prompt_cost(prefill.model, request, candidate.deployment.chunk);
        seconds +=
            (cost.seconds + cost.steps * prefill.model.fixed) / static_cast<double>(problem.requests.size());
      }
      plan.prefill_needed = prefill_instances(problem.rate, seconds);
      plan.decode_needed = decode_instances(decode, decode_load(problem), problem.rate, problem.level.tpot);
      break;
    }
  return plan;
}

}  // namespace ladder
