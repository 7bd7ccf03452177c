#pragma once
// Ranks that know where each other listen, and groups of them: a connection for each pair of a group.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "step1_layers/distributed/communicator.h"
#include "step7_parallel/hosts/host_connections.h"

namespace ladder {

struct TcpPlace {
  HostAddress address;
  std::string name;  // for messages: "rank 1", "rank 1 (node 0)"
};

class TcpMesh {
 public:
  // Listens on that host, at a port that is free. Error: as HostListener.
  TcpMesh(const std::string& host, const HostSecret& secret);

  const HostAddress& address() const { return listener_.address(); }
  // Where all of them are, by rank, of which this one is `rank`.
  void meet(int rank, std::vector<TcpPlace> places);

  // All ranks of the mesh call it, in the same order, each with the ranks of a group that it is in. `connect`: until all of
  // them are connected; `timeout`: of each call in the group. `failed`: as TcpExchange's. Error: a rank does not come.
  std::unique_ptr<Communicator> group(const std::vector<int>& ranks, std::chrono::milliseconds connect,
                                      std::chrono::milliseconds timeout,
                                      std::function<void(const std::string&)> failed = {});

 private:
  // Who has connected: in which group, and as whom.
  struct Caller {
    int32_t group = 0, rank = 0;
    auto operator<=>(const Caller&) const = default;
  };
  FileDescriptor wait_for(const Caller& caller, std::chrono::steady_clock::time_point deadline);

  const HostSecret secret_;
  HostListener listener_;
  int rank_ = 0;
  std::vector<TcpPlace> places_;
  int32_t num_groups_ = 0;
  std::map<Caller, FileDescriptor> early_;  // of groups that this rank has not come to yet
};

// fn(rank, group) on every rank of a group over TCP on this machine, in forked processes (forked_ranks.h).
std::vector<std::string> run_tcp_ranks(int size, std::chrono::milliseconds deadline,
                                       const std::function<void(int rank, Communicator& group)>& fn);

}  // namespace ladder
