#include "cli/data_parallel_flags.h"

#include <algorithm>

#include "cli/flag_values.h"
#include "cli/node_flags.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/data/balancer.h"

namespace ladder {

namespace {

constexpr const char* kGroup = "Several replicas (each a whole engine, on a GPU: on GPUs of its own)";
constexpr int64_t kMaxReplicas = 1024;
constexpr std::chrono::seconds kShortestSilence{1};

}  // namespace

void DataParallelFlags::add(CLI::App& app) {
  const size_t num_before = app.get_options().size();
  std::vector<std::string> names;
  std::string ideas = "which replica gets a request:";
  for (const BalancerRow& row : balancers()) {
    names.emplace_back(row.name);
    ideas += fmt::format("{} {} ({})", names.size() == 1 ? "" : ",", row.name, row.idea);
  }
  app.add_option("--data-parallel-size", size_, "replicas of the engine behind one door")
      ->check(whole_in_range(1, kMaxReplicas))
      ->type_name("N")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option(
         "--data-parallel-backend", backend_,
         "replicas as threads of this process, or as processes (mp), of which one may die without the "
         "others; auto: threads on the CPU and where they share out experts, mp on GPUs. Said of one replica, that one too "
         "is started again when it dies")
      ->check(CLI::IsMember({"auto", "threads", "mp"}))
      ->type_name("KIND")
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag(
         "--data-parallel-split-experts", split_experts_,
         "replicas that are threads of this program split every expert's width over all of their ranks, and step "
         "together, instead of having all experts each")
      ->group(kGroup);
  app.add_option("--data-parallel-balancer", balancer_, ideas)
      ->check(CLI::IsMember(names))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kGroup);
  remember_added(app, num_before);
}

void DataParallelFlags::add_local(CLI::App& app) {
  const size_t num_before = app.get_options().size();
  app.add_option(
         "--data-parallel-size-local", size_local_,
         "replicas on this machine [all]; the others are on --headless nodes, for which a server waits")
      ->check(whole_in_range(0, kMaxReplicas))
      ->type_name("N")
      ->group(kGroup);
  remember_added(app, num_before);
}

void DataParallelFlags::add_for_server(CLI::App& app) {
  add_local(app);
  const size_t num_before = app.get_options().size();
  const auto number = [&](const char* name, int& value, int64_t low, const char* help) {
    app.add_option(name, value, help)
        ->check(whole_in_range(low, kMaxReplicas))
        ->type_name("N")
        ->group(kGroup);
  };
  app.add_flag(
      "--data-parallel-external-lb", external_,
      "this server has one replica of --data-parallel-size, and a balancer of yours stands in front");
  number("--data-parallel-rank", rank_, 0, "its number; says --data-parallel-external-lb too");
  app.add_flag("--data-parallel-hybrid-lb", hybrid_,
               "this server has the replicas of its machine, and a balancer of yours stands in front");
  number("--data-parallel-start-rank", start_rank_, 0, "number of the first of them [0]");
  app.add_flag("--headless", headless_,
               "no HTTP: this machine's replicas are behind the server at --data-parallel-address");
  app.add_option("--data-parallel-address", head_host_,
                 "the server whose door replicas of several machines are behind, as all of them reach it")
      ->type_name("HOST")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--data-parallel-rpc-port", head_port_, "where it listens for --headless nodes")
      ->check(whole_in_range(1, 65535))
      ->type_name("PORT")
      ->capture_default_str()
      ->group(kGroup);
  for (const char* flag : {"--data-parallel-external-lb", "--data-parallel-hybrid-lb", "--headless"})
    app.get_option(flag)->group(kGroup);
  remember_added(app, num_before);
}

void DataParallelFlags::remember_added(CLI::App& app, size_t num_before) {
  const std::vector<CLI::Option*> all = app.get_options();
  added_.insert(added_.end(), all.begin() + static_cast<std::ptrdiff_t>(num_before), all.end());
}

ReplicaRange DataParallelFlags::range() const {
  const bool external = external_ || rank_ >= 0;
  LADDER_CHECK(!external || !hybrid_,
               "--data-parallel-external-lb and --data-parallel-hybrid-lb: expected one of them");
  LADDER_CHECK(!headless_ || (!external && !hybrid_),
               "--headless: a node has no HTTP for a balancer of yours, expected no "
               "--data-parallel-external-lb, no --data-parallel-rank and no --data-parallel-hybrid-lb");
  if (external) {
    LADDER_CHECK(rank_ >= 0,
                 "--data-parallel-external-lb: expected --data-parallel-rank, the replica's number");
    LADDER_CHECK(
        (size_local_ == -1 || size_local_ == 1) && start_rank_ < 0,
        "--data-parallel-rank {}: a server with one replica, expected no --data-parallel-size-local and "
        "no --data-parallel-start-rank",
        rank_);
    LADDER_CHECK(rank_ < size_, "--data-parallel-rank {}: expected 0 to {}, as --data-parallel-size is {}",
                 rank_, size_ - 1, size_);
    return {size_, rank_, 1};
  }
  const bool is_part = hybrid_ || headless_;  // of what there is, and others have the rest
  LADDER_CHECK(is_part || start_rank_ <= 0,
               "--data-parallel-start-rank {}: a server has the first replicas, from 0 on, unless "
               "--data-parallel-hybrid-lb or --headless says otherwise",
               start_rank_);
  LADDER_CHECK(
      !is_part || size_local_ != 0,
      "--data-parallel-size-local 0: expected 1 or more with --data-parallel-hybrid-lb and --headless");
  const int first = std::max(start_rank_, 0);
  LADDER_CHECK(first < size_,
               "--data-parallel-start-rank {}: expected 0 to {}, as --data-parallel-size is {}", first,
               size_ - 1, size_);
  ReplicaRange range{size_, first, size_local_ >= 0 ? size_local_ : size_ - first};
  LADDER_CHECK(range.first + range.num_local <= size_,
               "--data-parallel-start-rank {} and --data-parallel-size-local {}: replicas {} to {}, of {} "
               "(--data-parallel-size)",
               range.first, range.num_local, range.first, range.first + range.num_local - 1, size_);
  if (!is_part) range.num_remote = size_ - range.num_local;
  return range;
}

HeadPlace DataParallelFlags::head(const NodeFlags& nodes) const {
  HeadPlace place{
      {head_host_, head_port_}, read_host_secret(nodes.secret_file()), nodes.arrival(), nodes.silence()};
  expect_secret_for(head_host_, place.secret, "--data-parallel-address");
  LADDER_CHECK(
      place.silence >= kShortestSilence,
      "--node-timeout {:g}: an engine on another machine speaks five times a second, expected 1 or more",
      std::chrono::duration<double>(place.silence).count());
  return place;
}

std::string shared_experts_text(const RunnerConfig& config) {
  if (config.expert_replicas == 1) return {};
  return fmt::format(", and a {}: they step together",
                     config.expert_parallel ? "share of the experts" : "part of every expert");
}

ReplicaRun replica_run(const ReplicaRange& range, const EngineOptions& options) {
  return {
      range.num_replicas, run_fingerprint(options.model),
      fmt::format("--dtype {} and --max-model-len {}",
                  options.dtype ? std::string(dtype_name(*options.dtype)) : "auto",
                  options.runner.batch.max_model_len > 0 ? std::to_string(options.runner.batch.max_model_len)
                                                         : "of the model")};
}

}  // namespace ladder
