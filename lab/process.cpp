#include "lab/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "lab/lab_error.h"

extern char** environ;

namespace lab {
namespace {

using Clock = std::chrono::steady_clock;

// Everything is prepared before fork: the child of a program with threads may only call what is safe there.
pid_t start(const std::vector<std::string>& command, const std::map<std::string, std::string>& extra,
            int output) {
  std::vector<std::string> settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!extra.contains(text.substr(0, text.find('=')))) settings.push_back(text);
  }
  for (const auto& [name, value] : extra) settings.push_back(name + "=" + value);
  std::vector<char*> arguments, environment;
  for (const std::string& text : command) arguments.push_back(const_cast<char*>(text.c_str()));
  for (const std::string& text : settings) environment.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw LabError("cannot start " + command[0]);
  if (child == 0) {
    if (output >= 0) {
      ::setpgid(0, 0);  // so Ctrl-C ends this program alone, and with it, by the next line, the child
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(output, STDOUT_FILENO);
      ::dup2(output, STDERR_FILENO);
    }
    ::execvpe(arguments[0], arguments.data(), environment.data());
    ::_exit(127);
  }
  return child;
}

void wait_for(pid_t child, Outcome& outcome) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + outcome.signal;
}

}  // namespace

Outcome run(const std::vector<std::string>& command, std::chrono::seconds limit,
            const std::map<std::string, std::string>& extra) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw LabError("no pipe for " + command[0]);
  const pid_t child = start(command, extra, ends[1]);
  ::close(ends[1]);
  Outcome outcome;
  const auto deadline = Clock::now() + limit;
  for (char buffer[8192];;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{ends[0], POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0) {
      outcome.timed_out = true;
      ::kill(-child, SIGKILL);
      break;
    }
    const ssize_t count = ::read(ends[0], buffer, sizeof buffer);
    if (count > 0) outcome.output.append(buffer, count);
    if (count == 0 || (count < 0 && errno != EINTR)) break;
  }
  ::close(ends[0]);
  wait_for(child, outcome);
  return outcome;
}

Outcome run_visibly(const std::vector<std::string>& command,
                    const std::map<std::string, std::string>& extra) {
  Outcome outcome;
  wait_for(start(command, extra, -1), outcome);
  return outcome;
}

}  // namespace lab
