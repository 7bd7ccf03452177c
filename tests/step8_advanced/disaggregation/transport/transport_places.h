#pragma once
// Somewhere to listen, for each transport of the table, and what must not stay behind.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "step1_layers/core/device.h"
#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/transport/kv_channel.h"
#include "tests/support/temporary_folder.h"
#ifdef LADDER_HAS_CUDA
#include "step7_parallel/communicators/gpu/nccl_communicator.h"
#endif

namespace ladder::testing {

class TransportPlace {
 public:
  // "ucx_over_tcp": as a user has it who names UCX's transports himself. UCX's files go into a folder of the test's own: in
  // /dev/shm those of a test beside it would look as if they had stayed behind.
  explicit TransportPlace(std::string_view transport) : transport_(transport) {
    if (transport == "ucx_over_tcp") ::setenv("UCX_TLS", "tcp,self", 1);
    std::filesystem::create_directory(ucx_folder());
    ::setenv("UCX_POSIX_DIR", ucx_folder().c_str(), 1);
  }
  ~TransportPlace() {
    if (transport_ == "ucx_over_tcp") ::unsetenv("UCX_TLS");
    ::unsetenv("UCX_POSIX_DIR");
  }
  TransportPlace(const TransportPlace&) = delete;

  std::string address() const {
    if (transport_ == "file") return "file://" + (folder_ / "mail").string();
    if (transport_ == "tcp") return "tcp://0";
    if (transport_ == "tcp_4_streams") return "tcp://0?streams=4";
    if (transport_ == "nccl") return "nccl://0";
    if (transport_ == "ucx" || transport_ == "ucx_over_tcp") return "ucx://0";
    if (transport_ == "shm" || transport_ == "cuda")
      return fmt::format("{}://test-{}-{}", transport_, ::getpid(), number_);
    fail("the tests have no place for {}", transport_);
  }

  // Of this transport, in folders.
  std::set<std::string> left_behind() const {
    std::set<std::string> names;
    const auto look = [&](const std::filesystem::path& folder, const std::string& prefix) {
      if (!std::filesystem::exists(folder)) return;
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().filename().string().starts_with(prefix)) names.insert(entry.path().string());
    };
    look(folder_ / "mail", "channel-");
    look("/dev/shm", "ladder");
    look(ucx_folder(), "ucx");
    return names;
  }

 private:
  static int next_number() {
    static std::atomic<int> next = 0;
    return next++;
  }

  std::filesystem::path ucx_folder() const { return folder_ / "ucx"; }

  const std::string transport_;
  const int number_ = next_number();
  const TemporaryFolder folder_;
};

// Why it cannot be tried here; empty: it can.
inline std::string obstacle_of(std::string_view transport) {
  if (transport != "cuda" && transport != "nccl") return "";
  std::string reason;
  if (cuda_device_count(&reason) == 0) return "a GPU is needed: " + reason;
#ifdef LADDER_HAS_CUDA
  if (transport == "nccl") return nccl_obstacle();
#endif
  return "";
}

inline int64_t num_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace ladder::testing
