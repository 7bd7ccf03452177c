// Each policy in ten lines: a score for every replica, of which the lowest wins. Among equal ones the search begins behind the
// last one chosen, so that idle replicas take turns.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"
#include "step7_parallel/data/balancer.h"
#include "step7_parallel/data/prefix_tree.h"

namespace ladder {

namespace {

// The replica with the lowest score(load, index) among those that take requests, looked for from `begin` on.
template <class Score>
int lowest(std::span<const ReplicaLoad> replicas, int begin, Score score) {
  int best = -1;
  double best_score = std::numeric_limits<double>::infinity();
  const int count = static_cast<int>(replicas.size());
  for (int i = 0; i < count; ++i) {
    const int index = (begin + i) % count;
    const ReplicaLoad& load = replicas[static_cast<size_t>(index)];
    if (!load.takes_requests) continue;
    const double value = score(load, index);
    if (best >= 0 && value >= best_score) continue;
    best = index;
    best_score = value;
  }
  LADDER_CHECK(best >= 0, "balancer: none of {} replicas takes requests", count);
  return best;
}

class RoundRobin final : public Balancer {
 public:
  int choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) override;

 private:
  int next_ = 0;
};

// vLLM's first score.
class QueueLength final : public Balancer {
 public:
  int choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) override;

 private:
  int next_ = 0;
};

// vLLM's score of 2026 (DPLBAsyncMPClient.get_core_engine_for_request).
class LoadScore final : public Balancer {
 public:
  explicit LoadScore(int64_t num_doors) : num_doors_(num_doors) {}
  int choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) override;

 private:
  const int64_t num_doors_;
  int next_ = 0;
};

class LeastKv final : public Balancer {
 public:
  int choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) override;

 private:
  int next_ = 0;
};

// SGLang's rule (sgl-router, policies/cache_aware.rs), its three thresholds included.
class PrefixAware final : public Balancer {
 public:
  explicit PrefixAware(const BalancerOptions& options)
      : tree_(options.num_replicas, std::max<int64_t>(options.cache_tokens, 1)),
        lengths_(static_cast<size_t>(options.num_replicas)) {}
  int choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) override;
  void forget(int replica) override { tree_.forget(replica); }

 private:
  // A replica has so many more requests than another that balance counts more than the cache.
  static constexpr int64_t kMaxDifference = 64;
  static constexpr double kMaxRatio = 1.5;
  // A share of the prompt that is worth going to where it lies.
  static constexpr double kWorthwhile = 0.3;

  static bool is_uneven(std::span<const ReplicaLoad> replicas);

  PrefixTree tree_;
  std::vector<int64_t> lengths_;  // of one match
  int next_ = 0;
};

// >>> task 7.7: the policies
int RoundRobin::choose(const BalancedRequest& /*request*/, std::span<const ReplicaLoad> replicas) {
  const int chosen = lowest(replicas, next_, [](const ReplicaLoad&, int) { return 0.0; });
  next_ = chosen + 1;
  return chosen;
}

int QueueLength::choose(const BalancedRequest& /*request*/, std::span<const ReplicaLoad> replicas) {
  const int chosen = lowest(replicas, next_, [](const ReplicaLoad& load, int) {
    return static_cast<double>(4 * load.num_waiting + load.num_running);
  });
  next_ = chosen + 1;
  return chosen;
}

int LoadScore::choose(const BalancedRequest& /*request*/, std::span<const ReplicaLoad> replicas) {
  const int chosen = lowest(replicas, next_, [&](const ReplicaLoad& load, int) {
    const int64_t reported = load.num_waiting + load.num_running;
    const int64_t known = std::max(num_doors_ * load.num_in_flight, reported);
    return static_cast<double>(known) +
           6.0 * static_cast<double>(load.num_waiting) * std::max(0.0, load.kv_usage - 0.5);
  });
  next_ = chosen + 1;
  return chosen;
}

// Reports are late: a burst would all go to the one that is ahead by a block. So hundredths are equal, and among equal ones
// the fewest requests win.
int LeastKv::choose(const BalancedRequest& /*request*/, std::span<const ReplicaLoad> replicas) {
  const int chosen = lowest(replicas, next_, [](const ReplicaLoad& load, int) {
    return std::floor(100.0 * load.kv_usage) * 1e6 + static_cast<double>(load.num_in_flight);
  });
  next_ = chosen + 1;
  return chosen;
}

bool PrefixAware::is_uneven(std::span<const ReplicaLoad> replicas) {
  int64_t most = 0, fewest = std::numeric_limits<int64_t>::max();
  for (const ReplicaLoad& load : replicas) {
    if (!load.takes_requests) continue;
    most = std::max(most, load.num_in_flight);
    fewest = std::min(fewest, load.num_in_flight);
  }
  return most - fewest > kMaxDifference &&
         static_cast<double>(most) > kMaxRatio * static_cast<double>(fewest);
}

int PrefixAware::choose(const BalancedRequest& request, std::span<const ReplicaLoad> replicas) {
  tree_.match(request.prompt_token_ids, lengths_);
  const auto worthwhile = kWorthwhile * static_cast<double>(request.prompt_token_ids.size());
  int chosen = 0;
  if (is_uneven(replicas)) {
    chosen = lowest(replicas, next_,
                    [](const ReplicaLoad& load, int) { return static_cast<double>(load.num_in_flight); });
  } else {
    // The longest match; among equally long ones the fewest requests.
    chosen = lowest(replicas, next_, [&](const ReplicaLoad& load, int index) {
      return static_cast<double>(load.num_in_flight) -
             1e6 * static_cast<double>(lengths_[static_cast<size_t>(index)]);
    });
    if (static_cast<double>(lengths_[static_cast<size_t>(chosen)]) <= worthwhile)
      chosen = lowest(replicas, next_, [&](const ReplicaLoad& load, int index) {
        return static_cast<double>(tree_.num_tokens(index)) + static_cast<double>(load.num_in_flight) * 1e-6;
      });
  }
  next_ = chosen + 1;
  tree_.insert(chosen, request.prompt_token_ids);
  return chosen;
}
// <<< task 7.7

template <class Policy>
std::unique_ptr<Balancer> make(const BalancerOptions& /*options*/) {
  return std::make_unique<Policy>();
}

constexpr std::array kBalancers = {
    BalancerRow{"round_robin", "in turn", make<RoundRobin>},
    BalancerRow{"queue_length", "the lowest 4 x waiting + running", make<QueueLength>},
    BalancerRow{"load_score", "what is known to be there, and more where it waits for a full cache",
                [](const BalancerOptions& options) -> std::unique_ptr<Balancer> {
                  return std::make_unique<LoadScore>(options.num_doors);
                }},
    BalancerRow{"least_kv", "the lowest use of the KV cache", make<LeastKv>},
    BalancerRow{"prefix_aware", "the most of the prompt cached, while the load is even",
                [](const BalancerOptions& options) -> std::unique_ptr<Balancer> {
                  return std::make_unique<PrefixAware>(options);
                }},
};

}  // namespace

std::span<const BalancerRow> balancers() {
  return kBalancers;
}

std::unique_ptr<Balancer> make_balancer(std::string_view name, const BalancerOptions& options) {
  std::string names;
  for (const BalancerRow& row : kBalancers) {
    if (row.name == name) return row.make(options);
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  fail("--data-parallel-balancer {}: expected one of {}", name, names);
}

}  // namespace ladder
