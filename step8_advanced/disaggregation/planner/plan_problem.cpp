#include "step8_advanced/disaggregation/planner/plan_problem.h"

#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"

namespace ladder {

const PlannedEngine& engine_of(const PlanProblem& problem, int tensor_parallel_size) {
  const auto found =
      std::ranges::find(problem.engines, tensor_parallel_size, &PlannedEngine::tensor_parallel_size);
  LADDER_CHECK(found != problem.engines.end(), "plan: no step times of tensor parallel size {}",
               tensor_parallel_size);
  return *found;
}

int64_t longest_sequence(const PlanProblem& problem) {
  int64_t longest = 0;
  for (const PlannedRequest& request : problem.requests)
    longest = std::max(longest, request.num_prompt + request.num_output);
  return longest;
}

std::string describe(const Deployment& deployment) {
  if (deployment.kind == DeploymentKind::disaggregated)
    return fmt::format("{}P{}D (TP {}, TP {})", deployment.prefill.count, deployment.decode.count,
                       deployment.prefill.tensor_parallel_size, deployment.decode.tensor_parallel_size);
  const std::string engines = fmt::format("{} {} (TP {})", deployment.prefill.count,
                                          deployment.prefill.count == 1 ? "engine" : "engines",
                                          deployment.prefill.tensor_parallel_size);
  return deployment.kind == DeploymentKind::unchunked
             ? engines + ", prompts whole"
             : fmt::format("{}, chunks of {}", engines, deployment.chunk);
}

void check_problem(const PlanProblem& problem) {
  const auto positive = [](double value, const char* name) {
    LADDER_CHECK(std::isfinite(value) && value > 0, "plan: {} is {}: expected more than 0", name, value);
  };
  LADDER_CHECK(!problem.requests.empty(), "plan: requests: expected at least one");
  for (const PlannedRequest& request : problem.requests) {
    LADDER_CHECK(request.num_prompt >= 1, "plan: prompt_tokens is {}: expected at least 1",
                 request.num_prompt);
    LADDER_CHECK(request.num_output >= 1, "plan: output_tokens is {}: expected at least 1",
                 request.num_output);
    LADDER_CHECK(request.num_cached >= 0 && request.num_cached < request.num_prompt,
                 "plan: {} of {} prompt tokens are cached: expected fewer than all", request.num_cached,
                 request.num_prompt);
  }
  positive(problem.rate, "request rate");
  positive(problem.level.ttft, "ttft");
  positive(problem.level.tpot, "tpot");
  LADDER_CHECK(problem.level.gap >= 0, "plan: gap is {}: expected none below 0", problem.level.gap);
  LADDER_CHECK(problem.level.share > 0 && problem.level.share < 1,
               "plan: share is {}: expected between 0 and 1", problem.level.share);
  LADDER_CHECK(problem.num_gpus >= 1, "plan: gpus is {}: expected at least 1", problem.num_gpus);
  LADDER_CHECK(!problem.engines.empty(), "plan: engines: expected step times of at least one");
  const int64_t longest = longest_sequence(problem);
  for (const PlannedEngine& engine : problem.engines) {
    LADDER_CHECK(engine.tensor_parallel_size >= 1 && engine.max_num_seqs >= 1,
                 "plan: an engine of {} GPUs and {} sequences: expected at least 1",
                 engine.tensor_parallel_size, engine.max_num_seqs);
    LADDER_CHECK(engine.num_kv_tokens > longest,
                 "plan: the cache of an engine of {} GPUs holds {} tokens: expected more than the {} of the "
                 "longest request",
                 engine.tensor_parallel_size, engine.num_kv_tokens, longest);
  }
  LADDER_CHECK(problem.kv_bytes_per_token >= 1, "plan: kv_bytes_per_token is {}: expected at least 1",
               problem.kv_bytes_per_token);
  LADDER_CHECK(problem.num_layers >= 1, "plan: num_layers is {}: expected at least 1", problem.num_layers);
  positive(problem.link.bytes_per_second, "link rate");
  LADDER_CHECK(problem.link.latency >= 0, "plan: link latency is {}: expected none below 0",
               problem.link.latency);
  LADDER_CHECK(
      !problem.chunks.empty() && problem.chunks.front() >= 1 && std::ranges::is_sorted(problem.chunks),
      "plan: chunks: expected numbers above 0, ascending");
}

}  // namespace ladder
