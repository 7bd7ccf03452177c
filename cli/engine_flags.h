#pragma once
// The flags of the commands that load a model: --model and everything about how it is run.
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/kv_store_flags.h"
#include "cli/kv_transfer_flags.h"
#include "cli/node_flags.h"
#include "step6_engine/load_engine.h"
#include "step7_parallel/data/lockstep_group.h"
#include "step7_parallel/workers/worker_processes.h"
#include "step8_advanced/disaggregation/partition/phase_executors.h"

namespace ladder {

class DataParallelFlags;

// add() declares the flags, options() reads them after parsing.
class EngineFlags {
 public:
  // `model_default`: the folder where --model is not given; none: it must be given.
  void add(CLI::App& app, RunnerConfig defaults = {}, std::string model_default = {});
  // Of the engine, or of each of these replicas, where the command has such flags. Error naming the flag.
  EngineOptions options(const DataParallelFlags* replicas = nullptr) const;
  // Of each of several engines that this program starts as processes, so many of them to compute prompts for the others.
  // Error naming the flag.
  EngineOptions options_of_instances(int num_producers) const;
  bool connects_with_others() const { return kv_transfer_.wanted(); }  // --kv-role
  // The model and its parts alone, for a rank of an engine that another process has: no device is looked at.
  ExecutorOptions parts() const;
  // What was given, to be given to this program again: the same flags in another process.
  std::vector<std::string> arguments() const;
  // The same for one of several replicas, whose device, threads and KV cache are its own.
  std::vector<std::string> arguments_of_replica(const EngineOptions& own) const;
  // The same for one of options_of_instances(), which has a role.
  std::vector<std::string> arguments_of_instance(const EngineOptions& own, KvTransferRole role) const;

  const NodeFlags& nodes() const { return nodes_; }
  // For each of several replicas that share out experts, of options()' runner.
  ExecutorMaker lockstep_maker(const RunnerConfig& runner, std::shared_ptr<LockstepGroups> groups) const;

  std::string model;

 private:
  void add_ranks(CLI::App& app);
  ModelMakers model_makers() const;
  bool ranks_are_threads(const RunnerConfig& runner) const;  // of this process
  ExecutorMaker executor_maker(const RunnerConfig& runner) const;
  // The flag that shares a GPU's multiprocessors out, or says where their border stands; empty: none was given.
  std::string flag_of_shares() const;
  // Error, naming the flag: --phase-lanes, and something that does not go with it.
  void expect_one_rank_for_lanes(const RunnerConfig& runner) const;
  // Error, naming the flag: a CPU.
  LaneContextsMaker lane_contexts(const RunnerConfig& runner) const;
  WorkerProgram worker_program() const;
  EngineOptions options_alone(const DataParallelFlags* replicas) const;  // connected with nobody
  // Keys and values from and to other engines. Error, naming the flag: an engine that cannot, or several of them.
  void connect_with_others(EngineOptions& options, const DataParallelFlags* replicas) const;
  void connect_with_store(EngineOptions& options) const;  // the same with a folder
  // Which ranks share out experts, whole or by their width: of all replicas where they can, else of each stage. Says where none do.
  void share_out_experts(RunnerConfig& runner, const DataParallelFlags* replicas) const;

  EngineOptions options_;  // what the flags set directly; the others are read from these:
  std::string dtype_ = "auto";
  std::string kv_cache_dtype_ = "auto";
  std::string device_ = "auto";
  std::string load_format_ = "auto";
  std::string policy_ = "fcfs";
  std::string executor_backend_ = "auto";
  std::string kv_memory_;
  bool phase_lanes_ = false;
  std::string sm_partition_;  // empty: auto on a GPU
  double max_itl_ = 0;        // milliseconds
  double max_ttft_ = 0;       // likewise
  std::vector<std::string> kernels_;
  std::optional<std::string> pipeline_layers_;
  int64_t eplb_step_interval_ = 3000;  // of ExpertBalance
  KvTransferFlags kv_transfer_;
  KvStoreFlags kv_store_;
  NodeFlags nodes_;                          // read before all others, node_launch.h
  const CLI::Option* block_size_ = nullptr;  // of add()
  std::vector<const CLI::Option*> added_;    // by add()
};

}  // namespace ladder
