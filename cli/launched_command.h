#pragma once
// A command whose engine has ranks that were started beside this process: by mpirun (mpi_launch.h) or on several nodes
// (node_launch.h). Rank 0 runs the command, the others are ranks of its engine.
#include <functional>
#include <string>
#include <vector>

#include "step7_parallel/workers/launched_ranks.h"

namespace ladder {

// The ranks of this run, on rank 0 while it runs a command; else nullptr.
LaunchedWorld* launched_world();

// On rank 0, while the others are in serve_launched_rank(): the command's exit code, after their dismissal.
int run_with_ranks(LaunchedWorld& world, const std::function<int()>& command);

// What the other ranks load, from the flags that rank 0 was given (EngineFlags::arguments()).
ExecutorOptions options_of_rank(const std::vector<std::string>& arguments);

}  // namespace ladder
