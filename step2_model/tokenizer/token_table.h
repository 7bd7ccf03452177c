#pragma once
// The vocabulary by id: the bytes that each token stands for.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ladder {

class TokenTable {
 public:
  // Ids may have gaps, but none reaches this: it bounds what a malformed file can make us allocate.
  static constexpr int64_t kMaxTokens = int64_t{1} << 22;

  // Adds or replaces the token of an id in [0, kMaxTokens).
  void set(int32_t id, std::string_view bytes) {
    if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
    entries_[static_cast<size_t>(id)] = {static_cast<int64_t>(blob_.size()),
                                         static_cast<int32_t>(bytes.size())};
    blob_.append(bytes);
  }

  // One more than the largest id.
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  bool has(int64_t id) const {
    return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].length >= 0;
  }
  // The bytes of an id that has() a token.
  std::string_view bytes(int32_t id) const {
    const Entry& entry = entries_[static_cast<size_t>(id)];
    return std::string_view(blob_).substr(static_cast<size_t>(entry.offset),
                                          static_cast<size_t>(entry.length));
  }

 private:
  struct Entry {
    int64_t offset = 0;
    int32_t length = -1;  // of no token
  };
  std::vector<Entry> entries_;
  std::string blob_;
};

}  // namespace ladder
