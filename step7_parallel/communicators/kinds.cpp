#include "step7_parallel/communicators/kinds.h"

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/communicators/forked_ranks.h"
#include "step7_parallel/communicators/tcp/tcp_mesh.h"
#ifdef LADDER_HAS_CUDA
#include "step7_parallel/communicators/gpu/gpu_ranks.h"
#endif

namespace ladder {

namespace {

std::string no_obstacle(int) {
  return {};
}

std::string obstacle_of_mpi(int) {
#ifdef LADDER_HAS_MPI
  return {};
#else
  return "this build has no MPI (libopenmpi-dev, openmpi-bin)";
#endif
}

std::vector<std::string> run_threads(int size, std::chrono::milliseconds deadline,
                                     const std::function<void(int rank, Communicator& group)>& fn) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  const auto live = [&](int rank, const ParallelContext& parallel) {
    set_num_threads(1);
    std::string& error = errors[static_cast<size_t>(rank)];
    try {
      fn(rank, *parallel.tp);
    } catch (const std::exception& caught) {
      error = caught.what();
      throw;
    } catch (...) {
      error = "an exception";
      throw;
    }
  };
  try {
    run_ranks(size, live, deadline);
  } catch (...) {  // the first of the errors
  }
  return errors;
}

std::vector<std::string> run_processes(int size, std::chrono::milliseconds deadline,
                                       const std::function<void(int rank, Communicator& group)>& fn) {
  return run_forked_ranks({.shape = {.size = size}, .patience = {.timeout = deadline}, .deadline = deadline},
                          fn);
}

#ifdef LADDER_HAS_CUDA
std::string obstacle_of_gpus(int size) {
  return gpu_ranks_obstacle(size);
}

std::vector<std::string> run_gpus(int size, std::chrono::milliseconds deadline,
                                  const std::function<void(int rank, Communicator& group)>& fn) {
  return run_gpu_ranks(size, deadline, [&](const GpuRank& rank) { fn(rank.group.rank(), rank.group); });
}
#else
std::string obstacle_of_gpus(int) {
  return "this build has no CUDA";
}

constexpr std::nullptr_t run_gpus = nullptr;
#endif

}  // namespace

const std::vector<CommunicatorKind>& communicator_kinds() {
  static const std::vector<CommunicatorKind> kinds = {
      {.name = "threads",
       .idea = "the ranks read and write each other's tensors",
       .needs = "one process",
       .sums_in_rank_order = true,
       .obstacle = no_obstacle,
       .run = run_threads},
      {.name = "mpi",
       .idea = "messages between processes; each rank sums its slice and sends it to all",
       .needs = "mpirun; one machine or several",
       .sums_in_rank_order = true,
       .obstacle = obstacle_of_mpi,
       .run = nullptr},
      {.name = "tcp",
       .idea = "the same messages over a connection to each peer",
       .needs = "one machine or several",
       .sums_in_rank_order = true,
       .obstacle = no_obstacle,
       .run = run_tcp_ranks},
      {.name = "shared_memory",
       .idea = "two staging areas a rank, in turns: one meeting a round",
       .needs = "one machine",
       .sums_in_rank_order = true,
       .obstacle = no_obstacle,
       .run = run_processes},
      {.name = "gpu",
       .device = DeviceType::cuda,
       .idea = "sums over memory that the GPUs can all address, the rest and large sums by NCCL",
       .needs = "a GPU a rank; NCCL",
       .obstacle = obstacle_of_gpus,
       .run = run_gpus},
  };
  return kinds;
}

const CommunicatorKind& communicator_kind(std::string_view name) {
  std::string names;
  for (const CommunicatorKind& kind : communicator_kinds()) {
    if (kind.name == name) return kind;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
  }
  fail("there is no communicator {}: expected one of {}", name, names);
}

}  // namespace ladder
