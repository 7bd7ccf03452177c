// Input: what stands in a file of a prefix store, and what is in its head behind a right checksum. Whatever it is, the answer is an
// Error or the checksums of as many parts as there are.
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "step6_engine/process/wire.h"
#include "step8_advanced/disaggregation/layout/kv_checksum.h"
#include "step8_advanced/disaggregation/store/block_file.h"

namespace {

constexpr int64_t kParts = 3;

const ladder::KvBlockKey& key() {
  static const ladder::KvBlockKey key = [] {
    ladder::KvBlockKey mine;
    mine.space[5] = 9;
    mine.root.words = {1, 2, 3, 4};
    mine.name.words = {5, 6, 7, 8};
    mine.tokens.resize(8);
    std::iota(mine.tokens.begin(), mine.tokens.end(), 100);
    return mine;
  }();
  return key;
}

void look_at(const std::string& bytes) {
  try {
    const auto checksums = ladder::check_kv_block_head(key(), kParts, std::as_bytes(std::span(bytes)));
    LADDER_CHECK(std::ssize(checksums) == kParts, "{} checksums", checksums.size());
  } catch (const ladder::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  look_at(bytes);
  std::string right = ladder::kv_block_head(key(), std::vector<uint32_t>{1, 2, 3});
  constexpr size_t kBefore = 8 + 4;  // magic and version
  std::string signed_head = right.substr(0, kBefore);
  ladder::WireWriter{signed_head}(static_cast<uint32_t>(size),
                                  ladder::kv_checksum(std::as_bytes(std::span(bytes))));
  signed_head += bytes;
  signed_head.resize(right.size());
  look_at(signed_head);
  return 0;
}
