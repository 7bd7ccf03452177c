#pragma once
// What a process leaves behind if it is careless.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace ladder::testing {

inline int num_open_files() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += !entry.path().empty();
  return count;
}

// A thread that was joined may be among them for a moment: the kernel tells its joiner before it takes it off the list.
inline int num_threads() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    count += !entry.path().empty();
  return count;
}

// Whether they come to be no more than that.
inline bool threads_end(int num_before) {
  for (int i = 0; i < 10'000 && num_threads() > num_before; ++i) usleep(1000);
  return num_threads() <= num_before;
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
