#pragma once
// Small kernels, most with one planted defect: what the emulator must report, and compute-sanitizer on a GPU
// (tools/emulator_check.py).
#include <span>
#include <string_view>

namespace ladder_planted {

struct Planted {
  std::string_view name;
  std::string_view expected;  // how the report begins; "" for a clean kernel
  void (*run)();              // launches it and waits
};

std::span<const Planted> planted();

}  // namespace ladder_planted
