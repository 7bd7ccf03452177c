#include "step8_advanced/disaggregation/connector/kv_leases.h"

#include <algorithm>
#include <span>
#include <utility>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"

namespace ladder {

uint32_t prompt_checksum(const std::vector<int32_t>& tokens, int64_t count) {
  return kv_checksum(std::as_bytes(std::span(tokens).first(static_cast<size_t>(count))));
}

void KvLeases::computed(const Sequence& sequence, const std::string& remote_request_id, int64_t num_tokens) {
  std::unique_lock lock(mutex_);
  auto known = by_sequence_.find(sequence.id);
  if (known == by_sequence_.end()) {
    if (closed_ || !by_id_.emplace(remote_request_id, next_lease_).second) return;
    known = by_sequence_.emplace(sequence.id, next_lease_).first;
    Entry& entry = entries_[next_lease_++];
    entry.id = remote_request_id;
    entry.sequence = sequence.id;
    entry.prompt = sequence.prompt_token_ids;
  }
  Entry& entry = entries_.at(known->second);
  const int64_t num_before = entry.num_tokens;
  entry.num_tokens = std::min(num_tokens, sequence.num_prompt_tokens);
  if (entry.num_tokens < num_before) changed_.wait(lock, [&] { return entry.num_pins == 0; });
  entry.block_table = sequence.block_table;
  changed_.notify_all();
}

std::optional<KvLeases::Held> KvLeases::end(SequenceId sequence) {
  std::unique_lock lock(mutex_);
  const auto known = by_sequence_.find(sequence);
  if (known == by_sequence_.end()) return std::nullopt;
  const auto entry = entries_.find(known->second);
  if (entry->second.over) {
    retract(entry, lock);
    return std::nullopt;
  }
  entry->second.ended = true;
  entry->second.lease_end = Clock::now() + length_;
  Held held{entry->second.id, entry->second.num_tokens};
  changed_.notify_all();  // the sweeper too
  return held;
}

void KvLeases::retract(SequenceId sequence) {
  std::unique_lock lock(mutex_);
  const auto known = by_sequence_.find(sequence);
  if (known != by_sequence_.end()) retract(entries_.find(known->second), lock);
}

void KvLeases::retract_all() {
  std::unique_lock lock(mutex_);
  while (!entries_.empty()) retract(entries_.begin(), lock);
  released_.clear();
}

void KvLeases::retract(Entries::iterator entry, std::unique_lock<std::mutex>& lock) {
  const uint64_t lease = entry->first;
  entry->second.over = true;    // no further pin
  entry->second.ended = false;  // and nothing to be released
  changed_.wait(lock, [&] { return entries_.at(lease).num_pins == 0; });
  forget(entries_.find(lease));
  changed_.notify_all();
}

std::vector<SequenceId> KvLeases::take_released() {
  const std::lock_guard lock(mutex_);
  return std::exchange(released_, {});
}

void KvLeases::on_release(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

KvLeases::Ready KvLeases::wait_ready(const std::string& id, uint64_t lease, int64_t num_tokens,
                                     uint32_t prompt_checksum, int64_t num_checked,
                                     Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto arrived = [&] { return closed_ || lease != 0 || by_id_.contains(id); };
  changed_.wait_until(lock, deadline, arrived);
  LADDER_CHECK(arrived() && !closed_,
               "request '{}' is not here: its lease is over, or it has not come in time", id);
  if (lease == 0) {
    const auto entry = find(id);
    const std::vector<int32_t>& prompt = *entry->second.prompt;
    LADDER_CHECK(
        num_checked <= std::ssize(prompt) && ladder::prompt_checksum(prompt, num_checked) == prompt_checksum,
        "request '{}' has another prompt here", id);
    lease = entry->first;
  }
  wait_computed(lease, num_tokens + 1, deadline, lock);
  return {lease, entries_.at(lease).num_tokens};
}

void KvLeases::wait_computed(uint64_t lease, int64_t num_tokens, Clock::time_point deadline,
                             std::unique_lock<std::mutex>& lock) {
  const auto alive = [&]() -> const Entry* {
    const auto entry = entries_.find(lease);
    return closed_ || entry == entries_.end() || entry->second.over ? nullptr : &entry->second;
  };
  changed_.wait_until(lock, deadline,
                      [&] { return alive() == nullptr || alive()->num_tokens >= num_tokens; });
  const Entry* const entry = alive();
  LADDER_CHECK(entry != nullptr, "the request is over: it was aborted, or its lease ended");
  LADDER_CHECK(entry->num_tokens >= num_tokens, "request '{}' has computed {} tokens in time, expected {}",
               entry->id, entry->num_tokens, num_tokens);
}

KvLeases::Pin KvLeases::pin(uint64_t lease, int64_t num_tokens, Clock::time_point deadline,
                            std::vector<int32_t>& block_table) {
  std::unique_lock lock(mutex_);
  wait_computed(lease, num_tokens, deadline, lock);
  Entry& entry = entries_.at(lease);
  ++entry.num_pins;
  block_table = entry.block_table;
  return Pin(this, lease);
}

KvLeases::Pin::~Pin() {
  if (leases_ != nullptr) leases_->unpin(lease_);
}

void KvLeases::unpin(uint64_t lease) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(lease);
  if (--entry->second.num_pins > 0) return;
  if (entry->second.over && entry->second.ended) release(entry);
  changed_.notify_all();  // whoever retracts it, or takes its blocks away
}

bool KvLeases::done(const std::string& id, uint64_t lease) {
  const std::lock_guard lock(mutex_);
  const auto entry = find(id);
  if (entry == entries_.end() || entry->second.over || (lease != 0 && entry->first != lease)) return false;
  give_up(entry);
  return true;
}

void KvLeases::extend(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = find(id);
  if (entry == entries_.end()) return;
  entry->second.lease_end = std::max(entry->second.lease_end, Clock::now() + length_ * 2 / 3);
}

void KvLeases::sweep_until_closed() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (std::exchange(wake_is_due_, false) && wake_) {
      const std::function<void()> wake = wake_;
      lock.unlock();  // it may want a lock that is held while this object is called
      wake();
      lock.lock();
      continue;
    }
    const Clock::time_point now = Clock::now();
    auto next = Clock::time_point::max();
    std::vector<uint64_t> lapsed;  // all are looked at: heartbeats have put them out of order
    for (const auto& [lease, entry] : entries_) {
      if (!entry.ended || entry.over) continue;
      if (entry.lease_end <= now) {
        lapsed.push_back(lease);
      } else {
        next = std::min(next, entry.lease_end);
      }
    }
    num_lapsed_ += std::ssize(lapsed);
    for (const uint64_t lease : lapsed) give_up(entries_.find(lease));
    if (!lapsed.empty()) continue;
    if (next == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, next);
    }
  }
}

