#pragma once
// A child of this program that does a part of its work: started, watched and ended.
//
//   parent                                       child: PROGRAM ARGUMENTS... --fd 3
//     socket() <------ a socket pair ------> descriptor kChannelNumber
//
// Neither outlives the other. The child's end of the socket closes with the child, however that ends, so the parent
// reads an end of file; wait() says how it ended. The other way round the child reads an end of file, and where it
// does not look (a long computation) the kernel kills it (PR_SET_PDEATHSIG). That signal comes when the *thread* that
// forked ends: the fork is done by a thread of its own, which then waits for the child, so no child stays a zombie.
//
// Standard output and error are the parent's; standard input is empty. Nothing else is inherited but what
// ChildOptions::descriptors names. The child is in a process group of its own: an interrupt from the terminal is for the
// parent, which decides what becomes of both.
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "step6_engine/process/child_exit.h"
#include "step6_engine/process/file_descriptor.h"

namespace ladder {

struct ChildOptions {
  std::string name;  // for messages: "the engine's process"
  std::vector<std::string> arguments;
  std::string program = "/proc/self/exe";  // this program, even if its file was replaced
  // Open files of this process that the child gets too, as numbers kFirstInherited, kFirstInherited + 1, ...: shared memory.
  // At most kMaxInherited.
  std::vector<int> descriptors = {};
  // Stopped (SIGSTOP) for so long without going on, it is killed, and that is how it ended: nobody waits for ever for one that
  // never comes back. 0: it may be stopped.
  std::chrono::milliseconds stop_patience{0};
};

class ChildProcess {
 public:
  static constexpr int kChannelNumber = 3;
  static constexpr int kFirstInherited = 5;
  static constexpr int kMaxInherited = 8;
  // The stop_patience of one that others wait for.
  static constexpr std::chrono::milliseconds kStopPatience{3'000};

  // Error: the program cannot be started. `--fd 3` is put behind the arguments.
  explicit ChildProcess(ChildOptions options);
  ~ChildProcess();  // end(0)
  ChildProcess(const ChildProcess&) = delete;

  // The parent's end, for whoever will own it.
  FileDescriptor take_socket() { return std::move(socket_); }
  int pid() const { return pid_; }
  const std::string& name() const { return options_.name; }

  // Waits until it has ended, at most that long. None: it still runs.
  std::optional<ChildExit> wait(std::chrono::milliseconds timeout) const;
  // Waits `patience` for it to end by itself, then SIGTERM, and `grace` later SIGKILL. Whoever calls this has told
  // it before to end, if only by closing the socket.
  ChildExit end(std::chrono::milliseconds patience,
                std::chrono::milliseconds grace = std::chrono::seconds(2));

  // SIGKILL, now; does not wait for the end.
  void kill() const;

  // "the engine's process (pid 4711) was ended by SIGKILL ...", for a parent that has lost the connection: waits a
  // moment for the end, since the socket closes before the process is gone.
  std::string what_happened() const;

 private:
  // On the watching thread: starts the child, then waits for its end. `child_socket` is closed in between.
  void run(FileDescriptor child_socket);
  // Returns when the child can be reaped. True: it was stopped for stop_patience, and so was killed.
  bool outlast(int pid) const;
  void signal(int number) const;

  const ChildOptions options_;
  FileDescriptor socket_;
  int pid_ = -1;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool started_ = false;           // or failed to start:
  int start_error_ = 0;            // errno
  std::optional<ChildExit> exit_;  // set: the pid is not ours any more
  std::thread watcher_;
};

}  // namespace ladder
