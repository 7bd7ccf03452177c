#pragma once
// Replicas on other machines: what the head, whose door they stand behind, and the nodes that have them say to each other.
//
//   node (--headless): replicas 2, 3                      head: the door, replicas 0, 1
//     |  join: a name, "2 and 3 of 4", model, program       |     replica_head.h listens
//     |                            welcome, or refused      |     before anything is loaded
//     |  <---------- both say that they are there --------> |     HostWatch; until the node leaves, or the head does
//     |                                                     |
//     |  offer: the same name, "replica 2"                  |     a connection of its own, once the engine is loaded
//     |  <---- serve_engine() ---- SocketEngineClient ----> |     as with an engine's process (6.9)
//
// Each connection begins with proofs of the secret (hosts/host_connections.h). vLLM: `--headless` of `vllm serve`,
// vllm/v1/engine/core_client.py.
#include <chrono>
#include <string>

#include "step6_engine/process/wire.h"
#include "step7_parallel/hosts/host_secret.h"
#include "step7_parallel/hosts/tcp_socket.h"
#include "step7_parallel/workers/run_fingerprint.h"

namespace ladder {

struct HeadPlace {
  HostAddress address;  // of the head, as its nodes reach it
  HostSecret secret;
  std::chrono::milliseconds arrival{
      60'000};  // until a node must have come; of a node that has lost the head: back
  std::chrono::milliseconds silence{10'000};  // for which a peer may say nothing, until it counts as gone
};

// What must be the same on the head and all nodes.
struct ReplicaRun {
  int num_replicas = 1;  // of all machines
  RunFingerprint files;
  std::string settings;  // flags that answers depend on, as text
};

// --- messages ----------------------------------------------------------------------------------------------

inline constexpr std::chrono::seconds kMeetingTimeout{5};  // of each first message

enum class MeetingMessage : uint32_t { join = 200, welcome, refused, offer };

struct NodeJoin {
  std::string node;  // its name, of this run: who comes back has the one that it had
  ReplicaRun run;
  int first = 0, num_local = 0;  // replicas
};
LADDER_WIRE_FORM(NodeJoin) {
  auto& [node, run, first, num_local] = value;
  auto& [num_replicas, files, settings] = run;
  wire(node, num_replicas, files.program, files.model, settings, first, num_local);
}

struct EngineOffer {
  std::string node;
  int number = 0;      // the replica's
  std::string engine;  // its name: StartedEngine::name
};
LADDER_WIRE_FORM(EngineOffer) {
  auto& [node, number, engine] = value;
  wire(node, number, engine);
}

// "replica 2", "replicas 2 to 3".
inline std::string replicas_text(int first, int count) {
  return count == 1 ? fmt::format("replica {}", first)
                    : fmt::format("replicas {} to {}", first, first + count - 1);
}

}  // namespace ladder