void KvLeases::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

int64_t KvLeases::num_held_blocks() const {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const auto& [lease, entry] : entries_)
    if (entry.ended) count += std::ssize(entry.block_table);
  return count;
}

int64_t KvLeases::num_kept_blocks() const {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const auto& [lease, entry] : entries_) {
    const int64_t of_prompt = (std::ssize(*entry.prompt) + block_size_ - 1) / block_size_;
    count += std::max(of_prompt, std::ssize(entry.block_table));
  }
  return count;
}

int64_t KvLeases::num_lapsed() const {
  const std::lock_guard lock(mutex_);
  return num_lapsed_;
}

KvLeases::Entries::iterator KvLeases::find(const std::string& id) {
  const auto lease = by_id_.find(id);
  return lease == by_id_.end() ? entries_.end() : entries_.find(lease->second);
}

void KvLeases::give_up(Entries::iterator entry) {
  entry->second.over = true;
  if (entry->second.num_pins == 0 && entry->second.ended) release(entry);
  changed_.notify_all();
}

void KvLeases::release(Entries::iterator entry) {
  released_.push_back(entry->second.sequence);
  forget(entry);
  wake_is_due_ = true;
}

void KvLeases::forget(Entries::iterator entry) {
  by_id_.erase(entry->second.id);
  by_sequence_.erase(entry->second.sequence);
  entries_.erase(entry);
}

}  // namespace ladder
