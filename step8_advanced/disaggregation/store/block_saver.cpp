#include "step8_advanced/disaggregation/store/block_saver.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace ladder {

KvBlockSaver::KvBlockSaver(const KvStoreConfig& config, KvStoreFolder& folder, const KvRanks& ranks,
                           const KvBlockShape& shape, Sha256Digest space)
    : folder_(folder),
      ranks_(ranks),
      shape_(shape),
      space_(space),
      max_queued_(std::max<int64_t>(1, config.queue_bytes / static_cast<int64_t>(shape.body_size))),
      warn_(config.warn),
      hasher_(config.make_hasher()) {
  packing_ = std::thread([this] { pack_blocks(); });
  writing_ = std::thread([this] { write_blocks(); });
}

KvBlockSaver::~KvBlockSaver() {
  abandon();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  packing_.join();
  writing_.join();
}

void KvBlockSaver::computed(const Sequence& sequence, int64_t num_tokens) {
  const int64_t block_size = ranks_.layout.block_size, num_full = num_tokens / block_size;
  if (num_full == 0) return;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Saved>& saved = saved_[sequence.id];
  if (saved == nullptr) {
    saved = std::make_shared<Saved>();
    saved->id = sequence.id;
    saved->salt = sequence.prefix.salt;
    saved->adapter = sequence.prefix.adapter;
    saved->used = std::chrono::system_clock::now();
  }
  const auto num_known = std::ssize(saved->block_table);
  if (num_full <= num_known) return;
  if (saved->num_left() == 0) order_.push_back(saved);
  saved->block_table.insert(saved->block_table.end(), sequence.block_table.begin() + num_known,
                            sequence.block_table.begin() + num_full);
  std::vector<int32_t> scratch;
  const std::span<const int32_t> tokens =
      sequence.tokens().subspan(num_known * block_size, (num_full - num_known) * block_size, scratch);
  saved->tokens.insert(saved->tokens.end(), tokens.begin(), tokens.end());
  changed_.notify_all();
}

void KvBlockSaver::forget(SequenceId id) {
  std::unique_lock lock(mutex_);
  const auto found = saved_.find(id);
  if (found == saved_.end()) return;
  const std::shared_ptr<Saved> saved = found->second;
  saved_.erase(found);
  saved->forgotten = true;
  changed_.wait(lock, [&] { return !saved->copying; });
}

bool KvBlockSaver::end(SequenceId id) {
  const std::lock_guard lock(mutex_);
  const auto found = saved_.find(id);
  if (found == saved_.end()) return false;
  const std::shared_ptr<Saved> kept = found->second;
  Saved& saved = *kept;
  const int64_t wanted = saved.num_left() - (saved.copying ? 1 : 0);  // which has its place in the queue
  const int64_t promised = std::clamp<int64_t>(room(), 0, wanted);
  stats_.num_unstored_blocks += wanted - promised;
  saved.block_table.resize(saved.block_table.size() - static_cast<size_t>(wanted - promised));
  if (saved.num_left() == 0) {
    saved.forgotten = true;  // the packing thread may be looking whether the store has its next block
    saved_.erase(found);
    return false;
  }
  saved.ended = true;
  num_promised_ += promised;
  changed_.notify_all();
  return true;
}

std::vector<SequenceId> KvBlockSaver::take_released() {
  const std::lock_guard lock(mutex_);
  return std::exchange(released_, {});
}

void KvBlockSaver::abandon() {
  std::unique_lock lock(mutex_);
  std::vector<std::shared_ptr<Saved>> forgotten;
  std::erase_if(saved_, [&](auto& entry) {
    if (entry.second->ended) return false;
    entry.second->forgotten = true;
    forgotten.push_back(entry.second);
    return true;
  });
  changed_.wait(lock, [&] {
    return saved_.empty() && std::ranges::none_of(forgotten, [](const auto& one) { return one->copying; });
  });
  released_.clear();
}

void KvBlockSaver::on_released(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void KvBlockSaver::add_to(KvTransferStats& stats) const {
  const std::lock_guard lock(mutex_);
  stats.num_stored_blocks += stats_.num_stored_blocks;
  stats.num_stored_bytes += stats_.num_stored_bytes;
  stats.num_unstored_blocks += stats_.num_unstored_blocks;
}

void KvBlockSaver::pack_blocks() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Saved> saved;
    changed_.wait(lock, [&] { return (saved = next_to_pack()) != nullptr || stopping_; });
    if (saved == nullptr) return;
    pack_next(*saved, lock);
  }
}

// Ended ones first, whose blocks are wanted, and whose places in the queue are theirs.
std::shared_ptr<KvBlockSaver::Saved> KvBlockSaver::next_to_pack() {
  std::erase_if(order_, [](const auto& saved) { return saved->forgotten || saved->num_left() == 0; });
  const auto ended = std::ranges::find_if(order_, [](const auto& saved) { return saved->ended; });
  if (ended != order_.end()) return *ended;
  return order_.empty() || room() <= 0 ? nullptr : order_.front();
}

