// Task 1.1: what stands around tensors: scratch memory, kernel choice, threads, parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "step1_layers/activation/gelu.h"
#include "step1_layers/activation/silu_and_mul.h"
#include "step1_layers/attention/attention.h"
#include "step1_layers/attention/attention_with_store.h"
#include "step1_layers/attention/paged_attention.h"
#include "step1_layers/attention/qk_norm_rope_store.h"
#include "step1_layers/attention/store_kv.h"
#include "step1_layers/core/arena.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/parameter.h"
#include "step1_layers/core/variants.h"
#include "step1_layers/embedding/embedding.h"
#include "step1_layers/linear/matmul.h"
#include "step1_layers/norm/rms_norm.h"
#include "step1_layers/rotary/rope.h"

// The plain-loop registers, compiled here: the other instruction sets are tested through the operators.
#define LADDER_ISA simd_under_test
#include "step1_layers/core/simd.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Task1_1_Arena, TakesAlignedMemoryThatDoesNotOverlap) {
  Arena arena;
  ArenaScope scope(arena);
  std::vector<Tensor> taken;
  for (int i = 0; i < 50; ++i) {
    taken.push_back(arena.take({i * 1000 + 1}, DType::bf16));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(taken.back().raw()) % 256, 0u);
    taken.back().fill_bytes(static_cast<uint8_t>(i));
  }
  for (int i = 0; i < 50; ++i) {
    const auto* bytes = static_cast<const uint8_t*>(taken[static_cast<size_t>(i)].raw());
    for (int64_t j = 0; j < taken[static_cast<size_t>(i)].nbytes(); ++j) ASSERT_EQ(bytes[j], i);
  }
}

TEST(Task1_1_Arena, AScopeGivesBackWhatWasTakenInIt) {
  Arena arena;
  ArenaScope outer(arena);
  Tensor kept = arena.take({100}, DType::f32);
  kept.fill_bytes(7);
  void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    ArenaScope inner(arena);
    Tensor scratch = arena.take({100}, DType::f32);
    if (i == 0) first = scratch.raw();
    EXPECT_EQ(scratch.raw(), first);
    scratch.fill_bytes(9);
  }
  const auto* bytes = static_cast<const uint8_t*>(kept.raw());
  EXPECT_TRUE(std::all_of(bytes, bytes + kept.nbytes(), [](uint8_t byte) { return byte == 7; }));
}

TEST(Task1_1_Arena, WhatWarmUpReservedIsEnoughAfterFreezing) {
  Arena arena;
  const auto forward = [&](int64_t tokens) {
    ArenaScope scope(arena);
    Tensor a = arena.take({tokens, 300}, DType::f32);
    ArenaScope inner(arena);
    Tensor b = arena.take({tokens, 900}, DType::f32);
  };
  forward(4000);
  const int64_t reserved = arena.reserved_bytes();
  EXPECT_GE(arena.peak_bytes(), 4000 * 1200 * 4);
  EXPECT_EQ(arena.used_bytes(), 0);
  arena.freeze();
  for (int64_t tokens : {1, 4000, 17, 3999}) EXPECT_NO_THROW(forward(tokens));
  EXPECT_EQ(arena.reserved_bytes(), reserved);
  EXPECT_THROW(forward(40000), Error);
}

TEST(Task1_1_Simd, ExpIsWithinTwoUnitsInTheLastPlace) {
  namespace simd = simd_under_test;
  for (float x = -86.9f; x < 87.9f; x += 0.000977f) {
    float result[simd::kLanes];
    simd::store(result, simd::exp(simd::broadcast(x)));
    const double expected = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(expected) - 23);
    ASSERT_LE(std::abs(result[0] - expected), 2 * unit) << "e^" << x;
  }
  const float infinity = std::numeric_limits<float>::infinity();
  float result[simd::kLanes];
  simd::store(result, simd::exp(simd::broadcast(-infinity)));
  EXPECT_EQ(result[0], 0.0f);  // a masked score weighs exactly nothing
  simd::store(result, simd::exp(simd::broadcast(std::nanf(""))));
  EXPECT_TRUE(std::isnan(result[0]));
}

struct FakeArgs {
  int size = 0;
};

const Variant<FakeArgs> kTable[] = {
    {.name = "loop", .idea = "", .run = [](const OpContext&, const FakeArgs&) {}},
    {.name = "fast", .idea = "", .run = [](const OpContext&, const FakeArgs&) {}},
    {.name = "batched",
     .idea = "",
     .batch_invariant = false,
     .run = [](const OpContext&, const FakeArgs&) {}},
    {.name = "large",
     .idea = "",
     .supports = [](const FakeArgs& args) { return args.size >= 100; },
     .run = [](const OpContext&, const FakeArgs&) {}},
    {.name = "future", .idea = "", .min_arch = 1000000, .run = [](const OpContext&, const FakeArgs&) {}},
    {.name = "device",
     .device = DeviceType::cuda,
     .idea = "",
     .run = [](const OpContext&, const FakeArgs&) {}},
};

