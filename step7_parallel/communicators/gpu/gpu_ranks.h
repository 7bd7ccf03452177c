#pragma once
// N ranks as threads of this process on N GPUs, for tests and measurements. (Serving has a process per rank: graphs and
// collectives of several GPUs in one process can wait for each other inside the driver.)
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "step7_parallel/communicators/gpu/gpu_communicator.h"

namespace ladder {

struct GpuRank {
  OpContext ctx;  // of cuda:rank
  GpuCommunicator& group;
  Communicator& host;  // the same ranks on the CPU: to meet before memory is freed or a graph made
};

std::string gpu_ranks_obstacle(int size);  // why there can be no such ranks here; empty: there can

// Runs fn on every rank and waits for all; by rank, what it threw. A rank that throws releases the others, and so does
// the deadline; if they stay where they are for ten seconds more, the process ends with what each did last.
std::vector<std::string> run_gpu_ranks(int size, std::chrono::milliseconds deadline,
                                       const std::function<void(const GpuRank& rank)>& fn);

}  // namespace ladder
