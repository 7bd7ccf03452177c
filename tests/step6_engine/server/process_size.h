#pragma once
// How much memory this process has.
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace ladder::testing {

// What a sanitizer adds, and keeps of what was freed, is not the program's; nor is the time that it takes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCanBeMeasured = false;
#else
inline constexpr bool kCanBeMeasured = true;
#endif

inline int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace ladder::testing
