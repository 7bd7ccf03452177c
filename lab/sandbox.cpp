#include "lab/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <set>

#include "lab/lab_error.h"
#include "lab/process_tree.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kResult = 3;  // the file descriptor
constexpr std::chrono::milliseconds kPoll{50};
constexpr const char* kScratch = "/tmp";  // in the namespaces

bool is_root() {
  return ::geteuid() == 0;
}

// The user ids of this process that none of its programs has now: the limit of processes counts by the id, and
// kill_user() finds by it, so that a short program's end must not be that of a long one beside it.
class UserIds {
 public:
  uid_t take() {
    std::unique_lock lock(mutex_);
    one_is_free_.wait(lock, [this] { return free_.any(); });
    const size_t id = free_._Find_first();
    free_.reset(id);
    return static_cast<uid_t>(20000 + static_cast<size_t>(::getpid()) % 1000 * kCount + id);
  }
  void give_back(uid_t user) {
    std::lock_guard lock(mutex_);
    free_.set((user - 20000) % kCount);
    one_is_free_.notify_one();
  }

 private:
  static constexpr size_t kCount = 40;  // at a time; all of them below 65536, as many as a container may have
  std::mutex mutex_;
  std::condition_variable one_is_free_;
  std::bitset<kCount> free_ = std::bitset<kCount>().set();
};

UserIds& user_ids() {
  static UserIds ids;
  return ids;
}

// 0: the caller's own.
struct User {
  explicit User(bool own) : id(own ? user_ids().take() : 0) {}
  ~User() {
    if (id != 0) user_ids().give_back(id);
  }
  User(const User&) = delete;
  User& operator=(const User&) = delete;
  const uid_t id;
};

void add(std::vector<std::string>& to, std::initializer_list<std::string> words) {
  to.insert(to.end(), words);
}

// Every folder on the way to `path` can be entered by all: outside it may be somebody's home.
void add_way(std::vector<std::string>& to, std::set<fs::path>& made, const fs::path& path) {
  fs::path at;
  for (const fs::path& part : path.parent_path()) {
    at /= part;
    if (at != "/" && at != kScratch && made.insert(at).second)
      add(to, {"--perms", "0755", "--dir", at.string()});
  }
}

// The words before the command that give it namespaces, its limit of processes, and under root a user of its own.
std::vector<std::string> in_namespaces(const Limits& limits, const Folders& folders, uid_t user) {
  std::vector<std::string> words = {
      "bwrap",         "--unshare-pid", "--unshare-net",        "--unshare-ipc",
      "--unshare-uts", "--new-session", "--unshare-cgroup-try", "--die-with-parent"};
  if (!is_root()) add(words, {"--unshare-user"});
  if (is_root()) add(words, {"--cap-drop", "ALL"});
  if (user != 0) add(words, {"--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"});
  std::set<fs::path> made = {"/usr", "/etc", "/proc", "/dev"};
  add(words, {"--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"});
  for (const char* name : {"/bin", "/sbin", "/lib", "/lib32", "/lib64"}) {
    if (fs::is_symlink(name))
      add(words, {"--symlink", fs::read_symlink(name).string(), name});
    else if (fs::is_directory(name))
      add(words, {"--ro-bind", name, name});
  }
  if (folders.gpu)
    for (const auto& node : fs::directory_iterator("/dev"))
      if (node.path().filename().string().starts_with("nvidia"))
        add(words, {"--dev-bind", node.path().string(), node.path().string()});
  add(words, {"--size", "1048576", "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"});
  add(words, {"--size", std::to_string(limits.scratch), "--perms", "1777", "--tmpfs", kScratch});
  for (const bool writable : {false, true})
    for (const fs::path& folder : writable ? folders.writable : folders.readable) {
      const fs::path path = fs::canonical(folder);
      add_way(words, made, path);
      add(words, {writable ? "--bind" : "--ro-bind", path.string(), path.string()});
    }
  add(words, {"--remount-ro", "/", "--chdir",
              folders.start.empty() ? kScratch : fs::canonical(folders.start).string()});
  add(words, {"--", "prlimit", "--nproc=" + std::to_string(limits.processes), "--"});
  if (user != 0)
    add(words, {"setpriv", "--reuid", std::to_string(user), "--regid", std::to_string(user), "--clear-groups",
                "--no-new-privs", "--"});
  return words;
}

