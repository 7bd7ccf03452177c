#pragma once
// Task 7.8: one engine's ranks on several hosts, without mpirun: each host ("node") runs the same command with its number, and its
// first process starts the others of the node.
//
//   node 0                                      node 1
//   rank 0 listens at --master-addr:port   <--- rank 2, rank 3, and rank 1 of its own node: "here I am"
//   all here? the same arguments?          ---> the roster: where every rank listens; or why not
//   a mesh of connections for each group of ranks (communicators/tcp), and a watch over all (host_watch.h)
//
// What comes of it is a LaunchedWorld, as mpirun's.
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "step7_parallel/communicators/tcp/tcp_mesh.h"
#include "step7_parallel/hosts/host_watch.h"
#include "step7_parallel/workers/launched_ranks.h"

namespace ladder {

struct HostPlace {
  int num_nodes = 1, node = 0;
  int ranks_per_node = 1, local_rank = 0;
  HostAddress master;  // of node 0, as all nodes reach it
  HostSecret secret;
  std::string arguments;                      // the same on all ranks
  std::chrono::milliseconds arrival{60'000};  // until all must have come
  std::chrono::milliseconds silence{10'000};  // as HostWatch's

  int rank() const { return node * ranks_per_node + local_rank; }
  int world_size() const { return num_nodes * ranks_per_node; }
};

class HostWorld {
 public:
  // Meets the others. `end`: as HostWatch's. Error, the same on all that have come: a node has not, another is there twice
  // or was started otherwise. None of them waits for longer than `arrival` and a few seconds.
  HostWorld(const HostPlace& place, std::function<void(const std::string& cause)> end);

  LaunchedWorld& world() { return world_; }
  HostWatch& watch() { return *watch_; }
  const std::string& name() const { return name_; }  // "rank 3 (node 1, 10.0.0.2)"

 private:
  std::unique_ptr<TcpMesh> mesh_;
  std::string name_;
  std::unique_ptr<HostWatch> watch_;  // outlives the groups, which tell it of their failures
  LaunchedWorld world_;
};

}  // namespace ladder
