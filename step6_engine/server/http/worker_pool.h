#pragma once
// A few threads for what takes long: parsing a large body, rendering a template, tokenising.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ladder {

class WorkerPool {
 public:
  using Job = std::function<void()>;  // must not throw

  // Error: fewer than one thread.
  WorkerPool(int num_threads, int64_t max_queued);
  ~WorkerPool();  // stop()

  // False, and the job will not run: as many wait as may, or the pool was stopped.
  bool post(Job job);
  // Drops the jobs that wait, and returns when no job runs. Not from a job.
  void stop();

 private:
  void run();

  const int64_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ladder
