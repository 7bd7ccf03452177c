#include "step1_layers/core/cpu_features.h"

#include <unistd.h>

#include <fstream>

namespace ladder {

CpuIsa cpu_isa() {
#if defined(__x86_64__)
  static const CpuIsa isa = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      if (!__builtin_cpu_supports("avx512bf16")) return CpuIsa::avx512;
#if defined(__clang__)  // clang 16, which builds the fuzz targets, does not know the feature's name
      return CpuIsa::avx512_bf16;
#else
      return __builtin_cpu_supports("amx-bf16") ? CpuIsa::amx : CpuIsa::avx512_bf16;
#endif
    }
    // Every processor with AVX2 and FMA that exists also converts f16 (F16C).
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return CpuIsa::avx2;
    return CpuIsa::portable;
  }();
  return isa;
#else
  return CpuIsa::portable;
#endif
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

int64_t physical_memory_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace ladder
