#include "step7_parallel/data/simulation/fleet_simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <queue>
#include <random>

#include "step1_layers/core/error.h"
#include "step7_parallel/data/simulation/draws.h"

namespace ladder {

namespace {

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(rank), values.end());
  return values[rank];
}

// Times between tokens, of which there are too many to keep: counts in classes each 1 % wider than the one before.
class Times {
 public:
  void add(double seconds) {
    const double position = std::log(std::max(seconds, kLeast) / kLeast) / kStep;
    const auto place = std::min(static_cast<size_t>(position), counts_.size() - 1);
    ++counts_[place];
    ++count_;
    sum_ += seconds;
  }
  double mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }
  // The middle of the class that holds it.
  double percentile(double share) const {
    auto left = static_cast<int64_t>(share * static_cast<double>(count_ - 1));
    for (size_t i = 0; i < counts_.size(); ++i)
      if ((left -= counts_[i]) < 0) return kLeast * std::exp((static_cast<double>(i) + 0.5) * kStep);
    return 0;
  }

 private:
  static constexpr double kLeast = 1e-6, kStep = 0.00995;  // seconds; log 1.01
  std::vector<int64_t> counts_ = std::vector<int64_t>(2500);
  int64_t count_ = 0;
  double sum_ = 0;
};

// A turn arrives, or a replica's step ends.
struct Event {
  double time = 0;
  int64_t order = 0;  // of events at one time
  bool is_arrival = false;
  int64_t index = 0;  // of the session, or the replica
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : order > other.order;
  }
};

class Fleet {
 public:
  Fleet(const FleetConfig& config, const std::vector<PlannedSession>& sessions)
      : config_(config),
        sessions_(sessions),
        random_(config.seed),
        states_(sessions.size()),
        loads_(static_cast<size_t>(config.num_replicas)) {
    const BatchConfig& batch = config.scheduler.batch;
    balancer_ = make_balancer(config.balancer, {.num_replicas = config.num_replicas,
                                                .cache_tokens = batch.num_kv_blocks * batch.block_size});
    for (int i = 0; i < config.num_replicas; ++i)
      replicas_.push_back(std::make_unique<SimulatedReplica>(config.scheduler, config.model));
    int64_t all_output = 0;
    for (const PlannedSession& session : sessions)
      for (const PlannedTurn& turn : session) all_output += turn.num_output;
    measure_from_ = static_cast<int64_t>(config.measure_from * static_cast<double>(all_output));
    measure_to_ = static_cast<int64_t>(config.measure_to * static_cast<double>(all_output));
    double begin = 0;
    for (int64_t i = 0; i < std::ssize(sessions); ++i) {
      if (config.sessions_per_second > 0) begin += draw_exponential(random_, 1 / config.sessions_per_second);
      push(begin, true, i);
    }
  }

