#pragma once
// The flags of a run on several hosts: --nnodes and what goes with it.
#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

namespace ladder {

struct HostPlace;  // step7_parallel/hosts/host_world.h

class NodeFlags {
 public:
  void add(CLI::App& app);
  int num_nodes() const { return num_nodes_; }
  // Of the first rank of this node, of `num_ranks` on all nodes together. Error naming the flag: they cannot be divided
  // evenly, this node is none of them, or a secret is missing.
  HostPlace place(int num_ranks) const;
  // Of replicas on several hosts too (DataParallelFlags::head()).
  const std::string& secret_file() const { return secret_file_; }
  std::chrono::milliseconds arrival() const { return milliseconds(arrival_); }
  std::chrono::milliseconds silence() const { return milliseconds(silence_); }

 private:
  static std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }

  int num_nodes_ = 1, node_ = 0;
  std::string master_host_ = "127.0.0.1", secret_file_;
  int master_port_ = 29501;
  double arrival_ = 60, silence_ = 10;
};

}  // namespace ladder
