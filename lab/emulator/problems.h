#pragma once
// One call of an operator for every rung that the emulator runs, of the same sizes and values on any device: what
// pictures are drawn of, and what a GPU's counters are compared with (tools/emulator_check.py).
#include <span>
#include <string_view>

#include "step1_layers/core/context.h"

namespace ladder_emulator {

struct Problem {
  std::string_view name;                      // "rms_norm/block": the operator, the rung
  void (*run)(const ladder::OpContext& ctx);  // forces the rung and waits for it
};

std::span<const Problem> problems();

}  // namespace ladder_emulator
