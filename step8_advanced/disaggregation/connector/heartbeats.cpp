#include "step8_advanced/disaggregation/connector/heartbeats.h"

#include <algorithm>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/connector/messages.h"

namespace ladder {

namespace {

constexpr int kBeatsPerLease = 6;
constexpr ptrdiff_t kIdsPerMessage = 128;     // of kMaxKvRequestId each, and its head has room
constexpr std::chrono::seconds kPatience{1};  // with one producer, while others wait for theirs

}  // namespace

KvHeartbeats::KvHeartbeats(KvConnections& connections) : connections_(connections) {
  thread_ = std::thread([this] { run(); });
}

KvHeartbeats::~KvHeartbeats() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KvHeartbeats::add(const std::string& address, const std::string& remote_request_id) {
  const std::lock_guard lock(mutex_);
  Producer& producer = producers_[address];
  producer.wanted.insert(remote_request_id);
  producer.next = Clock::now();  // how long the lease lasts is not known yet
  changed_.notify_all();
}

void KvHeartbeats::remove(const std::string& address, const std::string& remote_request_id) {
  const std::lock_guard lock(mutex_);
  const auto producer = producers_.find(address);
  if (producer == producers_.end()) return;
  producer->second.wanted.erase(remote_request_id);
  if (producer->second.wanted.empty()) producers_.erase(producer);
}

void KvHeartbeats::clear() {
  const std::lock_guard lock(mutex_);
  producers_.clear();
}

void KvHeartbeats::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto next =
        std::min_element(producers_.begin(), producers_.end(),
                         [](const auto& a, const auto& b) { return a.second.next < b.second.next; });
    if (next == producers_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (next->second.next > Clock::now()) {
      const Clock::time_point then = next->second.next;
      changed_.wait_until(lock, then);
      continue;
    }
    const std::string address = next->first;
    const std::vector<std::string> wanted(next->second.wanted.begin(), next->second.wanted.end());
    next->second.next = Clock::now() + kPatience;  // where it cannot be told
    lock.unlock();
    std::chrono::milliseconds lease{0};
    try {
      // One that is gone, or has not begun, does not hold up the others: it is tried again.
      KvConnection connection = connections_.take(address, Clock::now() + kPatience, KvListening::has_begun);
      for (auto first = wanted.begin(); first != wanted.end();) {
        const auto last = first + std::min(kIdsPerMessage, wanted.end() - first);
        send_kv_message(*connection.channel, KvHeartbeat{{first, last}}, Clock::now() + kPatience);
        first = last;
      }
      lease = connection.lease;
      connections_.give_back(std::move(connection));
    } catch (const Error&) {  // its load will say so
      connections_.forget(address);
    }
    lock.lock();
    const auto told = producers_.find(address);
    if (told != producers_.end() && lease.count() > 0)
      told->second.next = Clock::now() + lease / kBeatsPerLease;
  }
}

}  // namespace ladder
