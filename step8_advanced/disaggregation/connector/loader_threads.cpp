#include "step8_advanced/disaggregation/connector/loader_threads.h"

#include <utility>

namespace ladder {

KvLoaderThreads::KvLoaderThreads(int count) {
  for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { work(i); });
}

KvLoaderThreads::~KvLoaderThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void KvLoaderThreads::add(Job job, int64_t num_times) {
  if (num_times <= 0) return;
  auto shared = std::make_shared<const Job>(std::move(job));
  const std::lock_guard lock(mutex_);
  waiting_.push_back({std::move(shared), num_times});
  if (num_times == 1)
    changed_.notify_one();
  else
    changed_.notify_all();
}

void KvLoaderThreads::drop() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
}

void KvLoaderThreads::work(int thread) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::shared_ptr<const Job> job = waiting_.front().job;
    if (--waiting_.front().num_times == 0) waiting_.pop_front();
    lock.unlock();
    (*job)(thread);
    job = nullptr;  // what it holds may be the last of its kind, and goes without the lock
    lock.lock();
  }
}

}  // namespace ladder
