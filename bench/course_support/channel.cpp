#include "bench/course_support/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace ladder::course {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxMessage = size_t{64} << 20;

// A message is a line. Error: the other end has gone.
void write_line(int socket, const json& message) {
  const std::string line = message.dump() + "\n";
  for (size_t at = 0; at < line.size();) {
    const ssize_t count = ::send(socket, line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw WorkerError("the program ended");
    at += static_cast<size_t>(count);
  }
}

// Returns when something is there, or after so long.
void look_for(int socket, std::chrono::microseconds time) {
  const auto deadline = Clock::now() + time;
  char byte = 0;
  while (time.count() > 0 && ::recv(socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 &&
         Clock::now() < deadline) {
  }
}

}  // namespace

Worker::Worker(const std::vector<std::string>& command, int memory, std::chrono::milliseconds limit)
    : limit_(limit) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("no socket for the worker");
  // Above the worker's numbers, so that dup2() there overwrites nothing that is still needed.
  const int theirs = ::fcntl(ends[1], F_DUPFD_CLOEXEC, 10);
  const int shared = memory < 0 ? -1 : ::fcntl(memory, F_DUPFD_CLOEXEC, 10);
  ::close(ends[1]);
  std::vector<char*> arguments;
  for (const std::string& text : command) arguments.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("cannot start a worker");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int to : {0, 1, 2}) ::dup2(nothing, to);
    ::dup2(theirs, kWorkerSocket);
    if (shared >= 0) ::dup2(shared, kWorkerMemory);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(theirs);
  if (shared >= 0) ::close(shared);
  socket_ = ends[0];
}

Worker::~Worker() {
  if (socket_ >= 0) ::close(socket_);
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Worker::send(json request) {
  if (!received_.empty()) throw WorkerError("the program answered without being asked");
  char extra = 0;
  if (::recv(socket_, &extra, 1, MSG_DONTWAIT | MSG_PEEK) > 0)
    throw WorkerError("the program answered without being asked");
  expected_ = random_() >> 1;
  request["number"] = expected_;
  write_line(socket_, request);
}

json Worker::answer() {
  if (received_.empty()) look_for(socket_, spin_);
  const auto deadline = Clock::now() + limit_;
  size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{socket_, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0)
      throw WorkerError("no answer within " + std::to_string(limit_.count()) + " ms: a loop without end?");
    char buffer[65536];
    const ssize_t count = ::recv(socket_, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      int status = 0;
      const bool ended = ::waitpid(pid_, &status, 0) == pid_;
      pid_ = ended ? -1 : pid_;
      throw WorkerError(ended && WIFSIGNALED(status)
                            ? std::string("the program crashed: ") + ::strsignal(WTERMSIG(status))
                            : "the program ended before its answer");
    }
    received_.append(buffer, static_cast<size_t>(count));
    if (received_.size() > kMaxMessage) throw WorkerError("an answer of more than 64 MiB");
  }
  json message = json::parse(received_.substr(0, end), nullptr, false);
  received_.erase(0, end + 1);
  if (!message.is_object() || message.value("number", uint64_t{0}) != expected_)
    throw WorkerError("an answer that belongs to no request");
  if (message.contains("error")) throw WorkerError(message.at("error").get<std::string>());
  return message;
}

json Worker::ask(json request) {
  send(std::move(request));
  return answer();
}

json receive(std::chrono::microseconds spin) {
  static std::string received;
  if (received.empty()) look_for(kWorkerSocket, spin);
  for (;;) {
    const size_t end = received.find('\n');
    if (end != std::string::npos) {
      json request = json::parse(received.substr(0, end));
      received.erase(0, end + 1);
      return request;
    }
    char buffer[65536];
    const ssize_t count = ::recv(kWorkerSocket, buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) std::_Exit(0);
    received.append(buffer, static_cast<size_t>(count));
  }
}

void reply(const json& request, json answer) {
  answer["number"] = request.at("number");
  write_line(kWorkerSocket, answer);
}

void reply_error(const json& request, const std::string& error) {
  reply(request, {{"error", error}});
}

}  // namespace ladder::course