std::string_view selected(const OpContext& ctx, int size, std::span<const Variant<FakeArgs>> table = kTable) {
  return select_variant("fake", table, ctx, FakeArgs{size}).name;
}

TEST(Task1_1_Variants, TheLastRowThatCanServeTheCallIsTheDefault) {
  OpContext ctx;
  EXPECT_EQ(selected(ctx, 1), "batched");
  EXPECT_EQ(selected(ctx, 100), "large");
  ctx.batch_invariant = true;
  EXPECT_EQ(selected(ctx, 1), "fast");
  EXPECT_EQ(selected(ctx, 100), "large");
  OpContext cuda;
  cuda.device.type = DeviceType::cuda;
  EXPECT_EQ(selected(cuda, 1), "device");
}

TEST(Task1_1_Variants, AForcedKernelIsUsedOrItsNameIsRefused) {
  OpContext ctx;
  ctx.kernels["fake"] = "loop";
  ctx.kernels["other"] = "no matter";
  EXPECT_EQ(selected(ctx, 1), "loop");
  const auto error_of = [&](const char* name) -> std::string {
    ctx.kernels["fake"] = name;
    try {
      selected(ctx, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  // Names that exist are listed, names of another device are not.
  EXPECT_THAT(error_of("lop"), AllOf(HasSubstr("fake=lop"), HasSubstr("loop, fast, batched, large"),
                                     ::testing::Not(HasSubstr("device"))));
  EXPECT_THAT(error_of("device"), HasSubstr("no such kernel"));
  EXPECT_THAT(error_of("large"), HasSubstr("cannot run here or with this shape"));
  EXPECT_THAT(error_of("future"), HasSubstr("cannot run here"));
  ctx.kernels.clear();
  EXPECT_THROW(selected(ctx, 1, std::span(kTable).last(1)), Error);
}

// Tests run on the rungs that this machine has, each as a case of its own (tests/support/rungs.h): a ladder
// that lost its rungs would have no cases that fail.
TEST(Task1_1_Variants, EveryOperatorIsALadderOnThisMachine) {
  const auto expect_rungs = [](auto variants, std::string_view op) {
    EXPECT_GE(std::ranges::count_if(variants, [](const auto& rung) { return runs_here(rung, OpContext{}); }),
              2)
        << op;
  };
  expect_rungs(silu_and_mul_variants(), "silu_and_mul");
  expect_rungs(gelu_variants(), "gelu");
  expect_rungs(gelu_and_mul_variants(), "gelu_and_mul");
  expect_rungs(rms_norm_variants(), "rms_norm");
  expect_rungs(fused_add_rms_norm_variants(), "fused_add_rms_norm");
  expect_rungs(matmul_variants(), "matmul");
  expect_rungs(rotary_embedding_variants(), "rotary_embedding");
  expect_rungs(qk_norm_rope_store_variants(), "qk_norm_rope_store");
  expect_rungs(paged_attention_variants(), "paged_attention");
  expect_rungs(causal_attention_variants(), "causal_attention");
  expect_rungs(store_kv_variants(), "store_kv");
  EXPECT_GE(embedding_variants().size(), 1u);
  EXPECT_GE(attention_with_store_variants().size(), 1u);
}

TEST(Task1_1_Parallel, EveryIndexIsVisitedOnce) {
  const int threads = num_threads();
  for (int count : {1, 2, 5}) {
    set_num_threads(count);
    for (int64_t n : {0, 1, 2, 7, 1000})
      for (int64_t grain : {1, 3, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
        std::atomic<int> pieces = 0;
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          ++pieces;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (auto& visit : visits) ASSERT_EQ(visit, 1);
        EXPECT_LE(pieces * grain, std::max(n, grain));
      }
  }
  set_num_threads(threads);
}

TEST(Task1_1_Parallel, TheNumberOfThreadsBelongsToTheCallingThread) {
  const int threads = num_threads();
  std::thread([] { set_num_threads(1); }).join();
  EXPECT_EQ(num_threads(), threads);
}

TEST(Task1_1_Parameter, EveryPartIsFilledExactlyOnce) {
  Parameter parameter;
  parameter.name = "qkv.weight";
  parameter.num_parts = 3;
  std::vector<int> filled;
  bool fails = true;
  parameter.load_part = [&](const Tensor&, int part) {
    LADDER_CHECK(!fails, "the wrong shape");
    filled.push_back(part);
  };
  EXPECT_THROW(parameter.load(Tensor(), 1), Error);
  fails = false;
  parameter.load(Tensor(), 1);  // a refused load does not count
  parameter.load(Tensor(), 0);
  EXPECT_FALSE(parameter.is_loaded());
  EXPECT_THROW(parameter.load(Tensor(), 1), Error);
  EXPECT_THROW(parameter.load(Tensor(), 3), Error);
  EXPECT_THROW(parameter.load(Tensor(), -1), Error);
  parameter.load(Tensor(), 2);
  EXPECT_TRUE(parameter.is_loaded());
  EXPECT_EQ(filled, (std::vector<int>{1, 0, 2}));
}

}  // namespace
}  // namespace ladder
