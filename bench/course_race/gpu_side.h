#pragma once
// A raced operator on a GPU: its tensors there, and the way from and to those in shared memory. The judge and the workers
// have one each, in contexts of their own.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "bench/course_race/race_ops.h"

namespace ladder::course {

// Judge and worker look for each other's messages for so long before they sleep.
constexpr std::chrono::microseconds kGpuSpin{5000};

class GpuSide {
 public:
  // Error (ladder::Error): there is no GPU, or this build is without CUDA.
  explicit GpuSide(const RaceOp& op);
  ~GpuSide();
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  void load(const Tensors& host);   // all pieces
  void run(std::string_view rung);  // and waits until the GPU has nothing to do, whatever stream was used
  void fetch(const Tensors& host) const;  // the pieces that are written

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What this GPU reaches, by the judge's clock: bytes per second, read and written together, of copies of `bytes` / 2, and
// FLOP/s of the library's product of bf16 matrices. The best of some turns.
double gpu_copy_rate(int64_t bytes);
double gpu_product_rate();

}  // namespace ladder::course
