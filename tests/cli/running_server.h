#pragma once
// `ladder serve` as a process of its own that a test talks to, looks at and ends.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <fcntl.h>

#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/program.h"
#include "tests/step6_engine/process/children_of.h"
#include "tests/step6_engine/server/http_client.h"
#include "tests/support/temporary_folder.h"

namespace ladder::testing {

// For programs that start, load a model and end.
constexpr std::chrono::milliseconds kStartPatience = 120s;

class RunningServer {
 public:
  // Returns when it listens; ready() is false where it has ended instead.
  explicit RunningServer(std::vector<std::string> flags) : RunningServer(std::move(flags), NoWait{}) {
    wait_until_ready();
  }
  struct NoWait {};
  RunningServer(std::vector<std::string> flags, NoWait) {
    std::vector<std::string> words = {"serve", "--device=cpu", "--dtype=f32"};
    words.insert(words.end(), flags.begin(), flags.end());
    start(std::move(words));
  }
  // Another command that serves.
  struct Command {
    std::string name;
  };
  RunningServer(const Command& command, std::vector<std::string> flags) {
    flags.insert(flags.begin(), command.name);
    start(std::move(flags));
    wait_until_ready();
  }
  void wait_until_ready() {
    const std::string mark = "listening on http://127.0.0.1:";
    eventually(
        [&] {
          const std::string text = out();
          const size_t at = text.find(mark);
          if (at != text.npos && text.find('\n', at) != text.npos)
            port_ = static_cast<uint16_t>(std::stoi(text.substr(at + mark.size())));
          return port_ != 0 || exited();
        },
        kStartPatience);
    EXPECT_TRUE(ready()) << out() << err();
  }
  ~RunningServer() {
    if (exited()) return;
    kill(SIGKILL);
    eventually([this] { return exited(); });
  }

  bool ready() const { return port_ != 0; }
  uint16_t port() const { return port_; }
  int pid() const { return pid_; }
  std::string out() const { return read_file(folder_ / "out"); }
  std::string err() const { return read_file(folder_ / "err"); }
  void kill(int signal) const { ::kill(pid_, signal); }
  bool exited() {
    if (exit_code_ >= 0) return true;
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
  // Waits for its end; -1: it did not come.
  int exit_code() {
    eventually([this] { return exited(); }, kStartPatience);
    return exit_code_;
  }

  // Its children that run this command.
  std::vector<int> children(const std::string& command) const {
    std::vector<int> found;
    for (const int child : children_of(pid_)) {
      std::ifstream file(std::filesystem::path("/proc") / std::to_string(child) / "cmdline");
      std::string words;
      std::getline(file, words);  // which, unlike an iterator, does not throw when the process ends meanwhile
      if (words.find(std::string(1, '\0') + command + std::string(1, '\0')) != words.npos)
        found.push_back(child);
    }
    return found;
  }

  // One request on a connection of its own; empty: no answer.
  std::string get(const std::string& path) const {
    RawClient client(port_);
    if (!client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) return {};
    return client.answer();
  }
  static std::string completion(const Json& body) {
    const std::string text = body.dump();
    return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
           "Content-Length: " +
           std::to_string(text.size()) + "\r\n\r\n" + text;
  }
  std::string post(const Json& body, std::chrono::milliseconds timeout = kPatience) const {
    RawClient client(port_);
    if (!client.send(completion(body))) return {};
    return client.answer(timeout);
  }
  // The value of a metric, summed over its labels.
  double metric(const std::string& name) const {
    const std::string text = body_of(get("/metrics"));
    std::istringstream lines(text);
    double sum = 0;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("ladder:" + name)) sum += std::stod(line.substr(line.rfind(' ')));
    return sum;
  }

 private:
  void start(std::vector<std::string> words) {
    words.insert(words.begin(), ladder_binary());
    words.push_back("--port=0");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (const auto& [number, name] : {std::pair{1, "out"}, {2, "err"}})
      posix_spawn_file_actions_addopen(&files, number, (folder_ / name).c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (posix_spawn(&pid_, words[0].c_str(), &files, nullptr, arguments.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&files);
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
  uint16_t port_ = 0;
  int exit_code_ = -1;
};

}  // namespace ladder::testing
