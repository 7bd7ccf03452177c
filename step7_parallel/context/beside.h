#pragma once
// Communication beside computation: what is begun runs while the caller goes on, on a thread of the CPU or on a second stream
// of a GPU.
#include <functional>
#include <future>

#include "step1_layers/core/context.h"

namespace ladder {

// A second stream of a GPU, which its owner makes once for many calls. It comes first where both streams have blocks to start.
class SideStream {
 public:
  explicit SideStream(Device device);  // Error: it is no GPU, or there is no CUDA
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  // Calls fn with a context on this stream, without scratch memory: what it launches comes after all that ctx.stream has been
  // given, and what ctx.stream is given from now on begins when fn's part is about to. NCCL calls in fn are one launch.
  void begin(const OpContext& ctx, const std::function<void(const OpContext&)>& fn);
  // What ctx.stream is given from now on comes after what fn launched.
  void join(const OpContext& ctx);

 private:
  Device device_;
  void* stream_ = nullptr;                                         // a cudaStream_t
  void *ready_ = nullptr, *about_to_ = nullptr, *done_ = nullptr;  // a cudaEvent_t each
};

// Runs fn beside what follows. wait(): what comes after it finds fn's work done; throws what fn threw on a thread. The end of
// the object waits too.
class Beside {
 public:
  // side: the GPU's; nullptr: fn is called at once, in the context's own stream. On the CPU it is not looked at.
  Beside(const OpContext& ctx, SideStream* side, std::function<void(const OpContext&)> fn);
  ~Beside();
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  void wait();

 private:
  const OpContext& ctx_;
  SideStream* side_ = nullptr;  // that is to be joined
  std::future<void> done_;      // of the thread
};

}  // namespace ladder
