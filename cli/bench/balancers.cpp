// `ladder bench balancers`: the balancers of replicas, side by side in a simulation (step7_parallel/data/simulation/).
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/bench/bench.h"
#include "cli/bench/report.h"
#include "cli/flag_values.h"
#include "cli/terminal.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/data/simulation/fleet_simulation.h"

namespace ladder {

namespace {

struct BalancersFlags {
  std::vector<int64_t> replicas{8};
  std::vector<double> loads{0.5, 0.8, 0.95};
  std::vector<std::string> balancers;  // none: all
  std::string workload = "sessions";
  int64_t sessions_per_replica = 1000;
  double think_seconds = SessionShape{}.think_seconds;
  int64_t num_kv_blocks = 72'256;  // what an H200 has beside Qwen3-0.6B
  uint64_t seed = 0;
  std::string json;
};

std::vector<PlannedSession> make_sessions(const BalancersFlags& flags, int64_t count) {
  if (flags.workload == "independent") return make_independent_requests(count, flags.seed);
  SessionShape shape;
  shape.think_seconds = flags.think_seconds;
  return make_growing_sessions(count, flags.seed, shape);
}

FleetConfig one_replica(const BalancersFlags& flags) {
  FleetConfig config;
  config.scheduler.batch = default_batch_limits(DeviceType::cuda);
  config.scheduler.batch.max_model_len = 16384;
  config.scheduler.batch.num_kv_blocks = flags.num_kv_blocks;
  config.scheduler.vocab_size = 151'936;
  config.scheduler.prefix_cache_seed = 0;
  config.model = kQwen3SmallOnH200;
  config.seed = flags.seed;
  config.measure_from = 0.25;
  config.measure_to = 0.75;
  return config;
}

void run_balancers(const BalancersFlags& flags) {
  check_report_file(flags.json);
  std::vector<std::string> names = flags.balancers;
  if (names.empty())
    for (const BalancerRow& row : balancers()) names.emplace_back(row.name);
  // What one answers in a second that has always more to do.
  const FleetConfig single = one_replica(flags);
  const auto saturating = make_sessions(flags, 512);
  double tokens_per_session = 0;
  for (const PlannedSession& session : saturating)
    for (const PlannedTurn& turn : session)
      tokens_per_session += static_cast<double>(turn.num_output) / static_cast<double>(saturating.size());
  const double token_rate = simulate_fleet(single, saturating).output_tokens_per_second;
  const double capacity = token_rate / tokens_per_session;
  write_out(fmt::format(
      "Simulated: steps as Qwen3-0.6B's on an H200, {} KV blocks a replica. One answers {:.2f} {} a "
      "second; the load is a share of that.\n",
      flags.num_kv_blocks, capacity, flags.workload));
  Json results = Json::array();
  for (const int64_t replicas : flags.replicas) {
    std::vector<std::vector<std::string>> table{{"load", "reached", "balancer", "TTFT p50", "p99",
                                                 "between tokens", "p99", "imbalance", "hit rate",
                                                 "output tokens/s"}};
    const auto sessions = make_sessions(flags, replicas * flags.sessions_per_replica);
    for (const double load : flags.loads)
      for (const std::string& name : names) {
        FleetConfig config = single;
        config.num_replicas = static_cast<int>(replicas);
        config.balancer = name;
        config.sessions_per_second = load * capacity * static_cast<double>(replicas);
        const FleetResult result = simulate_fleet(config, sessions);
        const auto milliseconds = [](double seconds) { return fmt::format("{:.1f} ms", seconds * 1e3); };
        const double reached = result.output_tokens_per_second / (token_rate * static_cast<double>(replicas));
        table.push_back({fmt::format("{:.2f}", load), fmt::format("{:.2f}", reached), name,
                         milliseconds(result.ttft_p50), milliseconds(result.ttft_p99),
                         milliseconds(result.inter_token_mean), milliseconds(result.inter_token_p99),
                         fmt::format("{:.2f}", result.imbalance), fmt::format("{:.3f}", result.hit_rate),
                         fmt::format("{:.0f}", result.output_tokens_per_second)});
        results.push_back({{"name", name},
                           {"workload", flags.workload},
                           {"replicas", replicas},
                           {"load", load},
                           {"load_reached", reached},
                           {"sessions", std::ssize(sessions)},
                           {"requests", result.num_requests},
                           {"seconds", result.seconds},
                           {"measured_seconds", result.measured_seconds},
                           {"time_to_first_token_median", result.ttft_p50},
                           {"time_to_first_token_p99", result.ttft_p99},
                           {"inter_token_latency_mean", result.inter_token_mean},
                           {"inter_token_latency_p99", result.inter_token_p99},
                           {"imbalance", result.imbalance},
                           {"hit_rate", result.hit_rate},
                           {"output_tokens_per_second", result.output_tokens_per_second}});
      }
    write_out(fmt::format("\n{} replicas\n", replicas) + format_table(table));
  }
  write_report(flags.json, results, {});
}

}  // namespace

RunCommand add_bench_balancers(CLI::App& app) {
  auto flags = std::make_shared<BalancersFlags>();
  app.add_option("--replicas", flags->replicas, "sizes of the fleet, with commas between")
      ->delimiter(',')
      ->check(whole_in_range(1, 10'000))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--load", flags->loads, "shares of what the replicas can answer, with commas between")
      ->delimiter(',')
      ->check(in_range(0.01, 2))
      ->type_name("X")
      ->capture_default_str();
  std::vector<std::string> known;
  for (const BalancerRow& row : balancers()) known.emplace_back(row.name);
  app.add_option("--balancer", flags->balancers, "these only, with commas between; absent: all")
      ->delimiter(',')
      ->check(CLI::IsMember(known))
      ->type_name("NAME");
  app.add_option("--workload", flags->workload, "sessions that grow to 8k tokens, or independent requests")
      ->check(CLI::IsMember({"sessions", "independent"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--sessions-per-replica", flags->sessions_per_replica,
                 "how many begin, on average; half of them are measured, the middle ones")
      ->check(whole_in_range(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--think-seconds", flags->think_seconds, "of a session between two turns, in the mean")
      ->check(in_range(0, 3600))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--num-kv-blocks", flags->num_kv_blocks, "of each replica, of 16 tokens")
      ->check(whole_in_range(1025, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--seed", flags->seed, "of arrivals and lengths")->type_name("N")->capture_default_str();
  app.add_option("--json", flags->json, "write the results to this file too")->type_name("FILE");
  return [flags] { run_balancers(*flags); };
}

}  // namespace ladder
