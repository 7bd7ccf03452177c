#include "step6_engine/process/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <algorithm>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>

#include "step1_layers/core/error.h"
#include "step6_engine/process/stopped_process.h"

namespace ladder {

namespace {

// In the child, between fork and exec: only calls that are safe in a process whose other threads are gone, so no
// memory is allocated and nothing is locked. Where something fails its errno goes into `report`.
[[noreturn]] void become(const char* program, char* const* arguments, int channel, int report,
                         std::span<const int> inherited, pid_t parent) {
  constexpr int kReport = ChildProcess::kChannelNumber + 1;
  const auto failed = [&report] {
    const int error = errno;
    _exit(write(report, &error, sizeof error) == sizeof error ? 127 : 126);
  };
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);  // a server blocks or ignores signals that a child should obey
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) failed();
  if (getppid() != parent) _exit(1);  // it ended before the line above

  // First all away from the numbers that they get: one may have the other's.
  static_assert(ChildProcess::kFirstInherited == kReport + 1);
  const int first_free = ChildProcess::kFirstInherited + static_cast<int>(inherited.size());
  int inherited_copies[ChildProcess::kMaxInherited];
  for (size_t i = 0; i < inherited.size(); ++i)
    if ((inherited_copies[i] = fcntl(inherited[i], F_DUPFD_CLOEXEC, first_free)) < 0) failed();
  const int channel_copy = fcntl(channel, F_DUPFD_CLOEXEC, first_free);
  const int report_copy = fcntl(report, F_DUPFD_CLOEXEC, first_free);
  const int nothing = fcntl(open("/dev/null", O_RDONLY | O_CLOEXEC), F_DUPFD_CLOEXEC, first_free);
  if (channel_copy < 0 || report_copy < 0 || nothing < 0) failed();
  if (dup3(report_copy, kReport, O_CLOEXEC) < 0) failed();
  report = kReport;
  if (dup2(channel_copy, ChildProcess::kChannelNumber) < 0) failed();  // stays open in what is executed
  if (dup2(nothing, STDIN_FILENO) < 0) failed();
  for (size_t i = 0; i < inherited.size(); ++i)
    if (dup2(inherited_copies[i], ChildProcess::kFirstInherited + static_cast<int>(i)) < 0) failed();
  // Whatever some library has opened without O_CLOEXEC: a copy of a socket keeps it open after its owner is gone.
  syscall(SYS_close_range, first_free, ~0U, 0);
  execv(program, arguments);
  failed();
  _exit(126);
}

// At one that was stopped.
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

ChildProcess::ChildProcess(ChildOptions options) : options_(std::move(options)) {
  LADDER_CHECK(std::ssize(options_.descriptors) <= kMaxInherited,
               "{}: {} descriptors are to be inherited, expected at most {}", options_.name,
               options_.descriptors.size(), kMaxInherited);
  int ends[2];
  LADDER_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "{}: a socket pair: {}",
               options_.name, std::strerror(errno));
  socket_ = FileDescriptor(ends[0]);
  watcher_ = std::thread([this, number = ends[1]] { run(FileDescriptor(number)); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return started_; });
  const int error = start_error_;
  lock.unlock();
  if (error == 0) return;
  watcher_.join();
  fail("{}: {} cannot be started: {}", options_.name, options_.program, std::strerror(error));
}

ChildProcess::~ChildProcess() {
  socket_.close();
  end(std::chrono::milliseconds(0));
  watcher_.join();
}

void ChildProcess::run(FileDescriptor child_socket) {
  std::vector<std::string> words = {options_.program};
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  words.insert(words.end(), {"--fd", std::to_string(kChannelNumber)});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  // The other end of `report` closes when the program has begun; before that the child writes its errno into it.
  int error = 0;
  pid_t pid = -1;
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    error = errno;
  } else {
    const FileDescriptor report_read(report[0]);
    FileDescriptor report_write(report[1]);
    const pid_t parent = getpid();
    pid = fork();
    if (pid == 0)
      become(options_.program.c_str(), arguments.data(), child_socket.number(), report[1],
             options_.descriptors, parent);
    if (pid < 0) error = errno;
    report_write.close();
    child_socket.close();
    ssize_t size = 0;
    do size = pid < 0 ? 0 : read(report[0], &error, sizeof error);
    while (size < 0 && errno == EINTR);
  }
  {
    std::lock_guard lock(mutex_);
    pid_ = pid;
    start_error_ = error;
    if (error == 0) started_ = true;
  }
  changed_.notify_all();

  if (pid > 0) {
    // It is looked at first and only then reaped, under the lock: signal() never meets a pid that is another's.
    const bool given_up = outlast(pid);
    std::lock_guard lock(mutex_);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    exit_.emplace();
    if (WIFEXITED(status)) exit_->code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) exit_->signal = WTERMSIG(status);
    if (given_up) exit_->stopped_for = options_.stop_patience;
    started_ = true;
  } else {
    std::lock_guard lock(mutex_);
    exit_.emplace();
    started_ = true;
  }
  changed_.notify_all();
}

bool ChildProcess::outlast(int pid) const {
  using Clock = std::chrono::steady_clock;
  const auto child = static_cast<id_t>(pid);
  bool given_up = false;
  for (;;) {
    siginfo_t info{};
    const int of_stops = options_.stop_patience.count() > 0 && !given_up ? WSTOPPED : 0;
    if (waitid(P_PID, child, &info, WEXITED | of_stops | WNOWAIT) != 0) {
      if (errno == EINTR) continue;
      return given_up;
    }
    if (info.si_code != CLD_STOPPED) return given_up;
    waitid(P_PID, child, &info, WSTOPPED | WNOHANG);  // or the same stop would be told again
    const auto until = Clock::now() + options_.stop_patience;
    while (is_stopped_process(pid) && Clock::now() < until)
      std::this_thread::sleep_for(std::min<Clock::duration>(kLook, until - Clock::now()));
    given_up = is_stopped_process(pid);
    if (given_up) ::kill(pid, SIGKILL);
  }
}

std::optional<ChildExit> ChildProcess::wait(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return exit_.has_value(); });
  return exit_;
}

void ChildProcess::signal(int number) const {
  std::lock_guard lock(mutex_);
  if (!exit_) ::kill(pid_, number);
}

void ChildProcess::kill() const {
  signal(SIGKILL);
}

ChildExit ChildProcess::end(std::chrono::milliseconds patience, std::chrono::milliseconds grace) {
  if (const auto ended = wait(patience)) return *ended;
  signal(SIGTERM);
  signal(SIGCONT);  // one that was stopped cannot end
  if (const auto ended = wait(grace)) return *ended;
  signal(SIGKILL);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return exit_.has_value(); });
  return *exit_;
}

std::string ChildProcess::what_happened() const {
  const auto ended = wait(std::chrono::milliseconds(500));
  return fmt::format("{} (pid {}) {}", options_.name, pid_,
                     ended ? ended->in_words() : "has closed its connection, and still runs");
}

}  // namespace ladder
