#include "cli/model_flag_values.h"

#include "step1_layers/core/error.h"

namespace ladder {

DType parse_dtype(std::string_view name) {
  if (name == "f32") return DType::f32;
  if (name == "f16") return DType::f16;
  return DType::bf16;
}

std::map<std::string, std::string, std::less<>> forced_kernels(const std::vector<std::string>& flags) {
  std::map<std::string, std::string, std::less<>> kernels;
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    LADDER_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < flag.size(),
                 "--kernel: expected operator=variant, found \"{}\"", flag);
    const std::string name = flag.substr(equals + 1);
    const auto [forced, is_first] = kernels.emplace(flag.substr(0, equals), name);
    LADDER_CHECK(is_first || forced->second == name, "--kernel {} and --kernel {}={}: expected one of them",
                 flag, forced->first, forced->second);
  }
  return kernels;
}

}  // namespace ladder
