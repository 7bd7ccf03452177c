#include "step6_engine/server/http/worker_pool.h"

#include "step1_layers/core/error.h"

namespace ladder {

WorkerPool::WorkerPool(int num_threads, int64_t max_queued) : max_queued_(max_queued) {
  LADDER_CHECK(num_threads >= 1, "worker_threads {}: expected at least 1", num_threads);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkerPool::~WorkerPool() {
  stop();
}

bool WorkerPool::post(Job job) {
  std::lock_guard lock(mutex_);
  if (stopping_ || std::ssize(jobs_) >= max_queued_) return false;
  jobs_.push_back(std::move(job));
  wake_.notify_one();
  return true;
}

void WorkerPool::stop() {
  std::deque<Job> dropped;  // their destructors may take locks of others
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(jobs_);
    wake_.notify_all();
  }
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void WorkerPool::run() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace ladder
