#include "step6_engine/process/child_exit.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

namespace ladder {

std::string ChildExit::in_words() const {
  if (stopped_for)
    return fmt::format("was stopped (SIGSTOP) and has not gone on for {} s",
                       std::chrono::duration<double>(*stopped_for).count());
  if (code) return fmt::format("ended with exit code {}", *code);
  if (!signal) return "ended";
  const char* name = sigabbrev_np(*signal);
  const std::string called = name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", *signal);
  return fmt::format("was ended by {}{}", called,
                     *signal == SIGKILL ? " (as a system does that runs out of memory)" : "");
}

}  // namespace ladder
