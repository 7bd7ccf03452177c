// Who runs which job, and which are not run any more.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <semaphore>
#include <thread>
#include <vector>

#include "step8_advanced/disaggregation/connector/loader_threads.h"

namespace ladder {
namespace {

TEST(KvLoaderThreads, RunJobsInTheirOrder) {
  std::vector<int> ran;
  std::latch begin(1), done(1);
  KvLoaderThreads threads(1);
  threads.add([&](int) { begin.wait(); });
  threads.add([&](int thread) { ran.push_back(10 + thread); }, 3);
  threads.add([&](int thread) { ran.push_back(20 + thread); });
  threads.add([&](int) { done.count_down(); });
  begin.count_down();
  done.wait();
  EXPECT_EQ(ran, (std::vector<int>{10, 10, 10, 20}));
}

TEST(KvLoaderThreads, RunOneJobAtOnceAsOftenAsItSays) {
  std::atomic<int> num_ran = 0;
  std::latch all(3), done(1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  {
    KvLoaderThreads threads(3);
    threads.add(
        [&](int) {
          all.count_down();
          while (!all.try_wait() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
          ++num_ran;
        },
        3);
    threads.add([&](int) { done.count_down(); });
    done.wait();
    EXPECT_TRUE(all.try_wait()) << "fewer than three at once";
  }
  EXPECT_EQ(num_ran, 3);
}

TEST(KvLoaderThreads, DoNotRunWhatIsToBeRunNoTimes) {
  std::atomic<int> num_ran = 0;
  std::counting_semaphore done(0);
  KvLoaderThreads threads(1);
  threads.add(
      [&](int) {
        ++num_ran;
        done.release();
      },
      0);
  threads.add([&](int) { done.release(); });
  done.acquire();
  EXPECT_EQ(num_ran, 0);
}

TEST(KvLoaderThreads, DropWhatHasNotBegun) {
  int num_ran = 0;
  std::latch has_begun(1), go_on(1), done(1);
  KvLoaderThreads threads(1);
  threads.add([&](int) {
    has_begun.count_down();
    go_on.wait();
    ++num_ran;
  });
  threads.add([&](int) { num_ran += 100; }, 5);
  has_begun.wait();
  threads.drop();
  threads.add([&](int) { done.count_down(); });
  go_on.count_down();
  done.wait();
  EXPECT_EQ(num_ran, 1);
}

// How many have run (others count 100), where the one that has begun goes on while the threads are ended, or just before.
int num_ran_at_the_end() {
  std::atomic<int> num_ran = 0;
  std::latch has_begun(1), go_on(1);
  std::thread later;
  {
    KvLoaderThreads threads(1);
    threads.add([&](int) {
      has_begun.count_down();
      go_on.wait();
      ++num_ran;
    });
    threads.add([&](int) { num_ran += 100; }, 5);
    has_begun.wait();
    later = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      go_on.count_down();
    });
  }
  const int result = num_ran;
  later.join();
  return result;
}

TEST(KvLoaderThreads, EndWhenWhatHasBegunEnds) {
  // Where it goes on before they are ended, which a busy machine may do, others begin.
  int num_ran = num_ran_at_the_end();
  for (int again = 1; again < 20 && num_ran != 1; ++again) num_ran = num_ran_at_the_end();
  EXPECT_EQ(num_ran, 1);
}

}  // namespace
}  // namespace ladder
