#include "step8_advanced/disaggregation/planner/cluster_simulation.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

#include "step1_layers/core/error.h"
#include "step7_parallel/data/simulation/draws.h"
#include "step7_parallel/data/simulation/simulated_replica.h"
#include "step8_advanced/disaggregation/planner/planned_requests.h"
#include "step8_advanced/disaggregation/planner/predict.h"

namespace ladder {

namespace {

constexpr int64_t kVocabulary = 1 << 20;

// The value that this share of them does not exceed.
double at_share(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<int64_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<size_t>(rank)];
}

// The end of an instance's link: of P, which keeps what it has computed, or of D, which loads it.
class LinkEnd final : public KvConnector {
 public:
  int64_t num_external_tokens(const Sequence& sequence, int64_t num_local) const override {
    return sequence.num_prompt_tokens - num_local;
  }
  void start_load(KvLoad load) override { started_.push_back(std::move(load)); }
  void on_unneeded(const Sequence& sequence) override {
    unneeded_.push_back(sequence.kv_transfer->remote_request_id);
  }
  std::optional<KvTransferParams> hold(const Sequence& sequence) override {
    held_.emplace(sequence.kv_transfer->remote_request_id, sequence.id);
    return *sequence.kv_transfer;
  }
  KvConnectorEvents poll() override { return std::exchange(events_, {}); }

  std::vector<KvLoad> take_started() { return std::exchange(started_, {}); }
  std::vector<std::string> take_unneeded() { return std::exchange(unneeded_, {}); }
  void has_come(const KvLoad& load) { events_.loads.push_back({load.id, load.num_tokens, {}, false}); }
  // False: it was told before.
  bool release(const std::string& request) {
    const auto held = held_.extract(request);
    if (held) events_.released.push_back(held.mapped());
    return !held.empty();
  }

 private:
  std::vector<KvLoad> started_;
  std::vector<std::string> unneeded_;
  std::unordered_map<std::string, SequenceId> held_;
  KvConnectorEvents events_;
};

class Cluster {
 public:
  Cluster(const PlanProblem& problem, const Deployment& deployment, const ClusterOptions& options)
      : problem_(problem),
        deployment_(deployment),
        options_(options),
        is_split_(deployment.kind == DeploymentKind::disaggregated),
        random_(options.seed),
        states_(problem.requests.size()) {
    int64_t most_cached = 0;
    for (const PlannedRequest& request : problem.requests)
      most_cached = std::max(most_cached, request.num_cached);
    common_ = draw_tokens(most_cached);
    add_instances(deployment.prefill, false);
    if (is_split_) add_instances(deployment.decode, true);
    const auto num_links = static_cast<size_t>(std::min(deployment.prefill.count, deployment.decode.count));
    link_free_.resize(num_links);
    for (int64_t i = 0; i < std::ssize(problem.requests); ++i)
      push(problem.requests[static_cast<size_t>(i)].arrival, Event::arrival, i);
  }

