#include "step7_parallel/communicators/gpu/gpu_ranks.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>

#include "step1_layers/core/device_cuda.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/distributed/local_group.h"

namespace ladder {

std::string gpu_ranks_obstacle(int size) {
  std::string reason;
  const int count = cuda_device_count(&reason);
  if (count >= size) return {};
  return fmt::format("{} GPUs are needed and there are {}{}", size, count,
                     reason.empty() ? "" : ": " + reason);
}

std::vector<std::string> run_gpu_ranks(int size, std::chrono::milliseconds deadline,
                                       const std::function<void(const GpuRank& rank)>& fn) {
  LocalGroup host(size);
  std::mutex mutex;
  std::vector<GpuCommunicator*> groups(static_cast<size_t>(size));
  const auto release_all = [&](int rank, const std::string& reason) {
    host.fail_rank(rank, reason);
    const std::lock_guard lock(mutex);
    for (GpuCommunicator* const group : groups)
      if (group != nullptr) group->abort();
  };
  const auto live = [&](int rank) -> std::string {
    set_num_threads(1);
    std::string error;
    try {
      CudaContext cuda(rank);
      Arena arena{{DeviceType::cuda, rank}};
      OpContext ctx = cuda.op_context();
      ctx.arena = &arena;
      Communicator& on_host = host.rank(rank);
      GpuCommunicator group(ctx, on_host);
      {
        const std::lock_guard lock(mutex);
        groups[static_cast<size_t>(rank)] = &group;
      }
      try {
        fn({ctx, group, on_host});
        device_synchronize(ctx.device, ctx.stream);
        on_host.barrier({});
      } catch (const std::exception& caught) {
        error = caught.what();
        release_all(rank, error);
      }
      const std::lock_guard lock(mutex);
      groups[static_cast<size_t>(rank)] = nullptr;
    } catch (const std::exception& caught) {
      error = caught.what();
      release_all(rank, error);
    }
    return error;
  };
  std::vector<std::future<std::string>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::async(std::launch::async, live, rank));
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (int rank = 0; rank < size; ++rank) {
    auto& mine = ranks[static_cast<size_t>(rank)];
    if (mine.wait_until(until) == std::future_status::ready) continue;
    release_all(rank, fmt::format("not done within {} ms:\n{}", deadline.count(), host.where()));
    if (mine.wait_for(std::chrono::seconds(10)) == std::future_status::ready) continue;
    std::fprintf(stderr, "rank %d did not end:\n%s\n", rank, host.where().c_str());
    std::_Exit(1);
  }
  std::vector<std::string> errors;
  for (auto& rank : ranks) errors.push_back(rank.get());
  return errors;
}

}  // namespace ladder
