#pragma once
// Tests of an operator run on every row of its variants table that this machine can run, on either device,
// each rung as a test case of its own: a correct loop passes beside a SIMD rung that is not written yet.
//
//   RUNG_TEST(Task1_3_RmsNorm, EqualsDoublePrecision, "rms_norm", rms_norm_variants()) {
//     ... call(rms_norm, ctx, x, weight, eps, out) ...       ctx forces the rung; `rung` is its row
//   }
//
// makes Task1_3_RmsNorm.EqualsDoublePrecision/loop, .../avx2, ..., and .../cuda_naive where CUDA is built.
#include <gtest/gtest.h>

#include <functional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/variants.h"
#include "tests/support/devices.h"

namespace ladder::testing {

// Calls fn(ctx) with a context that forces the variant; fn runs the operator through call(). Where
// ctx.batch_invariant is set the variant promises it. Scratch memory must be given back, and a CUDA rung must
// take one of the calls at least, or the test would pass without it. (Seen on compute capability 9.0: other
// chips may have no room for a shape.)
template <class Args, class Fn>
void on_rung(std::string_view op, const Variant<Args>& variant, Fn&& fn) {
  const bool on_gpu = variant.device == DeviceType::cuda;
  OpContext ctx = on_gpu ? *cuda_context() : OpContext{};
  Arena arena(ctx.device);
  ctx.arena = &arena;
  ctx.batch_invariant = variant.batch_invariant;
  ctx.kernels[std::string(op)] = std::string(variant.name);
  if (!runs_here(variant, ctx)) return;
  SCOPED_TRACE(std::string(op) + "=" + std::string(variant.name) + (on_gpu ? " on the GPU" : ""));
  gpu_calls().clear();
  fn(ctx);
  for (const auto& [_, calls] : gpu_calls()) {
    EXPECT_TRUE(calls.served > 0 || calls.replaced == 0 || ctx.device_arch != 90)
        << "it took none of " << calls.replaced << " calls: another rung served them";
  }
  EXPECT_EQ(arena.used_bytes(), 0) << "scratch that was not given back";
}

// The rows of a table that a test is about.
template <class Args, class Keep>
std::vector<Variant<Args>> rungs_where(std::span<const Variant<Args>> table, Keep&& keep) {
  std::vector<Variant<Args>> rungs;
  for (const auto& variant : table)
    if (keep(variant)) rungs.push_back(variant);
  return rungs;
}

// Registers one test case per variant. CPU rungs whose instruction set this machine lacks get none; CUDA
// rungs are skipped, with the reason, where there is no such GPU.
template <class Table, class Rung = std::ranges::range_value_t<Table>>
bool register_rung_tests(const char* suite, const std::string& name, const char* file, int line,
                         std::string_view op, const Table& table,
                         void (*body)(const OpContext&, const Rung&)) {
  class RungTest : public ::testing::Test {
   public:
    explicit RungTest(std::function<void()> run) : run_(std::move(run)) {}
    void TestBody() override { run_(); }

   private:
    std::function<void()> run_;
  };
  for (const auto& variant : table) {
    const bool on_gpu = variant.device == DeviceType::cuda;
    if (!on_gpu && !runs_here(variant, OpContext{})) continue;
    const std::string case_name = name + (on_gpu ? "/cuda_" : "/") + std::string(variant.name);
    auto run = [op, variant, body, on_gpu] {
      if (on_gpu && cuda_context() == nullptr) GTEST_SKIP() << "no GPU";
      if (on_gpu && !runs_here(variant, *cuda_context())) GTEST_SKIP() << "not on this GPU";
      on_rung(op, variant, [&](const OpContext& ctx) { body(ctx, variant); });
    };
    ::testing::RegisterTest(suite, case_name.c_str(), nullptr, nullptr, file, line,
                            [run]() -> ::testing::Test* { return new RungTest(run); });
  }
  return true;
}

#define RUNG_TEST(suite, name, op, table)                                                                   \
  static void suite##_##name(const ::ladder::OpContext&,                                                    \
                             const std::ranges::range_value_t<decltype(table)>&);                           \
  [[maybe_unused]] static const bool suite##_##name##_registered =                                          \
      ::ladder::testing::register_rung_tests(#suite, #name, __FILE__, __LINE__, op, table, suite##_##name); \
  static void suite##_##name([[maybe_unused]] const ::ladder::OpContext& ctx,                               \
                             [[maybe_unused]] const std::ranges::range_value_t<decltype(table)>& rung)

// Runs fn with this many threads, then restores the number.
template <class Fn>
void with_threads(int count, Fn&& fn) {
  const int before = num_threads();
  set_num_threads(count);
  fn();
  set_num_threads(before);
}

}  // namespace ladder::testing