// The same without namespaces. Not run by root, the limit of processes would count those of the whole session.
std::vector<std::string> in_the_open(const Limits& limits, uid_t user) {
  if (user == 0) return {};
  return {"prlimit",
          "--nproc=" + std::to_string(limits.processes),
          "--",
          "setpriv",
          "--reuid",
          std::to_string(user),
          "--regid",
          std::to_string(user),
          "--clear-groups",
          "--no-new-privs",
          "--"};
}

struct Pipe {
  int read = -1, write = -1;

  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw LabError("no pipe can be made");
    read = ends[0], write = ends[1];
  }
  ~Pipe() { close_read(), close_write(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_read() { shut(read); }
  void close_write() { shut(write); }

 private:
  static void shut(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

void set_limit(int which, int64_t value, int64_t grace = 0) {
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value + grace)};
  ::setrlimit(static_cast<__rlimit_resource>(which), &limit);
}

// Between fork and exec only what is safe in a program with threads.
pid_t start(const std::vector<std::string>& words, const std::vector<std::string>& settings,
            const Limits& limits, const fs::path& folder, Pipe& input, Pipe& output, Pipe& result) {
  std::vector<char*> arguments, environment;
  for (const std::string& text : words) arguments.push_back(const_cast<char*>(text.c_str()));
  for (const std::string& text : settings) environment.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw LabError("cannot start " + words[0]);
  if (child > 0) return child;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(input.read, STDIN_FILENO);
  ::dup2(output.write, STDOUT_FILENO);
  ::dup2(output.write, STDERR_FILENO);
  if (result.write == kResult)
    ::fcntl(kResult, F_SETFD, 0);
  else
    ::dup2(result.write, kResult);
  if (!folder.empty() && ::chdir(folder.c_str()) != 0) ::_exit(127);
  set_limit(RLIMIT_CPU, limits.cpu.count(),
            2);  // SIGXCPU first, which says what it was, and SIGKILL in the end
  set_limit(RLIMIT_FSIZE, limits.file);
  set_limit(RLIMIT_NOFILE, limits.open_files);
  set_limit(RLIMIT_CORE, 0);
  ::execvpe(arguments[0], arguments.data(), environment.data());
  ::_exit(127);
}

// Takes what is there; false at the end.
bool take(int from, std::string& into, int64_t most) {
  char buffer[16384];
  const ssize_t count = ::read(from, buffer, sizeof buffer);
  if (count > 0) {
    const int64_t room = std::max<int64_t>(most - static_cast<int64_t>(into.size()), 0);
    into.append(buffer, std::min<int64_t>(count, room));
  }
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

// All processes of a user id, and none of anybody else's: at one moment, so no fork escapes.
void kill_user(uid_t user) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0) ::kill(-1, SIGKILL);
    ::_exit(0);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

std::string mebibytes(int64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

// Reads until the program has ended or must be.
void watch(pid_t child, const Limits& limits, Pipe& output, Pipe& result, Confined& outcome) {
  const auto deadline = Clock::now() + limits.wall;
  bool output_open = true, result_open = true, ended = false;
  int status = 0;
  auto next_look = Clock::now();
  while (true) {
    pollfd ready[2] = {{output_open ? output.read : -1, POLLIN, 0},
                       {result_open ? result.read : -1, POLLIN, 0}};
    const int count = ::poll(ready, 2, ended ? 0 : static_cast<int>(kPoll.count()));
    if (ready[0].revents != 0) output_open = take(output.read, outcome.output, limits.output);
    if (ready[1].revents != 0) result_open = take(result.read, outcome.result, limits.output);
    if (ended && (count <= 0 || (!output_open && !result_open))) break;
    if (!ended && ::waitpid(child, &status, WNOHANG) == child) {
      ended = true;
      continue;
    }
    if (ended || Clock::now() < next_look) {
      if (!output_open && !result_open && !ended) ::poll(nullptr, 0, 2);
      if (Clock::now() > deadline + std::chrono::seconds(5))
        break;  // others still write: they end with the sandbox
      continue;
    }
    next_look = Clock::now() + kPoll;
    const TreeUse use = use_of_tree(child);
    if (Clock::now() > deadline) {
      outcome.timed_out = true;
      outcome.stopped =
          "did not end within " + std::to_string(limits.wall.count()) + " s: a loop or a wait without end?";
    } else if (use.memory > limits.memory) {
      outcome.stopped = "took more than " + mebibytes(limits.memory) + " of memory";
    } else if (use.processes > limits.processes + 8) {  // what starts it are some more
      outcome.stopped = "started more than " + std::to_string(limits.processes) + " processes";
    } else {
      continue;
    }
    kill_tree(child);
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    ended = true;
  }
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + outcome.signal;
  if (outcome.exit_code > 128 && outcome.signal == 0)
    outcome.signal = outcome.exit_code - 128;  // as bwrap tells it
  if (outcome.stopped.empty() && outcome.signal == SIGXCPU)
    outcome.stopped = "took more than " + std::to_string(limits.cpu.count()) + " s of processor time";
}

}  // namespace

Limits gpu_limits() {
  Limits limits;
  limits.wall = std::chrono::seconds(300);
  limits.cpu = std::chrono::seconds(600);
  limits.memory = int64_t{12} << 30;
  limits.file = int64_t{2} << 30;
  limits.processes = 512;
  limits.open_files = 4096;
  return limits;
}

void check_sandbox(Sandbox sandbox) {
  Limits limits;
  limits.wall = std::chrono::seconds(20);
  const Confined tried = run_confined({"true"}, limits, {}, sandbox);
  if (tried.ok()) return;
  const std::string why = tried.output.substr(0, tried.output.find('\n'));
  if (sandbox == Sandbox::none)
    throw LabError("no process of another user can be started here: " +
                   (why.empty() ? "setpriv failed" : why));
  if (tried.exit_code == 127) throw LabError("the sandbox needs bwrap: install the package bubblewrap");
  throw LabError("no namespaces here, so no sandbox (" + why +
                 "); in a container that is thrown away afterwards: --sandbox none");
}

Confined run_confined(const std::vector<std::string>& command, const Limits& limits, const Folders& folders,
                      Sandbox sandbox) {
  const bool open = sandbox == Sandbox::none;
  // A compiler writes into the caller's folders, so it stays the caller, if without a root's rights.
  const User taken(is_root() && folders.writable.empty());
  const uid_t user = taken.id;
  fs::path scratch = kScratch;
  if (open) {
    std::string name = (fs::temp_directory_path() / "ladder-lab-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw LabError(name + ": cannot be made");
    scratch = name;
    if (user != 0 && ::chown(name.c_str(), user, user) != 0) throw LabError(name + ": cannot be given away");
  }
  std::vector<std::string> words = open ? in_the_open(limits, user) : in_namespaces(limits, folders, user);
  words.insert(words.end(), command.begin(), command.end());
  std::vector<std::string> settings = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + scratch.string(),
                                       "TMPDIR=" + scratch.string()};
  for (const auto& [name, value] : folders.environment) settings.push_back(name + "=" + value);
  Pipe input, output, result;
  if (folders.input.size() > 4096) throw LabError("run_confined: more than 4096 bytes of input");
  if (::write(input.write, folders.input.data(), folders.input.size()) < 0)
    throw LabError("no input can be given");
  const fs::path begin = !open ? fs::path() : folders.start.empty() ? scratch : folders.start;
  const pid_t child = start(words, settings, limits, begin, input, output, result);
  input.close_write();
  output.close_write();
  result.close_write();
  Confined outcome;
  watch(child, limits, output, result, outcome);
  if (open) {
    if (user != 0) kill_user(user);
    ::kill(-child, SIGKILL);
    std::error_code ignored;
    fs::remove_all(scratch, ignored);
  }
  return outcome;
}

}  // namespace lab
