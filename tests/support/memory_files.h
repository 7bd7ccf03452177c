#pragma once
// What stands in /dev/shm: shared memory that has a name stays there when its processes are gone.
#include <filesystem>
#include <set>
#include <string>

namespace ladder::testing {

// Without the segments of Open MPI and UCX, which other tests may be using just now.
inline std::set<std::string> files_of_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("vader_segment") && !name.starts_with("ucx_shm_")) names.insert(name);
  }
  return names;
}

}  // namespace ladder::testing