  ClusterResult run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      if (event.kind == Event::arrival) {
        arrive(event.index);
      } else if (event.kind == Event::transferred) {
        end_transfer(event.index);
      } else if (event.kind == Event::look) {
        wake(event.index);
      } else {
        end_step(event.index);
        begin_step(event.index);
      }
    }
    return result();
  }

 private:
  struct Event {
    enum Kind { arrival, transferred, look, step_end };  // look: something has come for an idle instance
    double time = 0;
    int64_t order = 0;  // of events at one time
    Kind kind = arrival;
    int64_t index = 0;  // of the request, or the instance
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Instance {
    std::unique_ptr<SimulatedReplica> replica;
    std::shared_ptr<LinkEnd> link;  // disaggregated
    bool decodes = false;           // D
    int64_t num_requests = 0;
  };
  struct State {
    std::vector<int32_t> prompt;
    double sent = 0, first = 0, last = 0, longest_gap = 0;
    int64_t num_tokens = 0;
    bool is_measured = false;
    // Disaggregated:
    int64_t prefill = 0, decode = 0;  // the instances
    KvLoad load;                      // of D
  };

  std::vector<int32_t> draw_tokens(int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(draw_uniform(random_, 0, kVocabulary - 1));
    return tokens;
  }

  void add_instances(const Instances& instances, bool decodes) {
    const PlannedEngine& engine = engine_of(problem_, instances.tensor_parallel_size);
    SchedulerConfig config;
    config.batch = {.max_num_seqs = engine.max_num_seqs,
                    .max_num_batched_tokens = deployment_.chunk,
                    .max_model_len = longest_sequence(problem_) + 1,
                    .block_size = options_.block_size,
                    .num_kv_blocks = engine.num_kv_tokens / options_.block_size};
    config.vocab_size = kVocabulary;
    config.prefix_cache_seed = 0;
    config.enable_prefix_caching = !common_.empty();
    config.enable_chunked_prefill = deployment_.kind != DeploymentKind::unchunked;
    if (!config.enable_chunked_prefill || decodes)
      config.batch.max_num_batched_tokens = std::max(deployment_.chunk, config.batch.max_model_len);
    for (int i = 0; i < instances.count; ++i) {
      const auto link = is_split_ ? std::make_shared<LinkEnd>() : nullptr;
      instances_.push_back(
          {std::make_unique<SimulatedReplica>(config, engine.model, link), link, decodes, 0});
    }
  }

  void push(double time, Event::Kind kind, int64_t index) {
    events_.push({time, next_order_++, kind, index});
  }

  // Of those that decode, or of the others; the first of several with as few requests.
  int64_t least_loaded(bool decodes) const {
    int64_t best = -1;
    for (int64_t i = 0; i < std::ssize(instances_); ++i) {
      const Instance& instance = instances_[static_cast<size_t>(i)];
      if (instance.decodes != decodes) continue;
      if (best < 0 || instance.num_requests < instances_[static_cast<size_t>(best)].num_requests) best = i;
    }
    return best;
  }

  void arrive(int64_t index) {
    const PlannedRequest& request = problem_.requests[static_cast<size_t>(index)];
    State& state = states_[static_cast<size_t>(index)];
    state.sent = now_;
    const auto count = static_cast<double>(problem_.requests.size());
    const auto place = static_cast<double>(index);
    state.is_measured = place >= options_.leave_out * count && place < (1 - options_.leave_out) * count;
    state.prompt.assign(common_.begin(), common_.begin() + request.num_cached);
    const std::vector<int32_t> own = draw_tokens(request.num_prompt - request.num_cached);
    state.prompt.insert(state.prompt.end(), own.begin(), own.end());
    state.prefill = least_loaded(false);
    KvTransferParams kept;
    kept.do_remote_decode = true;
    send(state.prefill, index, is_split_ ? 1 : request.num_output, std::move(kept));
  }

  void send(int64_t to, int64_t index, int64_t num_output, KvTransferParams transfer) {
    Instance& instance = instances_[static_cast<size_t>(to)];
    State& state = states_[static_cast<size_t>(index)];
    ++instance.num_requests;
    transfer.remote_request_id = std::to_string(index);
    instance.replica->add(
        index, state.prompt, num_output,
        is_split_ ? std::make_shared<const KvTransferParams>(std::move(transfer)) : nullptr);
    wake(to);
  }

  // Something has come for it, which it looks at before its next step.
  void wake(int64_t instance) {
    if (!instances_[static_cast<size_t>(instance)].replica->in_step()) begin_step(instance);
  }

  void begin_step(int64_t index) {
    Instance& instance = instances_[static_cast<size_t>(index)];
    if (const auto seconds = instance.replica->begin_step()) push(now_ + *seconds, Event::step_end, index);
    if (!instance.decodes) return;
    for (KvLoad& load : instance.link->take_started()) begin_transfer(std::move(load));
    for (const std::string& request : instance.link->take_unneeded()) release(request);
  }

  void end_step(int64_t index) {
    Instance& instance = instances_[static_cast<size_t>(index)];
    for (const SimulatedToken& token : instance.replica->end_step()) {
      if (token.is_last) --instance.num_requests;
      if (is_split_ && !instance.decodes) {
        hand_over(token.request);
      } else {
        on_token(token.request);
      }
    }
  }

  // The prompt is computed.
  void hand_over(int64_t index) {
    const PlannedRequest& request = problem_.requests[static_cast<size_t>(index)];
    State& state = states_[static_cast<size_t>(index)];
    pinned_ += request.num_prompt;
    peak_pinned_ = std::max(peak_pinned_, pinned_);
    state.decode = least_loaded(true);
    KvTransferParams from_there;
    from_there.do_remote_prefill = true;
    send(state.decode, index, request.num_output, std::move(from_there));
  }

  // D has room for it. On the link that is free first. What of the prompt travelled while it was computed is not told by the
  // instance, so that the time it took alone is used.
  void begin_transfer(KvLoad load) {
    const int64_t index = std::stoll(load.from->remote_request_id);
    const PlannedRequest& request = problem_.requests[static_cast<size_t>(index)];
    const PlannedEngine& engine = engine_of(problem_, deployment_.prefill.tensor_parallel_size);
    const PromptCost cost = prompt_cost(engine.model, request, deployment_.chunk);
    const double compute = cost.seconds + static_cast<double>(cost.num_steps) * engine.model.fixed;
    const double seconds = transfer_seconds(problem_, request);
    const double exposed =
        problem_.link.layer_by_layer ? exposed_transfer(seconds, compute, problem_.num_layers) : seconds;
    double& free = *std::ranges::min_element(link_free_);
    free = std::max(free + seconds, now_ + exposed);
    ++num_transfers_;
    states_[static_cast<size_t>(index)].load = std::move(load);
    push(free, Event::transferred, index);
  }

  void end_transfer(int64_t index) {
    const State& state = states_[static_cast<size_t>(index)];
    release(state.load.from->remote_request_id);
    instances_[static_cast<size_t>(state.decode)].link->has_come(state.load);
    wake(state.decode);
  }

  // P has its blocks back: fetched, or what D has of a common beginning was all of it.
  void release(const std::string& request) {
    const auto index = static_cast<size_t>(std::stoll(request));
    const int64_t prefill = states_[index].prefill;
    if (!instances_[static_cast<size_t>(prefill)].link->release(request)) return;
    pinned_ -= problem_.requests[index].num_prompt;
    push(now_, Event::look, prefill);
  }

  void on_token(int64_t index) {
    State& state = states_[static_cast<size_t>(index)];
    if (options_.tokens != nullptr) options_.tokens->push_back({index, now_});
    if (state.num_tokens++ == 0) {
      state.first = now_;
      state.prompt = {};
    } else {
      state.longest_gap = std::max(state.longest_gap, now_ - state.last);
      if (state.is_measured) gaps_.push_back(now_ - state.last);
    }
    state.last = now_;
  }

  ClusterResult result() {
    ClusterResult result;
    result.seconds = now_;
    result.num_transfers = num_transfers_;
    result.peak_pinned_tokens = peak_pinned_;
    const ServiceLevel& level = problem_.level;
    std::vector<double> ttfts, tpots;
    int64_t good = 0;
    for (size_t i = 0; i < states_.size(); ++i) {
      const State& state = states_[i];
      LADDER_CHECK(state.num_tokens == problem_.requests[i].num_output,
                   "simulated cluster: request {} got {} of {} tokens", i, state.num_tokens,
                   problem_.requests[i].num_output);
      if (!state.is_measured) continue;
      const double tpot =
          state.num_tokens > 1 ? (state.last - state.first) / static_cast<double>(state.num_tokens - 1) : 0;
      result.answers.push_back({state.first - state.sent, tpot, state.longest_gap});
      ttfts.push_back(state.first - state.sent);
      tpots.push_back(tpot);
      good += ttfts.back() <= level.ttft && tpot <= level.tpot &&
                      (level.gap <= 0 || state.longest_gap <= level.gap)
                  ? 1
                  : 0;
    }
    if (!ttfts.empty()) result.attained = static_cast<double>(good) / static_cast<double>(ttfts.size());
    result.ttft_p50 = at_share(ttfts, 0.5);
    result.ttft_p90 = at_share(ttfts, 0.9);
    result.ttft_p99 = at_share(ttfts, 0.99);
    result.tpot_p50 = at_share(tpots, 0.5);
    result.tpot_p90 = at_share(tpots, 0.9);
    result.tpot_p99 = at_share(tpots, 0.99);
    result.gap_p50 = at_share(gaps_, 0.5);
    result.gap_p99 = at_share(gaps_, 0.99);
    result.gap_max = at_share(gaps_, 1);
    for (const Instance& instance : instances_)
      LADDER_CHECK(instance.replica->stats().num_used_blocks == 0,
                   "simulated cluster: {} KV blocks are held after the last answer",
                   instance.replica->stats().num_used_blocks);
    return result;
  }

  const PlanProblem& problem_;
  const Deployment& deployment_;
  const ClusterOptions& options_;
  const bool is_split_;
  std::mt19937_64 random_;
  std::vector<int32_t> common_;  // that cached prompts begin with
  std::vector<Instance> instances_;
  std::vector<double> link_free_;  // when each link has sent all that it was given
  std::vector<State> states_;      // of the requests
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t next_order_ = 0;
  double now_ = 0;
  std::vector<double> gaps_;
  int64_t num_transfers_ = 0, pinned_ = 0, peak_pinned_ = 0;
};

