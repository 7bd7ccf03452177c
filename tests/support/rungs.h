#pragma once
// Tests of an operator run on every row of its variants table that this machine can run.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>

#include "step1_layers/core/arena.h"
#include "step1_layers/core/parallel.h"
#include "step1_layers/core/variants.h"

namespace ladder::testing {

// Calls fn(ctx) once per variant, with a context that forces it.
template <class Args, class Fn>
void on_every_rung(std::string_view op, std::span<const Variant<Args>> table, Fn&& fn) {
  int rungs = 0;
  for (const auto& variant : table) {
    Arena arena;
    OpContext ctx;
    ctx.arena = &arena;
    ctx.kernels[std::string(op)] = std::string(variant.name);
    if (!runs_here(variant, ctx)) continue;
    SCOPED_TRACE(std::string(op) + "=" + std::string(variant.name));
    fn(ctx);
    EXPECT_EQ(arena.used_bytes(), 0) << "scratch that was not given back";
    ++rungs;
  }
  EXPECT_GE(rungs, 2) << op << " is a ladder of at least two rungs";
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
