#pragma once
// The kernel ladders of all operators, for `info` and for checking --kernel before anything is loaded.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "step1_layers/core/device.h"
#include "step1_layers/core/dtype.h"
#include "step2_model/decoder/decoder_spec.h"
#include "step4_runner/runner_config.h"

namespace ladder {

struct KernelInfo {
  std::string_view name;
  std::string_view idea;  // what this rung adds
  DeviceType device = DeviceType::cpu;
  bool runs_here = false;        // made for the device in use, which has the instructions
  bool batch_invariant = false;  // may serve f32
  bool conditional = false;      // takes some shapes or types only
  int min_arch = 0;              // on a GPU: compute capability times 10
};

struct OperatorInfo {
  std::string_view name;
  std::vector<KernelInfo> kernels;  // of all devices, slowest first
};

std::vector<OperatorInfo> operators(Device device);

// The kernels that calls of this type choose from here, best first, up to and including the first that takes
// them all. Empty: the device has none.
std::vector<KernelInfo> default_kernels(const OperatorInfo& op, DType dtype);

struct ChosenKernel {
  std::string_view name, why;  // "forced", "measured", "table order"
};

// A piece of the model around a matrix product, and its kernel for several numbers of rows: "fused", or that
// of the product alone.
struct ProductKernels {
  std::string_view name;              // "norm_qkv"
  int64_t n = 0, k = 0;               // the weight is [n, k]
  std::vector<ChosenKernel> kernels;  // one per number of rows
};
std::vector<ProductKernels> product_kernels(const DecoderSpec& spec, const RunnerConfig& config,
                                            const std::vector<int64_t>& rows);

// The kernel of the model's attention for so many sequences that decode, or, above --max-num-seqs, for a
// prompt of so many rows: "fused" with what comes before it (attention_with_store), or that of
// attention alone; "none" where no kernel takes the model's heads.
std::vector<ChosenKernel> attention_kernels(const DecoderSpec& spec, const RunnerConfig& config,
                                            const std::vector<int64_t>& rows);

// Error, naming the flag and listing what there is: an operator or a kernel that does not exist on this
// device, or cannot run here.
void check_forced_kernels(const std::map<std::string, std::string, std::less<>>& forced, Device device);

}  // namespace ladder
