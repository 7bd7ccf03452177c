#include "cli/data_parallel_flags.h"

#include "cli/flag_values.h"
#include "step1_layers/core/error.h"
#include "step7_parallel/data/balancer.h"

namespace ladder {

namespace {

constexpr const char* kGroup = "Several replicas (each a whole engine, on a GPU: on GPUs of its own)";
constexpr int64_t kMaxReplicas = 1024;

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
         "others; auto: threads on the CPU, mp on GPUs. Said of one replica, that one too is started again when it dies")
      ->check(CLI::IsMember({"auto", "threads", "mp"}))
      ->type_name("KIND")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--data-parallel-balancer", balancer_, ideas)
      ->check(CLI::IsMember(names))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(kGroup);
  remember_added(app, num_before);
}

void DataParallelFlags::add_for_server(CLI::App& app) {
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
  number("--data-parallel-size-local", size_local_, 1, "replicas on this machine [all]");
  number("--data-parallel-start-rank", start_rank_, 0, "number of the first of them [0]");
  for (const char* flag : {"--data-parallel-external-lb", "--data-parallel-hybrid-lb"})
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
  if (external) {
    LADDER_CHECK(rank_ >= 0,
                 "--data-parallel-external-lb: expected --data-parallel-rank, the replica's number");
    LADDER_CHECK(
        size_local_ <= 1 && start_rank_ < 0,
        "--data-parallel-rank {}: a server with one replica, expected no --data-parallel-size-local and "
        "no --data-parallel-start-rank",
        rank_);
    LADDER_CHECK(rank_ < size_, "--data-parallel-rank {}: expected 0 to {}, as --data-parallel-size is {}",
                 rank_, size_ - 1, size_);
    return {size_, rank_, 1};
  }
  LADDER_CHECK(
      hybrid_ || (size_local_ == 0 && start_rank_ < 0),
      "--data-parallel-size-local and --data-parallel-start-rank: expected --data-parallel-hybrid-lb, by "
      "which a server has a part of the replicas");
  ReplicaRange range{size_, std::max(start_rank_, 0), size_local_ > 0 ? size_local_ : size_};
  LADDER_CHECK(range.first + range.num_local <= size_,
               "--data-parallel-start-rank {} and --data-parallel-size-local {}: replicas {} to {}, of {} "
               "(--data-parallel-size)",
               range.first, range.num_local, range.first, range.first + range.num_local - 1, size_);
  return range;
}

}  // namespace ladder
