#pragma once
// How the ranks of several hosts meet: at rank 0, who tells all of them where the others are. Internal to this folder.
#include <memory>
#include <string>
#include <vector>

#include "step7_parallel/communicators/tcp/tcp_mesh.h"
#include "step7_parallel/hosts/host_watch.h"
#include "step7_parallel/hosts/host_world.h"

namespace ladder {

struct Met {
  std::unique_ptr<TcpMesh> mesh;  // that knows all places
  std::vector<TcpPlace> places;   // by rank
  // For the HostWatch of this rank; on rank 0 a node's ranks but its first one follow that one.
  std::vector<WatchedPeer> watched;
};

// On rank 0, who listens until all have come. Error, which those who have come are told too: some have not within
// place.arrival ("node 1 of 2 has not arrived at 10.0.0.1:29501 within 60 s"); one was started with other numbers or
// arguments. Strangers, and a rank that is there already, are sent away and change nothing.
Met receive_ranks(const HostPlace& place);
// On every other rank. Error: nobody at place.master within place.arrival; rank 0's.
Met join_ranks(const HostPlace& place);

}  // namespace ladder