void KvBlockSaver::pack_next(Saved& saved, std::unique_lock<std::mutex>& lock) {
  Packed packed;
  const std::optional<bool> is_there = look(saved, packed, lock);
  if (saved.forgotten) return;
  if (!is_there.has_value()) {  // what follows has no names without this one's
    const int64_t num_left = saved.num_left();
    if (saved.ended) num_promised_ -= num_left;
    stats_.num_unstored_blocks += num_left;
    saved.next += num_left;
    saved.forgotten = true;
    saved_.erase(saved.id);
  } else {
    if (!*is_there && !saved.ended && room() <= 0) {  // another one's end has taken the place meanwhile
      saved.names.names.pop_back();
      return;
    }
    if (saved.ended) --num_promised_;
    if (!*is_there) {
      saved.copying = true;
      ++num_queued_;
      if (!pack(saved, packed, lock)) --num_queued_, ++stats_.num_unstored_blocks;
      saved.copying = false;
    }
    ++saved.next;
  }
  const bool is_released = saved.ended && saved.num_left() == 0;
  if (is_released) {
    released_.push_back(saved.id);
    saved_.erase(saved.id);
  }
  const std::function<void()> wake = is_released ? wake_ : nullptr;
  changed_.notify_all();
  lock.unlock();  // it may want a lock that is held while this object is called
  if (wake) wake();
  lock.lock();
}

std::optional<bool> KvBlockSaver::look(Saved& saved, Packed& packed, std::unique_lock<std::mutex>& lock) {
  const int64_t block_size = ranks_.layout.block_size, index = saved.next;
  std::optional<bool> is_there;
  try {
    const auto begin = saved.tokens.begin() + index * block_size;
    const std::vector<int32_t> tokens(begin, begin + block_size);
    lock.unlock();
    if (index == 0) saved.names.root = hasher_->root(saved.salt, saved.adapter);
    packed.key = {space_, saved.names.root, saved.names.add(*hasher_, tokens), {}};
    // Of a prefix the tail is the older one: it is removed before what more prompts begin with.
    packed.used = saved.used - std::chrono::nanoseconds(index);
    lock.lock();
    const bool is_queued = queued_.contains(packed.key.name.words);
    lock.unlock();
    is_there = is_queued || folder_.touch(packed.key.name, packed.used);
  } catch (const std::exception&) {  // no memory
  }
  if (!lock.owns_lock()) lock.lock();
  return is_there;
}

bool KvBlockSaver::pack(const Saved& saved, Packed& packed, std::unique_lock<std::mutex>& lock) {
  try {
    const int32_t block = saved.block_table[static_cast<size_t>(saved.next)];
    packed.key.tokens.assign(saved.tokens.begin(),
                             saved.tokens.begin() + (saved.next + 1) * ranks_.layout.block_size);
    if (!spare_bodies_.empty()) {
      packed.body = std::move(spare_bodies_.back());
      spare_bodies_.pop_back();
    }
    lock.unlock();
    if (packed.body == nullptr)
      packed.body = pinned_allocate(device_of(ranks_.ranks.front()), static_cast<int64_t>(shape_.body_size));
    const KvBody body({static_cast<std::byte*>(packed.body.get()), shape_.body_size});
    for (const KvBlockPiece& piece : shape_.saved) {
      const std::vector<uint32_t> checksums =
          copier_.pack(ranks_.layout, ranks_.ranks[static_cast<size_t>(piece.rank)], {&block, 1}, piece.part,
                       piece.num_layers, body.part(piece.offset, piece.size));
      packed.checksums.insert(packed.checksums.end(), checksums.begin(), checksums.end());
    }
    lock.lock();
    queued_.insert(packed.key.name.words);
    queue_.push_back(std::move(packed));
    return true;
  } catch (const std::exception&) {  // no memory, or the engine's GPU has failed, which says so itself
    if (!lock.owns_lock()) lock.lock();
    queued_.erase(packed.key.name.words);
    return false;
  }
}

void KvBlockSaver::write_blocks() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Packed packed = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool is_written = write(packed);
    lock.lock();
    queued_.erase(packed.key.name.words);
    spare_bodies_.push_back(std::move(packed.body));
    --num_queued_;
    ++(is_written ? stats_.num_stored_blocks : stats_.num_unstored_blocks);
    if (is_written) stats_.num_stored_bytes += static_cast<int64_t>(shape_.body_size);
    changed_.notify_all();
  }
}

bool KvBlockSaver::write(const Packed& packed) {
  try {
    folder_.write(packed.key.name, kv_block_head(packed.key, packed.checksums),
                  {static_cast<const std::byte*>(packed.body.get()), shape_.body_size}, packed.used);
    return true;
  } catch (const std::exception& error) {  // the folder, or no memory
    if (!std::exchange(has_warned_, true)) warn_(error.what());
    return false;
  }
}

}  // namespace ladder
