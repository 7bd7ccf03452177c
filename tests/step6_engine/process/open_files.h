#pragma once
// What a process leaves behind if it is careless.
#include <dirent.h>

#include <filesystem>
#include <set>
#include <string>

namespace ladder::testing {

inline int num_open_files() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += !entry.path().empty();
  return count;
}

inline int num_threads() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    count += !entry.path().empty();
  return count;
}

// 'R', 'S', 'Z' (a zombie), ...; 0: there is no such process.
inline char process_state(int pid) {
  FILE* file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (file == nullptr) return 0;
  char state = 0;
  if (std::fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
  std::fclose(file);
  return state;
}

}  // namespace ladder::testing
