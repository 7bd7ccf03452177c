#pragma once
// Kernel ladders. Every operator owns one table of variants, slowest and clearest
// first. Tests check every row, benchmarks time every row, and the engine picks one: adding a kernel is
// adding a row.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "step1_layers/core/context.h"
#include "step1_layers/core/cpu_features.h"
#include "step1_layers/core/error.h"
#include "step1_layers/core/fake_device.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

// `Args` is the operator's argument struct: the tensors and numbers of one call.
template <class Args>
struct Variant {
  std::string_view name;  // "loop", "avx2", ...: what --kernel op=name selects
  DeviceType device = DeviceType::cpu;
  std::string_view idea;                    // the one idea this rung adds, for tables and plots
  int min_arch = 0;                         // CPU: a CpuIsa; CUDA: compute capability times 10
  bool batch_invariant = true;              // a row's result does not depend on the other rows of the call
  bool (*supports)(const Args&) = nullptr;  // nullptr: everything the operator accepts
  int64_t (*workspace)(const Args&) = nullptr;           // bytes of the arena it takes; nullptr: not stated
  void (*run)(const OpContext&, const Args&) = nullptr;  // neither allocates nor synchronises
};

// Whether this machine can run the variant at all, whatever the arguments.
template <class Args>
bool runs_here(const Variant<Args>& variant, const OpContext& ctx) {
  return variant.device == kernel_device(ctx.device) &&
         variant.min_arch <=
             (variant.device == DeviceType::cpu ? static_cast<int>(cpu_isa()) : ctx.device_arch);
}

template <class Args>
bool can_run(const Variant<Args>& variant, const OpContext& ctx, const Args& args) {
  return runs_here(variant, ctx) && (variant.supports == nullptr || variant.supports(args));
}

// The variant that serves a call, and why: "forced", "measured" or "table order".
template <class Args>
struct Choice {
  const Variant<Args>* variant;
  std::string_view why;
};

// The one forced with --kernel; else the one that measurements name for this call (kernel_table.h; empty:
// none); else the last row of the table. The last two only where they are written, can run here, take these
// arguments and, where the context demands it, are batch invariant. Error: the forced name does not exist, or cannot serve
// this call; or no row can.
template <class Args>
Choice<Args> choose_variant(std::string_view op, std::span<const Variant<Args>> table, const OpContext& ctx,
                            const Args& args, std::string_view measured = {}) {
  if (std::string_view forced = ctx.forced_kernel(op); !forced.empty()) {
    for (const auto& variant : table) {
      if (variant.name != forced || variant.device != kernel_device(ctx.device)) continue;
      LADDER_CHECK(can_run(variant, ctx, args),
                   "--kernel {}={}: this kernel cannot run here or with this shape", op, forced);
      return {&variant, "forced"};
    }
    std::string names;
    for (const auto& variant : table)
      if (variant.device == kernel_device(ctx.device))
        names += (names.empty() ? "" : ", ") + std::string(variant.name);
    fail("--kernel {}={}: no such kernel; {} has {}", op, forced, op, names);
  }
  auto serves = [&](const Variant<Args>& variant) {
    return (variant.batch_invariant || !ctx.batch_invariant) && can_run(variant, ctx, args) &&
           !is_unwritten(op, variant.name);
  };
  if (!measured.empty())
    for (const auto& variant : table)
      if (variant.name == measured && serves(variant)) return {&variant, "measured"};
  for (size_t i = table.size(); i-- > 0;)
    if (serves(table[i])) return {&table[i], "table order"};
  fail("no kernel of {} serves this call on {}", op, device_name(ctx.device));
}

template <class Args>
const Variant<Args>& select_variant(std::string_view op, std::span<const Variant<Args>> table,
                                    const OpContext& ctx, const Args& args, std::string_view measured = {}) {
  return *choose_variant(op, table, ctx, args, measured).variant;
}

template <class Args>
void run_variant(std::string_view op, std::span<const Variant<Args>> table, const OpContext& ctx,
                 const Args& args, std::string_view measured = {}) {
  const auto run = select_variant(op, table, ctx, args, measured).run;
  if (ctx.device.type == DeviceType::fake) [[unlikely]]
    return fake_launch(ctx, op, [run, args](const OpContext& on_cpu) { run(on_cpu, args); });
  run(ctx, args);
}

}  // namespace ladder
