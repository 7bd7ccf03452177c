#include "step7_parallel/workers/rank_watch.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include "step1_layers/core/error.h"
#include "step6_engine/process/stopped_process.h"

namespace ladder {

namespace {

[[noreturn]] void watch(int rank_pid, const std::string& name, std::chrono::milliseconds patience) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);  // what stops the rank's group does not stop this
  // Who waits for the rank's output to end does not wait for this. Errors are said.
  close(STDIN_FILENO);
  close(STDOUT_FILENO);
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);
  const std::chrono::milliseconds look = patience / 6;
  int num_looks_stopped = 0;  // in a row
  while (getppid() == rank_pid) {
    std::this_thread::sleep_for(look);
    num_looks_stopped = is_stopped_process(rank_pid) ? num_looks_stopped + 1 : 0;
    if (num_looks_stopped * look < patience) continue;
    const std::string line =
        fmt::format("ladder: error: {} (pid {}) was stopped (SIGSTOP) and has not gone on for {} s\n", name,
                    rank_pid, std::chrono::duration<double>(patience).count());
    (void)!write(STDERR_FILENO, line.data(), line.size());  // one call: a whole line among those of others
    kill(rank_pid, SIGKILL);
    break;
  }
  _exit(0);
}

}  // namespace

RankWatch::RankWatch(const std::string& name, std::chrono::milliseconds patience) {
  const int rank_pid = getpid();
  watcher_ = fork();
  if (watcher_ == 0) watch(rank_pid, name, patience);
  LADDER_CHECK(watcher_ > 0, "{}: a process that watches it cannot be started: {}", name,
               std::strerror(errno));
}

RankWatch::~RankWatch() {
  kill(watcher_, SIGKILL);
  waitpid(watcher_, nullptr, 0);
}

}  // namespace ladder
