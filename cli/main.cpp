#include <unistd.h>

#include <cstdlib>

#include "cli/commands.h"

namespace {

// GNU's OpenMP lets a thread that waits spin for some ten milliseconds before it sleeps. Where other programs
// want the processors too, that makes every parallel loop wait for the scheduler, and a small model tens of
// times slower; a short spin bridges the gaps between our loops just as well. The library reads this before
// main() begins, so the program starts itself again with it, unless the user has chosen.
void wait_with_short_spins(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "1000", 1);
  execv("/proc/self/exe", argv);  // returns only where that cannot be done: then it spins for long
}

}  // namespace

int main(int argc, char** argv) {
  wait_with_short_spins(argv);
  return ladder::run_command_line(argc, argv);
}
