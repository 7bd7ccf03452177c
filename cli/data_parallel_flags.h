#pragma once
// The flags of the commands that may have several replicas of an engine.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/flag_values.h"
#include "step1_layers/core/device.h"
#include "step6_engine/load_engine.h"
#include "step7_parallel/data/replica_meeting.h"

namespace ladder {

class NodeFlags;

// Which of all replicas this program has.
struct ReplicaRange {
  int num_replicas = 1;  // there are
  int first = 0;         // number of the first one here
  int num_local = 1;     // here
  int num_remote = 0;    // that other machines bring to the door of this program, after those here
};

// What the replicas of all machines must have in common. Error: the model cannot be read.
ReplicaRun replica_run(const ReplicaRange& range, const EngineOptions& options);

// ", and a share of the experts: they step together": what of the experts a replica has, where each has not all of them.
std::string shared_experts_text(const RunnerConfig& config);

class DataParallelFlags {
 public:
  void add(CLI::App& app);
  // Also how many of them are on this machine.
  void add_local(CLI::App& app);
  // Also those of a server that is one of several, or has replicas on other machines.
  void add_for_server(CLI::App& app);

  // Error naming the flags: numbers that do not fit each other.
  ReplicaRange range() const;
  // Whether several replicas are processes: `auto` says so of those on GPUs that know nothing of each other.
  bool in_processes(const RunnerConfig& runner) const {
    return wants_processes() ||
           (backend_ == "auto" && !runner.device.is_cpu() && runner.expert_replicas == 1);
  }
  bool wants_processes() const { return backend_ == "mp"; }
  // Whether there are several replicas here, or one that is to be started again when it dies: a backend was asked for.
  bool has_door() const {
    const ReplicaRange here = range();
    return here.num_local > 1 || here.num_remote > 0 || backend_ != "auto";
  }
  // Without --enable-expert-parallel: experts are shared out over all replicas by their width.
  bool split_experts() const { return split_experts_; }
  // Whether experts can be shared out over all replicas there are: those that are threads of this program.
  bool can_share_experts() const {
    const ReplicaRange here = range();
    return here.num_local == here.num_replicas && !wants_processes();
  }
  // No HTTP: the replicas here are behind the door of another machine's server.
  bool headless() const { return headless_; }
  // Where that one is, or listens. Error naming the flag: a secret is missing.
  HeadPlace head(const NodeFlags& nodes) const;
  const std::string& balancer() const { return balancer_; }
  // What was given, to be given to an API server.
  std::vector<std::string> arguments() const { return arguments_of(added_); }

 private:
  void remember_added(CLI::App& app, size_t num_before);

  int size_ = 1;
  std::string backend_ = "auto";
  bool split_experts_ = false;
  std::string balancer_ = "queue_length";
  // Of servers; -1: not given.
  int rank_ = -1, start_rank_ = -1, size_local_ = -1;
  bool external_ = false, hybrid_ = false, headless_ = false;
  std::string head_host_ = "127.0.0.1";
  int head_port_ = 29550;                  // vLLM's
  std::vector<const CLI::Option*> added_;  // by the functions that add
};

}  // namespace ladder