  FleetResult run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      if (event.is_arrival) {
        arrive(event.index);
      } else {
        end_step(event.index);
        begin_step(event.index);
      }
    }
    return result();
  }

 private:
  struct State {
    std::vector<int32_t> tokens;  // all that was said
    size_t turn = 0;
    double sent = 0, last_token = 0;
    int64_t num_output = 0;  // of this turn
    size_t replica = 0;
    bool is_measured = false;  // this turn
  };

  void push(double time, bool is_arrival, int64_t index) {
    events_.push({time, next_order_++, is_arrival, index});
  }

  void arrive(int64_t session) {
    State& state = states_[static_cast<size_t>(session)];
    const PlannedTurn& turn = sessions_[static_cast<size_t>(session)][state.turn];
    for (int64_t i = 0; i < turn.num_new_tokens; ++i)
      state.tokens.push_back(
          static_cast<int32_t>(draw_uniform(random_, 0, config_.scheduler.vocab_size - 1)));
    if (is_measuring()) note_imbalance();
    state.is_measured = is_measuring();
    state.replica = static_cast<size_t>(balancer_->choose({state.tokens, 1}, loads_));
    state.sent = now_;
    state.num_output = 0;
    ++loads_[state.replica].num_in_flight;
    ++loads_[state.replica].num_waiting;
    ++num_requests_;
    SimulatedReplica& replica = *replicas_[state.replica];
    replica.add(session, state.tokens, turn.num_output);
    if (!replica.in_step()) begin_step(static_cast<int64_t>(state.replica));
  }

  void begin_step(int64_t replica) {
    if (const auto seconds = replicas_[static_cast<size_t>(replica)]->begin_step())
      push(now_ + *seconds, false, replica);
  }

  void end_step(int64_t index) {
    SimulatedReplica& replica = *replicas_[static_cast<size_t>(index)];
    ReplicaLoad& load = loads_[static_cast<size_t>(index)];
    for (const SimulatedToken& token : replica.end_step()) {
      State& state = states_[static_cast<size_t>(token.request)];
      if (state.num_output++ > 0) {
        if (is_measuring()) gaps_.add(now_ - state.last_token);
      } else if (state.is_measured) {
        ttfts_.push_back(now_ - state.sent);
      }
      state.last_token = now_;
      state.tokens.push_back(token.token_id);
      if (++num_output_tokens_ == measure_from_) measured_from_ = now_, found_before_ = found();
      if (num_output_tokens_ == measure_to_) measured_to_ = now_, found_after_ = found();
      if (!token.is_last) continue;
      --load.num_in_flight;
      const PlannedSession& session = sessions_[static_cast<size_t>(token.request)];
      if (++state.turn == session.size()) {
        state.tokens = {};
      } else {
        const double think = config_.sessions_per_second > 0 ? session[state.turn].think_seconds : 0;
        push(now_ + think, true, token.request);
      }
    }
    const SchedulerStats stats = replica.stats();
    load.num_waiting = stats.num_waiting;
    load.num_running = stats.num_running;
    load.kv_usage = static_cast<double>(stats.num_used_blocks) / static_cast<double>(stats.num_blocks);
  }

  bool is_measuring() const {
    return num_output_tokens_ >= measure_from_ && num_output_tokens_ < measure_to_;
  }

  // Prompt tokens that the replicas' caches were asked for, and had.
  struct Found {
    int64_t queried = 0, hit = 0;
  };
  Found found() const {
    Found sum;
    for (const auto& replica : replicas_) {
      const SchedulerStats stats = replica->stats();
      sum.queried += stats.num_prefix_queried_tokens;
      sum.hit += stats.num_prefix_hit_tokens;
    }
    return sum;
  }

  void note_imbalance() {
    int64_t most = 0, sum = 0;
    for (const ReplicaLoad& load : loads_) {
      most = std::max(most, load.num_in_flight);
      sum += load.num_in_flight;
    }
    if (sum == 0) return;
    imbalance_sum_ +=
        static_cast<double>(most) * static_cast<double>(loads_.size()) / static_cast<double>(sum);
    ++num_imbalances_;
  }

  FleetResult result() {
    FleetResult result;
    result.num_requests = num_requests_;
    result.seconds = now_;
    result.ttft_p50 = percentile(ttfts_, 0.5);
    result.ttft_p99 = percentile(ttfts_, 0.99);
    result.inter_token_mean = gaps_.mean();
    result.inter_token_p99 = gaps_.percentile(0.99);
    result.imbalance = imbalance_sum_ / static_cast<double>(std::max<int64_t>(num_imbalances_, 1));
    for (const auto& replica : replicas_)
      LADDER_CHECK(replica->stats().num_used_blocks == 0,
                   "simulated replica: {} KV blocks are held after the last answer",
                   replica->stats().num_used_blocks);
    result.hit_rate = static_cast<double>(found_after_.hit - found_before_.hit) /
                      static_cast<double>(std::max<int64_t>(found_after_.queried - found_before_.queried, 1));
    result.measured_seconds = measured_to_ - measured_from_;
    if (result.measured_seconds > 0)
      result.output_tokens_per_second =
          static_cast<double>(measure_to_ - measure_from_) / result.measured_seconds;
    return result;
  }

  const FleetConfig& config_;
  const std::vector<PlannedSession>& sessions_;
  std::mt19937_64 random_;
  std::vector<State> states_;  // of the sessions
  std::vector<ReplicaLoad> loads_;
  std::unique_ptr<Balancer> balancer_;
  std::vector<std::unique_ptr<SimulatedReplica>> replicas_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t next_order_ = 0;
  double now_ = 0;

  std::vector<double> ttfts_;
  Times gaps_;
  int64_t num_requests_ = 0, num_output_tokens_ = 0;
  int64_t measure_from_ = 0, measure_to_ = 0;  // output tokens
  double measured_from_ = 0, measured_to_ = 0;
  Found found_before_, found_after_;
  double imbalance_sum_ = 0;
  int64_t num_imbalances_ = 0;
};

}  // namespace

FleetResult simulate_fleet(const FleetConfig& config, const std::vector<PlannedSession>& sessions) {
  return Fleet(config, sessions).run();
}

}  // namespace ladder
