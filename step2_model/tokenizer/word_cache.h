#pragma once
// A bounded cache from words to their token ids, shared by all threads that encode with one tokenizer.
//
// Text repeats its words, so most BPE merging was done before. The cache is a table of cache lines: a word of
// at most 24 bytes has one place, decided by its hash, and the newest word wins it. Readers take no lock:
// each entry counts its writes, and a reader that sees the count odd or changed treats the entry as a miss (a
// seqlock).
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

namespace ladder {

// A short word, zero-padded into three machine words so that it is compared and hashed without a loop.
struct ShortWord {
  static constexpr size_t kMaxBytes = 24;
  std::array<uint64_t, 3> words{};
  uint64_t length = 0;

  // `word` of at most 24 bytes; `text_end` is how far memory may be read.
  ShortWord(std::string_view word, const char* text_end) : length(word.size()) {
    if (text_end - word.data() >= static_cast<ptrdiff_t>(kMaxBytes)) [[likely]] {
      std::memcpy(words.data(), word.data(), kMaxBytes);
      for (size_t i = 0; i < 3; ++i) {
        const size_t kept = length > 8 * i ? length - 8 * i : 0;
        words[i] &= kept >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * kept) - 1;
      }
    } else {
      std::memcpy(words.data(), word.data(), word.size());
    }
  }

  uint64_t hash() const {
    uint64_t h = (words[0] ^ length) * 0x9e3779b97f4a7c15ull;
    h = ((h ^ h >> 32) + words[1]) * 0xd6e8feb86659fd93ull;
    h = ((h ^ h >> 32) + words[2]) * 0xa0761d6478bd642full;
    return h ^ h >> 32;
  }
};

class WordCache {
 public:
  static constexpr int kMaxIds = 8;

  // Writes the word's ids to `ids` (room for kMaxIds) and returns their number, or 0 where it is not here.
  int find(const ShortWord& word, uint64_t hash, int32_t* ids) const {
    const Entry& entry = entries_[hash & (kEntries - 1)];
    const uint64_t head = entry.head.load(std::memory_order_acquire);
    if ((head & kLengthMask) != word.length << 8 || (head & kBusy) != 0) return 0;
    // Acquire loads keep their order on every machine and cost nothing on x86.
    for (size_t i = 0; i < 3; ++i)
      if (entry.word[i].load(std::memory_order_acquire) != word.words[i]) return 0;
    for (size_t i = 0; i < kMaxIds / 2; ++i) {
      const uint64_t pair = entry.ids[i].load(std::memory_order_acquire);
      std::memcpy(ids + 2 * i, &pair, sizeof(pair));
    }
    if (entry.head.load(std::memory_order_relaxed) != head) return 0;
    return static_cast<int>(head & kCountMask);
  }

  // Keeps 1..kMaxIds ids of a word; gives up where another thread is writing the same entry.
  void insert(const ShortWord& word, uint64_t hash, const int32_t* ids, int count) {
    Entry& entry = entries_[hash & (kEntries - 1)];
    uint64_t head = entry.head.load(std::memory_order_relaxed);
    if ((head & kBusy) != 0 ||
        !entry.head.compare_exchange_strong(head, head | kBusy, std::memory_order_acq_rel))
      return;
    for (size_t i = 0; i < 3; ++i) entry.word[i].store(word.words[i], std::memory_order_release);
    int32_t padded[kMaxIds] = {};
    std::memcpy(padded, ids, static_cast<size_t>(count) * sizeof(int32_t));
    for (size_t i = 0; i < kMaxIds / 2; ++i) {
      uint64_t pair;
      std::memcpy(&pair, padded + 2 * i, sizeof(pair));
      entry.ids[i].store(pair, std::memory_order_release);
    }
    const uint64_t writes = (head >> 16) + 1;
    entry.head.store(writes << 16 | word.length << 8 | static_cast<uint64_t>(count),
                     std::memory_order_release);
  }

 private:
  static constexpr uint64_t kEntries = 1 << 15;  // 2 MiB: about the second-level cache of one core
  static constexpr uint64_t kCountMask = 0x0f, kBusy = 0x80, kLengthMask = 0xff00;

  struct alignas(64) Entry {
    std::atomic<uint64_t> head{0};  // writes so far << 16 | the word's length << 8 | busy | number of ids
    std::array<std::atomic<uint64_t>, 3> word{};
    std::array<std::atomic<uint64_t>, kMaxIds / 2> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(kEntries);
};

}  // namespace ladder
