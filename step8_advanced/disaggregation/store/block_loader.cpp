#include "step8_advanced/disaggregation/store/block_loader.h"

#include <algorithm>
#include <utility>

#include "step1_layers/core/error.h"

namespace ladder {

using std::chrono::steady_clock;

KvBlockLoader::KvBlockLoader(const KvStoreConfig& config, KvStoreFolder& folder, const KvRanks& ranks,
                             const KvBlockShape& shape, Sha256Digest space)
    : folder_(folder),
      ranks_(ranks),
      shape_(shape),
      space_(space),
      readers_(static_cast<size_t>(config.num_loaders)),
      loaders_(config.num_loaders) {}

KvBlockLoader::~KvBlockLoader() {
  abandon();
}

void KvBlockLoader::start_load(KvLoad load, KvBlockNames names,
                               std::shared_ptr<const std::vector<int32_t>> prompt) {
  const int64_t block_size = ranks_.layout.block_size;
  LADDER_CHECK(load.num_tokens > 0 && load.num_tokens % block_size == 0 && load.first_token % block_size == 0,
               "a load of tokens [{}, {}) from a store of blocks of {}", load.first_token,
               load.first_token + load.num_tokens, block_size);
  const auto started = std::make_shared<Load>();
  started->first = started->next = load.first_token / block_size;
  started->end = started->next + load.num_tokens / block_size;
  started->load = std::move(load);
  started->names = std::move(names);
  started->prompt = std::move(prompt);
  started->begin = steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    loads_[started->load.id] = started;
  }
  loaders_.add([this, started](int thread) { read_next(started, readers_[static_cast<size_t>(thread)]); },
               started->end - started->first);
}

void KvBlockLoader::cancel_load(SequenceId id) {
  std::unique_lock lock(mutex_);
  const auto found = loads_.find(id);
  if (found == loads_.end() || found->second->cancelled) return;
  const std::shared_ptr<Load> load = found->second;
  load->cancelled = true;
  load->next = load->end;
  if (load->num_reading == 0) finish(load, lock);
}

void KvBlockLoader::abandon() {
  loaders_.drop();
  std::unique_lock lock(mutex_);
  std::erase_if(loads_, [](auto& entry) {
    Load& load = *entry.second;
    load.cancelled = true;
    load.next = load.end;
    return load.num_reading == 0;
  });
  changed_.wait(lock, [this] { return loads_.empty(); });
  finished_.take();
}

void KvBlockLoader::read_next(const std::shared_ptr<Load>& load, Reader& reader) {
  std::unique_lock lock(mutex_);
  if (load->next >= load->end) return;  // the rest is not wanted
  const int64_t block = load->next++;
  ++load->num_reading;
  lock.unlock();
  std::string error = read(*load, block, reader);
  lock.lock();
  --load->num_reading;
  if (error.empty()) {
    finished_.count_bytes(static_cast<int64_t>(shape_.body_size));
  } else if (block < load->end) {
    load->end = block;
    load->error = std::move(error);
  }
  if (load->next >= load->end && load->num_reading == 0) finish(load, lock);
}

std::string KvBlockLoader::read(const Load& load, int64_t block, Reader& reader) {
  const int64_t block_size = ranks_.layout.block_size;
  const BlockHash& name = load.names.names[static_cast<size_t>(block)];
  const auto damaged = [&](std::string_view why) {
    folder_.remove(name);
    return fmt::format("{}: {}", folder_.file_of(name).string(), why);
  };
  try {
    const auto begin = load.prompt->begin();
    const KvBlockKey key{space_, load.names.root, name, {begin, begin + (block + 1) * block_size}};
    const size_t head_size = kv_block_head_size(key.tokens.size(), shape_.num_parts);
    if (reader.room < head_size + shape_.body_size) {
      const size_t room = head_size + head_size / 2 + shape_.body_size;
      reader.file = pinned_allocate(device_of(ranks_.ranks.front()), static_cast<int64_t>(room));
      reader.room = room;  // only now: where there is no memory the old one stays as it is
    }
    const std::span<std::byte> file(static_cast<std::byte*>(reader.file.get()), head_size + shape_.body_size);
    std::vector<uint32_t> checksums;
    try {
      if (!folder_.read(name, file)) return "it is not there any more";
      checksums = check_kv_block_head(key, shape_.num_parts, file.first(head_size));
    } catch (const Error& error) {
      return damaged(error.what());
    }
    const KvBody body(file.subspan(head_size));
    const std::span<const int32_t> table(&load.load.block_table[static_cast<size_t>(block)], 1);
    for (const KvBlockPiece& piece : shape_.loaded) {
      const auto expected = std::span(checksums).subspan(static_cast<size_t>(piece.first_part),
                                                         static_cast<size_t>(piece.num_layers));
      if (!reader.copier.unpack(ranks_.layout, ranks_.ranks[static_cast<size_t>(piece.rank)], table,
                                piece.part, piece.num_layers, body.part(piece.offset, piece.size),
                                ranks_.layout.dtype, expected))
        return damaged("its keys and values are damaged");
    }
    return {};
  } catch (const std::exception& error) {  // no memory, or the engine's GPU has failed, which says so itself
    return error.what();
  }
}

void KvBlockLoader::finish(const std::shared_ptr<Load>& load, std::unique_lock<std::mutex>& lock) {
  FinishedKvLoad result{load->load.id, 0, {}};
  if (!load->cancelled) {
    result.num_tokens = (load->end - load->first) * ranks_.layout.block_size;
    result.error = load->error;
  }
  finished_.add(std::move(result), load->load.num_tokens, load->cancelled, load->begin);
  loads_.erase(load->load.id);
  changed_.notify_all();
  lock.unlock();  // who is woken may want a lock that is held while this object is called
  finished_.wake();
}

}  // namespace ladder
