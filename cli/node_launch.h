#pragma once
// `ladder serve --nnodes 2 --node-rank R --master-addr HOST ...` on each of two hosts: node 0's first process runs the
// command, all others are ranks of its engine. A node's first process starts the others of the node.
#include <functional>
#include <optional>

#include "cli/node_flags.h"

namespace ladder {

struct NodeLaunch {
  NodeFlags flags;
  int num_ranks = 1;
};
// What the arguments say of it, before any command has read them; none: one node, or arguments that the command will
// refuse (or asks for help).
std::optional<NodeLaunch> started_on_nodes(int argc, char** argv);

// The program's exit code: node 0's command's, on all nodes. What is wrong is one line on each node.
int run_on_nodes(const NodeLaunch& launch, int argc, char** argv, const std::function<int()>& command);

}  // namespace ladder