// The requests again and again, until at this rate they come for kAnswers times as long as an answer may take: before that a
// cluster only fills, and takes any rate.
std::vector<PlannedRequest> lasting(const PlanProblem& problem, double rate) {
  constexpr double kAnswers = 8;
  std::vector<PlannedRequest> requests = problem.requests;
  const double period = requests.back().arrival - requests.front().arrival +
                        1 / rate_of(requests);  // the next round begins as far behind as requests are apart
  const double seconds = kAnswers * decode_load(problem).num_output * problem.level.tpot;
  for (size_t i = 0; static_cast<double>(requests.size()) < rate * seconds; ++i) {
    requests.push_back(requests[i]);
    requests.back().arrival += period;
  }
  return requests;
}

}  // namespace

ClusterResult simulate_cluster(const PlanProblem& problem, const Deployment& deployment,
                               const ClusterOptions& options) {
  check_problem(problem);
  return Cluster(problem, deployment, options).run();
}

double simulated_goodput(const PlanProblem& problem, const Deployment& deployment, double guess,
                         const ClusterOptions& options) {
  PlanProblem tried = problem;
  const auto is_good = [&](double rate) {
    tried.requests = at_rate(lasting(problem, rate), rate);
    tried.rate = rate;
    return simulate_cluster(tried, deployment, options).attained >= problem.level.share;
  };
  double low = guess, high = guess;
  if (is_good(guess)) {
    while (is_good(high = low * 1.3) && low < 1e3 * guess) low = high;
  } else {
    do low = high / 1.3;
    while (!is_good(low) && (high = low) > guess / 100);
    if (low <= guess / 100) return 0;
    high = 1.3 * low;
  }
  while (high > 1.04 * low) {
    const double middle = (low + high) / 2;
    (is_good(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace ladder
