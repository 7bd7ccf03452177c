#pragma once
// A few threads that run jobs in the order in which they were given: what an engine loads, it does not wait for itself.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ladder {

class KvLoaderThreads {
 public:
  // It throws nothing. `thread`: which of them runs it, 0 .. count - 1, for what each of them has for itself.
  using Job = std::function<void(int thread)>;

  explicit KvLoaderThreads(int count);
  ~KvLoaderThreads();  // jobs that have begun are waited for, others never begin

  // By any thread. `num_times` > 1: it is run so often, by as many threads at once as are free, before the next one begins. 0: never.
  void add(Job job, int64_t num_times = 1);
  void drop();  // the jobs that have not begun

 private:
  struct Waiting {
    std::shared_ptr<const Job> job;  // shared, as a copy would need memory, which a thread must do without
    int64_t num_times = 0;
  };

  void work(int thread);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Waiting> waiting_;
  std::vector<std::thread> threads_;
};

}  // namespace ladder
