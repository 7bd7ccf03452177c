#include "lab/process_tree.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace lab {
namespace {

namespace fs = std::filesystem;

// Children of all threads. A process that ends meanwhile has none.
std::set<pid_t> tree_of(pid_t root, int* threads) {
  std::set<pid_t> found = {root};
  std::set<pid_t> left = {root};
  while (!left.empty()) {
    const pid_t process = *left.begin();
    left.erase(left.begin());
    std::error_code error;
    for (fs::directory_iterator tasks("/proc/" + std::to_string(process) + "/task", error), end;
         !error && tasks != end; tasks.increment(error)) {
      if (threads != nullptr) ++*threads;
      std::ifstream children(tasks->path() / "children");
      for (pid_t child; children >> child;)
        if (found.insert(child).second) left.insert(child);
    }
  }
  return found;
}

}  // namespace

TreeUse use_of_tree(pid_t root) {
  TreeUse use;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  for (const pid_t process : tree_of(root, &use.processes)) {
    std::ifstream statm("/proc/" + std::to_string(process) + "/statm");
    int64_t size = 0, resident = 0;
    if (statm >> size >> resident) use.memory += resident * page;
  }
  return use;
}

void kill_tree(pid_t root) {
  for (int round = 0; round < 20; ++round) {
    const std::set<pid_t> all = tree_of(root, nullptr);
    for (const pid_t process : all)
      if (process != root) ::kill(process, SIGKILL);
    if (all.size() <= 1) break;
    ::usleep(2000);
  }
  ::kill(root, SIGKILL);
  ::kill(-root, SIGKILL);
}

}  // namespace lab
