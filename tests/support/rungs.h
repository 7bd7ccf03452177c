#pragma once
// Tests of an operator run on every row of its variants table that this machine can run, on either device.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/variants.h"
#include "tests/support/devices.h"

namespace ladder::testing {

// Calls fn(ctx) once per variant, with a context that forces it; fn runs the operator through call(). Where
// ctx.batch_invariant is set the variant promises it. A machine must be able to run `least` of them. A CUDA
// rung must take one of the calls at least, or the test would pass without it. (Seen on compute
// capability 9.0: other chips may have no room for a shape.)
template <class Args, class Fn>
void on_every_rung(std::string_view op, std::span<const Variant<Args>> table, Fn&& fn, int least = 2) {
  int rungs = 0;
  for (const auto& variant : table) {
    const bool on_gpu = variant.device == DeviceType::cuda;
    if (on_gpu && cuda_context() == nullptr) {
      note_left_out();
      continue;
    }
    OpContext ctx = on_gpu ? *cuda_context() : OpContext{};
    Arena arena(ctx.device);
    ctx.arena = &arena;
    ctx.batch_invariant = variant.batch_invariant;
    ctx.kernels[std::string(op)] = std::string(variant.name);
    if (!runs_here(variant, ctx)) continue;
    SCOPED_TRACE(std::string(op) + "=" + std::string(variant.name) + (on_gpu ? " on the GPU" : ""));
    gpu_calls().clear();
    fn(ctx);
    for (const auto& [_, calls] : gpu_calls()) {
      EXPECT_TRUE(calls.served > 0 || calls.replaced == 0 || ctx.device_arch != 90)
          << "it took none of " << calls.replaced << " calls: another rung served them";
    }
    EXPECT_EQ(arena.used_bytes(), 0) << "scratch that was not given back";
    ++rungs;
  }
  EXPECT_GE(rungs, least) << op << " is a ladder of more rungs";
}

// Runs fn with this many threads, then restores the number.
template <class Fn>
void with_threads(int count, Fn&& fn) {
  const int before = num_threads();
  set_num_threads(count);
  fn();
  set_num_threads(before);
}

}  // namespace ladder::testing
