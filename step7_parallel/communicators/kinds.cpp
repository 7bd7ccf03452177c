#include "step7_parallel/communicators/kinds.h"

#include <future>
#include <thread>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"
#include "step7_parallel/communicators/call_trace.h"
#include "step7_parallel/communicators/forked_ranks.h"
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
  LocalGroup group(size);
  CallTrace trace(size);
  const auto live = [&](int rank) -> std::string {
    set_num_threads(1);
    std::string error = "an exception";
    try {
      TracedCommunicator mine(group.rank(rank), trace);
      fn(rank, mine);
      group.leave(rank);
      return {};
    } catch (const std::exception& caught) {
      error = caught.what();
    } catch (...) {
    }
    group.fail_rank(rank, error);
    return error;
  };
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::async(std::launch::async, live, rank));
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (int rank = 0; rank < size; ++rank)
    if (ranks[static_cast<size_t>(rank)].wait_until(until) != std::future_status::ready)
      group.fail_rank(rank, fmt::format("not done within {} ms:\n{}", deadline.count(), trace.str()));
  std::vector<std::string> errors;
  for (auto& rank : ranks) errors.push_back(rank.get());
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
