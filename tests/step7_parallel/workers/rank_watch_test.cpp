#include "step7_parallel/workers/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

namespace ladder {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Ended {
  int status = 0;
  std::string said;  // on standard error, by it and by who watches it: until both are gone
};

// A process of its own, which is watched: `rank` in it.
Ended run_watched(const std::function<void()>& rank, std::chrono::milliseconds patience = 150ms) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const int pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]), close(ends[1]);
    {
      const RankWatch watch("rank 1 of 2", patience);
      rank();
    }
    _exit(0);
  }
  close(ends[1]);
  Ended ended;
  char bytes[512];
  pollfd news{.fd = ends[0], .events = POLLIN, .revents = 0};
  for (ssize_t count = 1; count > 0; ended.said.append(bytes, static_cast<size_t>(count))) {
    if (poll(&news, 1, 60'000) == 0) {
      ADD_FAILURE() << "neither the rank nor who watches it ends";
      kill(pid, SIGKILL);
      break;
    }
    count = std::max<ssize_t>(read(ends[0], bytes, sizeof bytes), 0);
  }
  close(ends[0]);
  waitpid(pid, &ended.status, 0);
  return ended;
}

TEST(RankWatch, OneThatIsStoppedIsNamedAndKilled) {
  const Ended ended = run_watched([] { std::raise(SIGSTOP); });
  ASSERT_TRUE(WIFSIGNALED(ended.status));
  EXPECT_EQ(WTERMSIG(ended.status), SIGKILL);
  EXPECT_THAT(ended.said, HasSubstr("ladder: error: rank 1 of 2 (pid "));
  EXPECT_THAT(ended.said, HasSubstr("was stopped (SIGSTOP) and has not gone on for 0.15 s\n"));
}

// What lasts long, or stands still for a moment again and again, is not stopped.
TEST(RankWatch, OneThatGoesOnIsLeftAlone) {
  const Ended ended = run_watched(
      [] {
        const int rank = getpid();
        const int friend_of_it = fork();
        if (friend_of_it == 0) {
          for (int i = 0; i < 4; ++i) {
            kill(rank, SIGSTOP);
            std::this_thread::sleep_for(40ms);
            kill(rank, SIGCONT);
            std::this_thread::sleep_for(60ms);
          }
          _exit(0);
        }
        waitpid(friend_of_it, nullptr, 0);
      },
      5s);
  EXPECT_TRUE(WIFEXITED(ended.status)) << ended.status;
  EXPECT_EQ(ended.said, "");
}

// Else the read of its standard error would not end.
TEST(RankWatch, EndsWithItsRankHoweverThatEnds) {
  const Ended ended = run_watched([] { std::raise(SIGKILL); });
  EXPECT_TRUE(WIFSIGNALED(ended.status));
  EXPECT_EQ(ended.said, "");
}

}  // namespace
}  // namespace ladder
