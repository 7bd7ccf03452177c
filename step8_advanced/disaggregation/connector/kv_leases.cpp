#include "step8_advanced/disaggregation/connector/kv_leases.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"

namespace ladder {

uint32_t prompt_checksum(const std::vector<int32_t>& tokens, int64_t count) {
  return kv_checksum(std::as_bytes(std::span(tokens).first(static_cast<size_t>(count))));
}

KvLeases::Entry* KvLeases::entry_of(SequenceId sequence, const std::string& id,
                                    const std::shared_ptr<const std::vector<int32_t>>& prompt) {
  const auto known = by_sequence_.find(sequence);
  if (known != by_sequence_.end()) return &entries_.at(known->second);
  if (unread_.contains(sequence)) return nullptr;
  if (is_given_up(id)) {
    given_up_.erase(id);  // the next one of this id is another request
    unread_.insert(sequence);
    return nullptr;
  }
  if (closed_ || !by_id_.emplace(id, next_lease_).second) return nullptr;
  by_sequence_.emplace(sequence, next_lease_);
  Entry& entry = entries_[next_lease_++];
  entry.id = id;
  entry.sequence = sequence;
  entry.prompt = prompt;
  return &entry;
}

void KvLeases::computed(const Sequence& sequence, const std::string& remote_request_id, int64_t num_tokens) {
  std::unique_lock lock(mutex_);
  Entry* const entry = entry_of(sequence.id, remote_request_id, sequence.prompt_token_ids);
  if (entry == nullptr) {
    if (num_tokens > 0) last_computed_ = Clock::now();  // not kept, but it goes on
    return;
  }
  const int64_t num_before =
      std::exchange(entry->num_tokens, std::min(num_tokens, sequence.num_prompt_tokens));
  if (entry->num_tokens > num_before) last_computed_ = Clock::now();
  if (entry->num_tokens < num_before || num_tokens == 0) {
    // A step that is still running may store for it, into blocks that are soon another's.
    entry->stored.clear();
    entry->step_table.clear();
    changed_.wait(lock, [&] { return entry->num_pins == 0; });
  }
  entry->block_table = sequence.block_table;
  changed_.notify_all();
}

void KvLeases::expect(const Sequence& sequence, const std::string& remote_request_id) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  Expected& expected =
      expected_.try_emplace(sequence.id, Expected{remote_request_id, sequence.prompt_token_ids, now, now})
          .first->second;
  expected.last_asked = now;
  if (now - expected.first_asked >= start_patience_) changed_.notify_all();
}

bool KvLeases::stands_still(Clock::time_point since) const {
  const bool is_kept =
      std::ranges::any_of(entries_, [](const auto& one) { return one.second.ended && !one.second.over; });
  return is_kept && std::ranges::any_of(expected_, [&](const auto& one) {
           const Expected& expected = one.second;
           return expected.last_asked - std::max({since, expected.first_asked, last_computed_}) >=
                  start_patience_;
         });
}

void KvLeases::begin_step(const SchedulerOutput& step) {
  const std::lock_guard lock(mutex_);
  for (const NewSequence& added : step.new_sequences) {
    const auto expected = expected_.find(added.id);
    if (expected == expected_.end()) continue;
    Entry* const entry = entry_of(added.id, expected->second.id, expected->second.prompt);
    if (entry == nullptr) continue;
    entry->step_table = entry->block_table = added.block_table;
    entry->first_token = added.num_computed_tokens;
    changed_.notify_all();
  }
  for (const ContinuedSequence& continued : step.continued) {
    const auto known = continued.new_block_ids.empty() ? by_sequence_.end() : by_sequence_.find(continued.id);
    if (known == by_sequence_.end()) continue;
    Entry& entry = entries_.at(known->second);
    std::vector<int32_t>& table = entry.step_table;
    if (table.empty()) continue;  // it was not expected
    table.insert(table.end(), continued.new_block_ids.begin(), continued.new_block_ids.end());
    if (table.size() > entry.block_table.size()) entry.block_table = table;
  }
}

void KvLeases::save_layer(int rank, int64_t layer, std::span<const int64_t> slots) {
  const std::lock_guard lock(mutex_);
  bool is_more = false;
  for (auto& [lease, entry] : entries_) {
    // A sequence's rows of a step lie side by side, in the order of their tokens.
    const int64_t end = std::min(std::ssize(*entry.prompt), std::ssize(entry.step_table) * block_size_);
    const auto slot_of = [&, &table = entry.step_table](int64_t token) {
      return table[static_cast<size_t>(token / block_size_)] * block_size_ + token % block_size_;
    };
    const int64_t first = std::max(entry.num_tokens_in(rank, layer), entry.first_token);
    if (first >= end) continue;
    int64_t token = first;
    for (auto slot = std::find(slots.begin(), slots.end(), slot_of(token));
         slot != slots.end() && token < end && *slot == slot_of(token); ++slot)
      ++token;
    if (token == first) continue;
    entry.stored[{rank, layer}] = token;
    is_more = true;
  }
  if (is_more) changed_.notify_all();
}

