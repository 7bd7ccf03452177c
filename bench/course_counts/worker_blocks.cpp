// Workers of tasks 3.2 (the pool) and 3.3, 3.4 (the block manager).
#include <map>

#include "bench/course_counts/allocations.h"
#include "bench/course_counts/workers.h"
#include "step3_sequence/block/block_manager.h"
#include "step3_sequence/prefix/hash_prefix_index.h"

namespace ladder::course {
namespace {

using nlohmann::json;

class PoolWorker final : public CountedWorker {
 public:
  explicit PoolWorker(const json& settings) : pool_(settings.at("blocks").get<int64_t>()) {}

  json handle(const json& request) override {
    const auto operations = request.at("operations").get<std::vector<std::pair<std::string, int32_t>>>();
    std::vector<int32_t> taken;
    taken.reserve(operations.size());
    int64_t allocations = 0;
    {
      const Counting counting(allocations);
      for (const auto& [name, id] : operations) {
        if (name == "front") taken.push_back(pool_.take_front());
        if (name == "take") pool_.take(id);
        if (name == "push_front") pool_.push_front(id);
        if (name == "push_back") pool_.push_back(id);
      }
    }
    return {{"taken", taken}, {"free", pool_.free_ids()}, {"allocations", allocations}};
  }

 private:
  BlockPool pool_;
};

// Counts the names that are made: each is a hash over a block's tokens. Not SHA-256, whose library asks for memory.
class CountingHasher final : public BlockHasher {
 public:
  explicit CountingHasher(int64_t& count) : count_(count) {}
  BlockHash root(std::string_view, std::string_view) override { return {{1, 2, 3, 4}}; }
  BlockHash block(const BlockHash& parent, std::span<const int32_t> token_ids) override {
    ++count_;
    BlockHash hash = parent;
    for (const int32_t token : token_ids)
      for (uint64_t& word : hash.words)
        word = (word ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15u + (word >> 29);
    return hash;
  }

 private:
  int64_t& count_;
};

class BlocksWorker final : public CountedWorker {
 public:
  explicit BlocksWorker(const json& settings)
      : blocks_(settings.at("blocks"), settings.at("block_size"),
                std::make_unique<HashPrefixIndex>(settings.at("blocks"), settings.at("block_size"),
                                                  std::make_unique<CountingHasher>(hashes_))) {}

  json handle(const json& request) override {
    const std::string what = request.at("do");
    Held& held = held_[request.at("table")];
    bool ok = true;
    int64_t shared = 0, allocations = 0;
    const int64_t hashes = hashes_;
    const size_t before = held.table.size();
    if (what == "start") {
      held = {};
      held.tokens = request.at("tokens").get<std::vector<int32_t>>();
      held.key.num_prompt_tokens = std::ssize(held.tokens);
      BlockTable found;
      found.reserve(held.tokens.size());
      {
        const Counting counting(allocations);
        blocks_.find_prefix(held.key, held.tokens, found);
        ok = blocks_.allocate(held.table, found, std::ssize(held.tokens));
      }
      shared = std::ssize(found);
      return answer(ok, shared, held.table, 0, allocations, hashes_ - hashes);
    }
    if (what == "grow") {
      const auto tokens = request.at("tokens").get<std::vector<int32_t>>();
      held.tokens.reserve(held.tokens.size() + tokens.size());
      const Counting counting(allocations);
      ok = blocks_.append(held.table, std::ssize(held.tokens) + std::ssize(tokens));
      if (ok) held.tokens.insert(held.tokens.end(), tokens.begin(), tokens.end());
    } else if (what == "computed") {
      const Counting counting(allocations);
      blocks_.cache(held.key, held.tokens, held.table, std::ssize(held.tokens));
    } else {
      {
        const Counting counting(allocations);
        blocks_.free(held.table);
      }
      held_.erase(request.at("table").get<int64_t>());
      return {{"allocations", allocations}, {"hashes", hashes_ - hashes}};
    }
    return answer(ok, shared, held.table, before, allocations, hashes_ - hashes);
  }

 private:
  struct Held {
    std::vector<int32_t> tokens;
    BlockTable table;
    PrefixKey key;
  };

  // `from`: the entries before are known.
  static json answer(bool ok, int64_t shared, const BlockTable& table, size_t from, int64_t allocations,
                     int64_t hashes) {
    const BlockTable added(table.begin() + static_cast<int64_t>(std::min(from, table.size())), table.end());
    return {
        {"ok", ok}, {"shared", shared}, {"added", added}, {"allocations", allocations}, {"hashes", hashes}};
  }

  int64_t hashes_ = 0;
  BlockManager blocks_;
  std::map<int64_t, Held> held_;
};

}  // namespace

std::unique_ptr<CountedWorker> make_pool_worker(const json& settings) {
  return std::make_unique<PoolWorker>(settings);
}
std::unique_ptr<CountedWorker> make_blocks_worker(const json& settings) {
  return std::make_unique<BlocksWorker>(settings);
}

}  // namespace ladder::course
