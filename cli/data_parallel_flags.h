#pragma once
// The flags of the commands that may have several replicas of an engine.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/flag_values.h"
#include "step1_layers/core/device.h"

namespace ladder {

// Which of all replicas this program has.
struct ReplicaRange {
  int num_replicas = 1;  // there are
  int first = 0;         // number of the first one here
  int num_local = 1;     // here
};

class DataParallelFlags {
 public:
  void add(CLI::App& app);
  // Also those of a server that is one of several.
  void add_for_server(CLI::App& app);

  // Error naming the flags: numbers that do not fit each other.
  ReplicaRange range() const;
  // Whether several replicas are processes: `auto` says so of those on GPUs.
  bool in_processes(Device device) const {
    return wants_processes() || (backend_ == "auto" && !device.is_cpu());
  }
  bool wants_processes() const { return backend_ == "mp"; }
  // Whether there are several replicas here, or one that is to be started again when it dies: a backend was asked for.
  bool has_door() const { return range().num_local > 1 || backend_ != "auto"; }
  const std::string& balancer() const { return balancer_; }
  // What was given, to be given to an API server.
  std::vector<std::string> arguments() const { return arguments_of(added_); }

 private:
  void remember_added(CLI::App& app, size_t num_before);

  int size_ = 1;
  std::string backend_ = "auto";
  std::string balancer_ = "queue_length";
  // Of servers; -1, 0: not given.
  int rank_ = -1, start_rank_ = -1, size_local_ = 0;
  bool external_ = false, hybrid_ = false;
  std::vector<const CLI::Option*> added_;  // by the functions that add
};

}  // namespace ladder