int64_t KvLeases::Entry::num_tokens_in(int rank, int64_t layer) const {
  const auto found = stored.find({rank, layer});
  return found == stored.end() ? num_tokens : std::max(num_tokens, found->second);
}

std::optional<KvLeases::Held> KvLeases::end(SequenceId sequence) {
  std::unique_lock lock(mutex_);
  expected_.erase(sequence);
  unread_.erase(sequence);
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
  expected_.erase(sequence);
  unread_.erase(sequence);
  const auto known = by_sequence_.find(sequence);
  if (known != by_sequence_.end()) retract(entries_.find(known->second), lock);
}

void KvLeases::retract_all() {
  std::unique_lock lock(mutex_);
  expected_.clear();
  given_up_.clear();
  unread_.clear();
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
                                     Clock::time_point deadline, const KvLayers& layers) {
  std::unique_lock lock(mutex_);
  const Clock::time_point came = Clock::now();
  const auto here = [&] { return lease != 0 || by_id_.contains(id); };
  const auto is_over = [&] { return closed_ || here() || is_given_up(id) || stands_still(came); };
  const std::chrono::milliseconds between = std::max(start_patience_, std::chrono::milliseconds(1));
  for (Clock::time_point ask = came + between;
       !changed_.wait_until(lock, std::min(ask, deadline), is_over) && ask < deadline; ask += between) {
    wake_is_due_ = true;  // an engine at rest asks for blocks again when it is woken
    changed_.notify_all();
  }
  LADDER_CHECK(closed_ || here() || !stands_still(came),
               "request '{}' cannot begin: blocks are kept for readers that do not come", id);
  LADDER_CHECK(here() && !closed_, "request '{}' is not here: its lease is over, or it has not come in time",
               id);
  if (lease == 0) {
    const auto entry = find(id);
    const std::vector<int32_t>& prompt = *entry->second.prompt;
    LADDER_CHECK(
        num_checked <= std::ssize(prompt) && ladder::prompt_checksum(prompt, num_checked) == prompt_checksum,
        "request '{}' has another prompt here", id);
    lease = entry->first;
  }
  const Entry& entry = wait_computed(lease, num_tokens + 1, layers, deadline, lock);
  const bool in_all_layers = entry.num_tokens > num_tokens;
  return {lease, in_all_layers ? entry.num_tokens : entry.num_tokens_in(layers.rank, layers.first),
          in_all_layers};
}

KvLeases::Entry& KvLeases::wait_computed(uint64_t lease, int64_t num_tokens, const KvLayers& layers,
                                         Clock::time_point deadline, std::unique_lock<std::mutex>& lock) {
  const auto alive = [&]() -> Entry* {
    const auto entry = entries_.find(lease);
    return closed_ || entry == entries_.end() || entry->second.over ? nullptr : &entry->second;
  };
  const auto has_tokens = [&](const Entry& entry) {
    return entry.num_tokens_in(layers.rank, layers.first) >= num_tokens;
  };
  changed_.wait_until(lock, deadline, [&] { return alive() == nullptr || has_tokens(*alive()); });
  Entry* const entry = alive();
  LADDER_CHECK(entry != nullptr, "the request is over: it was aborted, or its lease ended");
  LADDER_CHECK(has_tokens(*entry), "request '{}' has computed {} tokens in time, expected {}", entry->id,
               entry->num_tokens, num_tokens);
  return *entry;
}

KvLeases::Pin KvLeases::pin(uint64_t lease, int64_t num_tokens, Clock::time_point deadline,
                            std::vector<int32_t>& block_table, KvLayers& layers) {
  std::unique_lock lock(mutex_);
  Entry& entry = wait_computed(lease, num_tokens, layers, deadline, lock);
  int64_t count = 1;
  while (count < layers.count && entry.num_tokens_in(layers.rank, layers.first + count) >= num_tokens)
    ++count;
  layers.count = count;
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
  if (entry == entries_.end() && lease == 0) give_up_before_it_comes(id);
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

void KvLeases::give_up_before_it_comes(const std::string& id) {
  const Clock::time_point now = Clock::now();
  std::erase_if(given_up_, [&](const auto& one) { return one.second <= now; });
  if (given_up_.size() < kMostGivenUp) given_up_[id] = now + length_;
  changed_.notify_all();
}

bool KvLeases::is_given_up(const std::string& id) const {
  const auto found = given_up_.find(id);
  return found != given_up_.end() && found->second > Clock::now();
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
