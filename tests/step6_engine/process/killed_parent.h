#pragma once
// A parent that is killed cannot end anybody: its child must end all the same.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>

#include "tests/step6_engine/process/open_files.h"

namespace ladder::testing {

// Kills a process that runs `parent` as soon as that has told the pid of a child of its own, and returns how long the
// child lives on: at most half a minute.
inline std::chrono::steady_clock::duration life_after_parent(
    const std::function<void(const std::function<void(int child)>& tell)>& parent) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t parent_pid = fork();
  if (parent_pid == 0) {
    parent([&ends](int child) {
      if (write(ends[1], &child, sizeof child) == sizeof child) pause();
    });
    _exit(1);
  }
  close(ends[1]);
  int child = 0;
  EXPECT_EQ(read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child)) << "it has started none";
  close(ends[0]);
  EXPECT_NE(process_state(child), 0);
  kill(parent_pid, SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  const auto lives_for = [begin] { return std::chrono::steady_clock::now() - begin; };
  while (child != 0 && process_state(child) != 0 && process_state(child) != 'Z' &&
         lives_for() < std::chrono::seconds(30))
    usleep(1000);
  const auto life = lives_for();
  waitpid(parent_pid, nullptr, 0);
  return life;
}

}  // namespace ladder::testing
