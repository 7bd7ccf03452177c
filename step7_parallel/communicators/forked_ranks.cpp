#include "step7_parallel/communicators/forked_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "step1_layers/core/error.h"
#include "step1_layers/core/parallel.h"

namespace ladder {

namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t process = -1;
  FileDescriptor says;  // what it failed with; its end is the child's
  std::string error;
};

// Never returns: whatever fn throws, the child does not go on as a second program.
[[noreturn]] void live(int rank, const ForkedRanks& ranks, const SharedMemoryGroup& group, int out,
                       const std::function<void(int rank, Communicator& group)>& fn) {
  std::string error = "an exception";
  try {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_num_threads(1);  // a fork has the calling thread only, and none of its OpenMP team
    std::unique_ptr<Communicator> mine = group.join(rank, ranks.patience);
    try {
      fn(rank, *mine);
      mine.reset();  // leaves
      ::_exit(0);
    } catch (const std::exception& caught) {
      error = caught.what();
    } catch (...) {
    }
    group.close(fmt::format("rank {} failed: {}", rank, error));  // before it leaves
  } catch (const std::exception& caught) {
    error = caught.what();
  } catch (...) {
  }
  [[maybe_unused]] const ssize_t written = ::write(out, error.data(), error.size());
  ::_exit(1);
}

Child start(int rank, const ForkedRanks& ranks, const SharedMemoryGroup& group,
            const std::function<void(int rank, Communicator& group)>& fn) {
  int ends[2];
  LADDER_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe: {}", std::strerror(errno));
  Child child{.process = -1, .says = FileDescriptor(ends[0]), .error = {}};
  const FileDescriptor out(ends[1]);
  child.process = ::fork();
  LADDER_CHECK(child.process >= 0, "a process for rank {}: {}", rank, std::strerror(errno));
  if (child.process == 0) live(rank, ranks, group, out.number(), fn);
  return child;
}

// Takes what the child says; at its end also how it ended. False: there is more to come.
bool has_ended(Child& child) {
  char bytes[1024];
  const ssize_t count = ::read(child.says.number(), bytes, sizeof bytes);
  if (count < 0 && errno == EINTR) return false;
  if (count > 0) {
    child.error.append(bytes, static_cast<size_t>(count));
    return false;
  }
  int status = 0;
  while (::waitpid(child.process, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status))
    child.error = fmt::format("process {} was ended by signal {} ({})", child.process, WTERMSIG(status),
                              ::strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) != 0 && child.error.empty())
    child.error = fmt::format("process {} ended with exit code {}", child.process, WEXITSTATUS(status));
  child.says.close();
  return true;
}

}  // namespace

std::vector<std::string> run_forked_ranks(const ForkedRanks& ranks,
                                          const std::function<void(int rank, Communicator& group)>& fn) {
  const SharedMemoryGroup group = SharedMemoryGroup::create(ranks.shape);
  std::vector<Child> children;
  for (int rank = 0; rank < group.size(); ++rank) children.push_back(start(rank, ranks, group, fn));

  Clock::time_point until = Clock::now() + ranks.deadline;
  bool is_closed = false;
  const auto close = [&](const std::string& reason) {
    group.close(reason);
    if (!std::exchange(is_closed, true)) until = Clock::now() + std::chrono::seconds(2);
  };
  while (true) {
    std::vector<pollfd> waits;
    for (const Child& child : children)
      waits.push_back({child.says.number(), POLLIN, 0});  // -1: not looked at
    if (std::all_of(waits.begin(), waits.end(), [](const pollfd& wait) { return wait.fd < 0; })) break;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    ::poll(waits.data(), waits.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    for (size_t rank = 0; rank < children.size(); ++rank)
      if (waits[rank].revents != 0 && has_ended(children[rank]) && !children[rank].error.empty())
        close(fmt::format("rank {} failed: {}", rank, children[rank].error));
    if (Clock::now() < until) continue;
    if (!is_closed) {
      close(fmt::format("not done within {} ms:\n{}", ranks.deadline.count(), group.where()));
    } else {
      for (const Child& child : children)
        if (child.says) ::kill(child.process, SIGKILL);
    }
  }
  std::vector<std::string> errors;
  for (Child& child : children) errors.push_back(std::move(child.error));
  return errors;
}

}  // namespace ladder
