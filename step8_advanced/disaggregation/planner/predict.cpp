#include "step8_advanced/disaggregation/planner/predict.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/task_not_implemented.h"
#include "step8_advanced/disaggregation/planner/prompts_beside.h"

namespace ladder {

double transfer_seconds(const PlanProblem& problem, const PlannedRequest& request) {
  return problem.link.latency +
         static_cast<double>((request.num_prompt - request.num_cached) * problem.kv_bytes_per_token) /
             problem.link.bytes_per_second;
}

DecodeLoad decode_load(const PlanProblem& problem) {
  double tokens = 0, contexts = 0;
  for (const PlannedRequest& request : problem.requests) {
    const auto output = static_cast<double>(request.num_output - 1);
    tokens += output;
    contexts += output * (static_cast<double>(request.num_prompt) + output / 2);
  }
  return {tokens / static_cast<double>(problem.requests.size()), tokens > 0 ? contexts / tokens : 0};
}

namespace {

double below(double normal) {
  return 0.5 * std::erfc(-normal * 0.70710678118654752);
}

// Share of what is spread around `mean` like a normal variable that is below `limit`.
double share_below(double limit, double mean, double variance) {
  if (variance <= 0) return mean <= limit ? 1 : 0;
  return below((limit - mean) / std::sqrt(variance));
}

// What stands between a request and its tokens, in one deployment at one rate.
struct Parts {
  Queue prefill, link;
  double step = 0;     // seconds of a step that only decodes
  double token = 0;    // seconds between an answer's tokens, in the mean over answers
  double batch = 0;    // sequences that decode, of an instance
  double largest = 0;  // that the level and the cache allow
  // Of engines that do both:
  AnswerAmongPrompts among;    // of a mean answer
  double prompt_variance = 0;  // of among.prompt
};

struct Moments {
  double seconds = 0, square = 0, steps = 0;
  double marginal = 0, marginal_square = 0;  // of PromptCost::seconds
};

// Of the problem's prompts, where a step without them takes `step`.
Moments moments_of(const PlanProblem& problem, const StepTimeModel& model, int64_t room, double step) {
  Moments sum;
  for (const PlannedRequest& request : problem.requests) {
    const PromptCost cost = prompt_cost(model, request, room);
    const double seconds = cost.seconds + cost.steps * step;
    sum.seconds += seconds;
    sum.square += seconds * seconds;
    sum.steps += cost.steps;
    sum.marginal += cost.seconds;
    sum.marginal_square += cost.seconds * cost.seconds;
  }
  const double share = 1 / static_cast<double>(problem.requests.size());
  return {sum.seconds * share, sum.square * share, sum.steps * share, sum.marginal * share,
          sum.marginal_square * share};
}

Moments transfers_of(const PlanProblem& problem) {
  Moments sum;
  for (const PlannedRequest& request : problem.requests) {
    const double seconds = transfer_seconds(problem, request);
    sum.seconds += seconds;
    sum.square += seconds * seconds;
  }
  const double share = 1 / static_cast<double>(problem.requests.size());
  return {.seconds = sum.seconds * share, .square = sum.square * share};
}

// Transfers that go on at a time: each instance has one link.
int num_links(const Deployment& deployment) {
  return std::min(deployment.prefill.count, deployment.decode.count);
}

// Seconds of a transfer for which its request waits.
double exposed(const PlanProblem& problem, double transfer, double compute) {
  return problem.link.layer_by_layer ? exposed_transfer(transfer, compute, problem.num_layers) : transfer;
}

// Rows of a prompt in a step beside a batch.
int64_t room_beside(const PlanProblem& problem, const Deployment& deployment, double batch) {
  const int64_t chunk =
      deployment.kind == DeploymentKind::unchunked ? longest_sequence(problem) : deployment.chunk;
  return std::max<int64_t>(1, chunk - static_cast<int64_t>(batch));
}

// >>> task 8.7.planner: what a deployment does at a rate
Parts disaggregated_parts(const PlanProblem& problem, const Deployment& deployment, double rate) {
  const StepTimeModel& prefill = engine_of(problem, deployment.prefill.tensor_parallel_size).model;
  const PlannedEngine& decode = engine_of(problem, deployment.decode.tensor_parallel_size);
  const DecodeLoad load = decode_load(problem);
  Parts parts;
  const Moments prompts = moments_of(problem, prefill, deployment.chunk, prefill.fixed);
  parts.prefill = make_queue(rate, prompts.seconds, prompts.square, deployment.prefill.count);
  const Moments transfers = transfers_of(problem);
  parts.link = make_queue(rate, transfers.seconds, transfers.square, num_links(deployment));
  parts.batch = decode_batch(decode.model, load, rate / deployment.decode.count);
  parts.step = decode_step(decode.model, load, parts.batch);
  parts.token = parts.step;
  parts.largest = largest_batch(decode, load, problem.level.tpot);
  return parts;
}

// Of engines that do both: a prompt lengthens steps of the answers, and their batch lengthens its own.
Parts monolithic_parts(const PlanProblem& problem, const Deployment& deployment, double rate) {
  const PlannedEngine& engine = engine_of(problem, deployment.prefill.tensor_parallel_size);
  const DecodeLoad load = decode_load(problem);
  const double each = rate / deployment.prefill.count;
  Parts parts;
  parts.link.stable = true;
  parts.largest = largest_batch(engine, load, problem.level.tpot);
  for (int i = 0; i < 40; ++i) {
    parts.step = decode_step(engine.model, load, parts.batch);
    const Moments prompts =
        moments_of(problem, engine.model, room_beside(problem, deployment, parts.batch), parts.step);
    parts.prefill = make_queue(rate, prompts.seconds, prompts.square, deployment.prefill.count);
    if (!parts.prefill.stable) return parts;
    // An answer lasts for steps of its own, and for the prompts that come before its end.
    parts.among = {parts.prefill, each, load.num_output * parts.step, prompts.marginal,
                   load.num_output / prompts.steps};
    parts.prompt_variance = prompts.marginal_square - prompts.marginal * prompts.marginal;
    const double answer = parts.among.answer + mean_prompts_beside(parts.among) * parts.among.prompt;
    parts.token = load.num_output > 0 ? answer / load.num_output : parts.step;
    const double batch = each * answer;
    if (std::abs(batch - parts.batch) < 1e-3 * batch) break;
    parts.batch = std::min((parts.batch + batch) / 2, 2.0 * static_cast<double>(engine.max_num_seqs));
  }
  return parts;
}
// <<< task 8.7.planner

// Seconds to the first token besides waiting for other prompts and transfers.
std::vector<double> first_tokens(const PlanProblem& problem, const Deployment& deployment,
                                 const Parts& parts) {
  const bool is_split = deployment.kind == DeploymentKind::disaggregated;
  const StepTimeModel& model = engine_of(problem, deployment.prefill.tensor_parallel_size).model;
  const double step = is_split ? model.fixed : parts.step;
  const int64_t room = is_split ? deployment.chunk : room_beside(problem, deployment, parts.batch);
  // The step that goes on when it comes, half of it; at D its own step too, which computes the last token of the prompt.
  const double running = 0.5 * parts.step * std::min(1.0, parts.batch);
  std::vector<double> seconds;
  for (const PlannedRequest& request : problem.requests) {
    const PromptCost cost = prompt_cost(model, request, room);
    const double compute = cost.seconds + static_cast<double>(cost.num_steps) * step;
    seconds.push_back(compute + running);
    if (is_split)
      seconds.back() +=
          exposed(problem, transfer_seconds(problem, request), compute) + parts.link.mean_wait() + parts.step;
  }
  return seconds;
}

double share_by(const std::vector<double>& first_tokens, const Queue& queue, double ttft) {
  double sum = 0;
  for (const double seconds : first_tokens) sum += queue.share_within(ttft - seconds);
  return sum / static_cast<double>(first_tokens.size());
}

// Of the problem's prompts: those that make a longer gap than was promised.
double share_too_long(const PlanProblem& problem, const Deployment& deployment, const Parts& parts,
                      const StepTimeModel& model) {
  if (problem.level.gap <= 0) return 0;
  const int64_t room = room_beside(problem, deployment, parts.batch);
  int64_t too_long = 0;
  for (const PlannedRequest& request : problem.requests) {
    const int64_t rows = std::min(room, request.num_prompt - request.num_cached);
    const StepWork last{1, rows, request.num_prompt - rows, prompt_pairs(rows, request.num_prompt - rows)};
    too_long += model.seconds(last) - model.fixed + parts.step > problem.level.gap ? 1 : 0;
  }
  return static_cast<double>(too_long) / static_cast<double>(problem.requests.size());
}

// Of answers whose tokens come as fast as was promised: the mean over an answer, and its longest gap.
double share_of_answers(const PlanProblem& problem, const Deployment& deployment, const Parts& parts) {
  const DecodeLoad load = decode_load(problem);
  if (load.num_output <= 0) return 1;
  const bool is_split = deployment.kind == DeploymentKind::disaggregated;
  const StepTimeModel& model =
      engine_of(problem, (is_split ? deployment.decode : deployment.prefill).tensor_parallel_size).model;
  const double slope = model.per_sequence + load.context * model.per_kv_token;
  const double longest = problem.level.gap > 0 ? problem.level.gap : std::numeric_limits<double>::infinity();
  const double too_long = is_split ? 0 : share_too_long(problem, deployment, parts, model);
  const std::vector<double> prompts = is_split ? std::vector<double>{1} : prompts_beside(parts.among);
  const double mean_prompts = is_split ? 0 : mean_prompts_beside(parts.among);
  double share = 0;
  for (size_t count = 0; count < prompts.size(); ++count) {
    const double seen = is_split ? 0 : std::min(static_cast<double>(count), parts.among.most);
    // The batch is spread like a Poisson variable. Where more prompts came than in the mean their answers are in it too.
    const double batch = std::max(0.0, parts.batch + seen - mean_prompts);
    const double step = decode_step(model, load, batch), variance = batch * slope * slope;
    const double added = seen * parts.among.prompt / load.num_output,
                 added_variance = seen * parts.prompt_variance / (load.num_output * load.num_output);
    share += prompts[count] * share_below(problem.level.tpot, step + added, variance + added_variance) *
             share_below(longest, step, variance) * std::pow(1 - too_long, seen);
  }
  return share * share_below(parts.largest + 0.5, parts.batch, parts.batch);
}

}  // namespace

Prediction predict(const PlanProblem& problem, const Deployment& deployment, double rate) {
  const bool is_split = deployment.kind == DeploymentKind::disaggregated;
  const Parts parts =
      is_split ? disaggregated_parts(problem, deployment, rate) : monolithic_parts(problem, deployment, rate);
  Prediction result;
  result.prefill_utilisation = parts.prefill.utilisation;
  result.link_utilisation = parts.link.utilisation;
  result.decode_batch = parts.batch;
  const PlannedEngine& engine =
      engine_of(problem, (is_split ? deployment.decode : deployment.prefill).tensor_parallel_size);
  result.stable =
      parts.prefill.stable && parts.link.stable && parts.batch <= static_cast<double>(engine.max_num_seqs);
  if (!result.stable) return result;
  if (is_split) {
    // Little again: a prompt's blocks stay from its end to the end of its transfer. There must be room for the next one beside.
    double prompt = 0;
    for (const PlannedRequest& request : problem.requests)
      prompt += static_cast<double>(request.num_prompt) / static_cast<double>(problem.requests.size());
    result.pinned_tokens = rate * prompt * (parts.link.mean_wait() + transfers_of(problem).seconds);
    const PlannedEngine& prefill = engine_of(problem, deployment.prefill.tensor_parallel_size);
    result.stable = result.pinned_tokens + prompt <=
                    static_cast<double>(deployment.prefill.count * prefill.num_kv_tokens);
    if (!result.stable) return result;
  }
  const std::vector<double> first = first_tokens(problem, deployment, parts);
  result.attained =
      share_by(first, parts.prefill, problem.level.ttft) * share_of_answers(problem, deployment, parts);
  for (const double seconds : first) result.ttft_mean += seconds / static_cast<double>(first.size());
  result.ttft_mean += parts.prefill.mean_wait();
  result.tpot_mean = parts.token;
  double low = 0, high = result.ttft_mean;
  while (share_by(first, parts.prefill, high) < problem.level.share) high *= 2;
  for (int i = 0; i < 40; ++i)
    (share_by(first, parts.prefill, (low + high) / 2) < problem.level.share ? low : high) = (low + high) / 2;
  result.ttft = high;
  return result;
}

double predicted_goodput(const PlanProblem& problem, const Deployment& deployment) {
  const auto is_good = [&](double rate) {
    return predict(problem, deployment, rate).attained >= problem.level.share;
  };
  double high = 1e-3;  // a request in a quarter of an hour
  if (!is_good(high)) return 0;
  while (is_good(2 * high) && high < 1e9) high *= 2;
  double low = high;
  high *= 2;
  for (int i = 0; i < 16; ++i) (is_good((low + high) / 2) ? low : high) = (low + high) / 2;
  return low;
}

}  // namespace ladder
