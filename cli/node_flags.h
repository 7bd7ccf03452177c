#pragma once
// The flags of a run on several hosts: --nnodes and what goes with it.
#include <CLI/CLI.hpp>
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

 private:
  int num_nodes_ = 1, node_ = 0;
  std::string master_host_ = "127.0.0.1", secret_file_;
  int master_port_ = 29501;
  double arrival_ = 60, silence_ = 10;
};

}  // namespace ladder
