#pragma once
// A process and all that it started, as /proc shows them.
#include <sys/types.h>

#include <cstdint>

namespace lab {

struct TreeUse {
  int processes = 0;   // threads count
  int64_t memory = 0;  // bytes resident, what several share counted for each
};

TreeUse use_of_tree(pid_t root);

// Ends them, and what they start meanwhile. In a process namespace the end of its first process is the end of all.
void kill_tree(pid_t root);

}  // namespace lab
