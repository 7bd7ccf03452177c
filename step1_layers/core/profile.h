#pragma once
// Named ranges for a profiler's timeline (NVTX; Nsight Systems shows them over the kernels they launched).
// They are named after the tasks. Without a profiler attached a range costs a few nanoseconds, without CUDA
// nothing.
#ifdef LADDER_HAS_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace ladder {

class ProfileRange {
 public:
#ifdef LADDER_HAS_CUDA
  explicit ProfileRange(const char* name) {
    nvtxRangePushA(name);
  }
  ~ProfileRange() {
    nvtxRangePop();
  }
#else
  explicit ProfileRange(const char*) {}
  ~ProfileRange() {}
#endif
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
};

}  // namespace ladder
