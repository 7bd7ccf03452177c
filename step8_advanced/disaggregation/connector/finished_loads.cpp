#include "step8_advanced/disaggregation/connector/finished_loads.h"

#include <utility>

namespace ladder {

using std::chrono::steady_clock;

void KvFinishedLoads::add(FinishedKvLoad finished, int64_t num_wanted, bool cancelled,
                          steady_clock::time_point begin) {
  const std::lock_guard lock(mutex_);
  ++stats_.num_loads;
  stats_.num_loaded_tokens += finished.num_tokens;
  stats_.load_seconds += std::chrono::duration<double>(steady_clock::now() - begin).count();
  if (!cancelled && finished.num_tokens < num_wanted) {
    ++stats_.num_failed_loads;
    stats_.num_missed_tokens += num_wanted - finished.num_tokens;
  }
  finished_.push_back(std::move(finished));
}

void KvFinishedLoads::count_bytes(int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  stats_.num_loaded_bytes += num_bytes;
}

std::vector<FinishedKvLoad> KvFinishedLoads::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

void KvFinishedLoads::on_finished(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void KvFinishedLoads::wake() const {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

void KvFinishedLoads::add_to(KvTransferStats& stats) const {
  const std::lock_guard lock(mutex_);
  stats.num_loads += stats_.num_loads;
  stats.num_failed_loads += stats_.num_failed_loads;
  stats.num_loaded_tokens += stats_.num_loaded_tokens;
  stats.num_missed_tokens += stats_.num_missed_tokens;
  stats.num_loaded_bytes += stats_.num_loaded_bytes;
  stats.load_seconds += stats_.load_seconds;
}

}  // namespace ladder
