#pragma once
// What a machine has of what the tasks with CUDA kernels take.
#include <filesystem>

namespace lab {

struct Machine {
  bool gpu = false;
  std::filesystem::path compiler;   // the CUDA toolkit's nvcc; empty: it is not there
  std::filesystem::path sanitizer;  // its compute-sanitizer, likewise
};

Machine this_machine();

}  // namespace lab
