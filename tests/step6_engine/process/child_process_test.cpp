#include "step6_engine/process/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <csignal>
#include <thread>
#include <vector>

#include "step1_layers/core/error.h"
#include "tests/step6_engine/process/killed_parent.h"
#include "tests/step6_engine/process/open_files.h"
#include "tests/support/in_time.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using testing::num_open_files;
using testing::process_state;

// `script` talks to its parent through descriptor 3.
ChildOptions shell(const std::string& script) {
  return {"the child", {"-c", script}, "/bin/sh"};
}

// Until the connection ends; fails the test after ten seconds.
std::string read_all(const FileDescriptor& socket) {
  std::string text;
  char piece[256];
  pollfd polled{socket.number(), POLLIN, 0};
  while (::poll(&polled, 1, 10'000) > 0) {
    const ssize_t count = ::read(socket.number(), piece, sizeof piece);
    if (count <= 0) return text;
    text.append(piece, static_cast<size_t>(count));
  }
  ADD_FAILURE() << "the connection has not ended; so far \"" << text << '"';
  return text;
}
std::string read_some(const FileDescriptor& socket) {
  char piece[256];
  pollfd polled{socket.number(), POLLIN, 0};
  if (::poll(&polled, 1, 10'000) <= 0) return "nothing came";
  const ssize_t count = ::read(socket.number(), piece, sizeof piece);
  return std::string(piece, static_cast<size_t>(std::max<ssize_t>(count, 0)));
}

TEST(ChildProcess, TheSocketGoesBothWaysAndEndsWithTheChild) {
  const int before = num_open_files();
  {
    ChildProcess child(shell("read line <&3; echo \"got $line, $0 $1\" >&3; exit 3"));
    const FileDescriptor socket = child.take_socket();
    ASSERT_EQ(::write(socket.number(), "hello\n", 6), 6);
    EXPECT_EQ(read_all(socket), "got hello, --fd 3\n");
    const auto ended = child.wait(10s);
    ASSERT_TRUE(ended.has_value());
    EXPECT_EQ(ended->code, 3);
    EXPECT_EQ(child.what_happened(),
              "the child (pid " + std::to_string(child.pid()) + ") ended with exit code 3");
    EXPECT_EQ(process_state(child.pid()), 0) << "a zombie";
  }
  EXPECT_EQ(num_open_files(), before);
}

TEST(ChildProcess, ASignalIsSaidInWords) {
  ChildProcess child(shell("kill -9 $$"));
  EXPECT_EQ(child.wait(10s)->in_words(), "was ended by SIGKILL (as a system does that runs out of memory)");
  ChildProcess aborted(shell("kill -ABRT $$"));
  EXPECT_EQ(aborted.wait(10s)->in_words(), "was ended by SIGABRT");
}

// The socket closes before the process is gone; so its end is waited for, and for no longer than a moment.
TEST(ChildProcess, WhatHappenedWaitsAMomentForTheEnd) {
  std::string words, expected = "-";
  for (int i = 0; i < 3 && words != expected; ++i) {  // where the processors are busy its end may take longer
    ChildProcess ending(shell("exec 3>&-; sleep 0.1; exit 4"));
    EXPECT_EQ(read_all(ending.take_socket()), "");
    words = ending.what_happened();
    expected = "the child (pid " + std::to_string(ending.pid()) + ") ended with exit code 4";
  }
  EXPECT_EQ(words, expected);
  testing::expect_within(1s, [] {
    ChildProcess running(shell("exec 3>&-; exec sleep 60"));
    EXPECT_EQ(read_all(running.take_socket()), "");
    const auto begin = std::chrono::steady_clock::now();
    const std::string still = running.what_happened();
    const auto end = std::chrono::steady_clock::now();
    EXPECT_EQ(still, "the child (pid " + std::to_string(running.pid()) +
                         ") has closed its connection, and still runs");
    EXPECT_GE(end - begin, 400ms);
    return end - begin;
  });
}

TEST(ChildProcess, WhatCannotBeStartedIsAnError) {
  const int before = num_open_files();
  try {
    ChildProcess child({"the child", {}, "/no/such/program"});
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the child: /no/such/program cannot be started: No such file or directory");
  }
  EXPECT_EQ(num_open_files(), before);
}

// Also of what was opened without O_CLOEXEC, as libraries do.
TEST(ChildProcess, NothingElseIsInherited) {
  const FileDescriptor careless(::fcntl(STDERR_FILENO, F_DUPFD, 50));
  ChildProcess child(shell("cd /proc/self/fd; echo * >&3"));
  // 0, 1, 2, the socket, and at most one that the shell itself has open for the folder.
  const std::string files = read_all(child.take_socket());
  EXPECT_EQ(files.substr(0, 7), "0 1 2 3");
  EXPECT_LE(files.size(), std::string("0 1 2 3 10\n").size()) << files;
  EXPECT_EQ(files.find(" " + std::to_string(careless.number()) + " "), std::string::npos) << files;
}

// While others start and end too, any number may be free, also the child's 3 and 4: then what is opened for the child's
// input lies where another descriptor is to be.
TEST(ChildProcess, ManyAreStartedAtOnce) {
  std::vector<std::thread> starters;
  for (int thread = 0; thread < 4; ++thread)
    starters.emplace_back([] {
      for (int i = 0; i < 50; ++i) {
        ChildProcess child(shell("readlink /proc/self/fd/0 >&3"));
        EXPECT_EQ(read_all(child.take_socket()), "/dev/null\n");
      }
    });
  for (std::thread& starter : starters) starter.join();
}

TEST(ChildProcess, BlockedAndIgnoredSignalsAreNotInherited) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  const auto handler = std::signal(SIGTERM, SIG_IGN);
  {
    ChildProcess child(shell("echo ready >&3; exec sleep 60"));
    const FileDescriptor socket = child.take_socket();
    EXPECT_EQ(read_some(socket), "ready\n");
    EXPECT_EQ(child.end(0ms, 10s).signal, SIGTERM);
  }
  std::signal(SIGTERM, handler);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(ChildProcess, EndWaitsThenAsksThenKills) {
  ChildProcess polite(shell("read line <&3; exit 0"));
  polite.take_socket();  // and closes it
  EXPECT_EQ(polite.end(10s).code, 0) << "it was given time to end by itself";

  ChildProcess deaf(shell("trap '' TERM; echo ready >&3; while true; do sleep 0.05; done"));
  const FileDescriptor socket = deaf.take_socket();
  EXPECT_EQ(read_some(socket), "ready\n");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(deaf.end(50ms, 100ms).signal, SIGKILL);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 150ms);
  EXPECT_EQ(deaf.end(0ms).signal, SIGKILL) << "once more is no harm";
}

TEST(ChildProcess, AStoppedChildEndsToo) {
  ChildProcess child(shell("echo ready >&3; kill -STOP $$; sleep 60"));
  const FileDescriptor socket = child.take_socket();
  EXPECT_EQ(read_some(socket), "ready\n");
  EXPECT_FALSE(child.wait(50ms).has_value()) << "stopped is not ended";
  EXPECT_EQ(child.end(0ms, 10s).signal, SIGTERM);
}

TEST(ChildProcess, OneThatStaysStoppedIsGivenUpAndOneThatGoesOnIsNot) {
  ChildOptions options =
      shell("echo ready >&3; kill -STOP $$; echo on >&3; kill -STOP $$; echo on >&3; sleep 60");
  options.stop_patience = 1500ms;
  ChildProcess child(options);
  const FileDescriptor socket = child.take_socket();
  EXPECT_EQ(read_some(socket), "ready\n");
  for (int i = 0; i < 10'000 && process_state(child.pid()) != 'T'; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(child.wait(300ms).has_value());
  ::kill(child.pid(), SIGCONT);
  EXPECT_EQ(read_some(socket), "on\n");
  const auto ended = child.wait(20s);  // of the second stop
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->signal, SIGKILL);
  EXPECT_EQ(ended->in_words(), "was stopped (SIGSTOP) and has not gone on for 1.5 s");
  EXPECT_NE(child.what_happened().find("(pid " + std::to_string(child.pid()) + ") was stopped"),
            std::string::npos);
}

TEST(ChildProcess, TheDestructorLeavesNoProcessAndNoThread) {
  const int files = num_open_files(), threads = testing::num_threads();
  int pid = 0;
  {
    ChildProcess child(shell("exec sleep 60"));
    pid = child.pid();
    EXPECT_NE(process_state(pid), 0);
  }
  EXPECT_EQ(process_state(pid), 0);
  EXPECT_EQ(num_open_files(), files);
  EXPECT_TRUE(testing::threads_end(threads));
}

TEST(ChildProcess, AKilledParentTakesItsChildAlong) {
  testing::expect_within(1s, [] {
    return testing::life_after_parent([](const auto& tell) {
      ChildProcess child(shell("exec sleep 60"));
      tell(child.pid());
    });
  });
}

}  // namespace
}  // namespace ladder
