#pragma once
// The same tests over both devices. A test makes its tensors on the CPU, checks them on the CPU, and runs the
// operator through call() or run_rung(): on the CPU that is a plain call; for a CUDA rung the tensors go to
// the GPU and come back. Where there is no GPU the CUDA rungs are left out, and each test that would have run
// some says so.
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <type_traits>
#include <vector>

#include "step1_layers/core/variants.h"
#include "tests/support/arguments.h"

namespace ladder::testing {

// A context on the GPU that lives as long as the process; nullptr where there is no GPU.
const OpContext* cuda_context();

// Whether that GPU is the emulated one (lab/EMULATOR.md), which takes microseconds for what a GPU does in nanoseconds:
// tests leave out there what is only large.
bool emulated();

// Says, once in every test, that CUDA rungs are left out and why.
void note_left_out();

// How call() served an operator on the GPU: by the rung that the context forces, or by another one. By the
// operator's function, since they were cleared.
struct GpuCalls {
  int64_t served = 0;
  int64_t replaced = 0;
};
std::map<const void*, GpuCalls>& gpu_calls();

// Tensors on the GPU that stand for tensors on the CPU: the same window, at the same offset from a multiple
// of 64 bytes, between guard bytes.
class Mirror {
 public:
  explicit Mirror(const OpContext& ctx) : ctx_(ctx) {}

  // The same tensor gives the same mirror, so in-place calls stay in place.
  Tensor operator()(const Tensor& tensor);
  template <class T>
  T operator()(const T& argument) {
    T copy = argument;
    for (Tensor* tensor : tensors_of(copy)) *tensor = (*this)(static_cast<const Tensor&>(*tensor));
    return copy;
  }
  // Copies everything back, and fails the test if a byte outside a window has changed.
  void copy_back();

 private:
  struct Entry {
    Tensor host, device;
    std::vector<char> uploaded;  // guard, window and what lies between its rows, guard
    void* memory;
    int64_t offset;  // of the window in `uploaded`
  };
  const OpContext& ctx_;
  std::vector<Entry> entries_;
};

// fn(ctx, arguments...) where ctx says. A CUDA rung that does not take the arguments is replaced by the
// highest one that does and promises what ctx.batch_invariant demands.
template <class... Params, class... Args>
void call(void (*fn)(const OpContext&, Params...), const OpContext& ctx, const Args&... args) {
  if (ctx.device.is_cpu()) {
    fn(ctx, args...);
    return;
  }
  GpuCalls& calls = gpu_calls()[reinterpret_cast<const void*>(fn)];
  Mirror mirror(ctx);
  std::tuple<std::remove_cvref_t<Params>...> mirrored{
      mirror(static_cast<const std::remove_cvref_t<Params>&>(args))...};
  auto run = [&](const OpContext& context) {
    std::apply([&](const auto&... arguments) { fn(context, arguments...); }, mirrored);
  };
  try {
    run(ctx);
    ++calls.served;
  } catch (const Error& error) {
    if (std::string(error.what()).find("cannot run here or with this shape") == std::string::npos) throw;
    OpContext other = ctx;
    other.kernels.clear();
    other.batch_invariant = true;
    run(other);
    ++calls.replaced;
  }
  mirror.copy_back();
}

// For tests that go through a table themselves: ctx serves the CPU's rows.
template <class Args>
bool can_run_rung(const Variant<Args>& variant, const OpContext& ctx, const Args& args) {
  if (variant.device == DeviceType::cpu) return can_run(variant, ctx, args);
  if (cuda_context() != nullptr) return can_run(variant, *cuda_context(), args);
  note_left_out();
  return false;
}
template <class Args>
void run_rung(const Variant<Args>& variant, const OpContext& ctx, const std::type_identity_t<Args>& args) {
  if (variant.device == DeviceType::cpu) {
    variant.run(ctx, args);
    return;
  }
  Mirror mirror(*cuda_context());
  variant.run(*cuda_context(), mirror(args));
  mirror.copy_back();
}

}  // namespace ladder::testing
