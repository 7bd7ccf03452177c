#pragma once
// The kernel ladders of all operators, for `info` and for checking --kernel before anything is loaded.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/dtype.h"

namespace ladder {

struct KernelInfo {
  std::string_view name;
  bool runs_here = false;        // this machine has the instructions
  bool batch_invariant = false;  // may serve f32
  bool conditional = false;      // takes some shapes or types only
};

struct OperatorInfo {
  std::string_view name;
  std::vector<KernelInfo> kernels;  // slowest first
};

std::vector<OperatorInfo> operators();

// The kernels that calls of this type choose from here, best first, up to and including the first that takes
// them all: "avx512", or "onednn or avx2".
std::string default_kernels(const OperatorInfo& op, DType dtype);

// Error, naming the flag and listing what there is: an operator or a kernel that does not exist, or cannot
// run here.
void check_forced_kernels(const std::map<std::string, std::string, std::less<>>& forced);

}  // namespace ladder
