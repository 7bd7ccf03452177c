#include "step8_advanced/disaggregation/layout/kv_checksum.h"

#include <array>
#include <cstring>

#include "step1_layers/core/cpu_features.h"

namespace ladder {

namespace {

using Table = std::array<uint32_t, 256>;

// kTables[0][b]: the remainder of byte b; kTables[i][b]: of byte b and i bytes of 0 after it.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = remainder >> 1 ^ (remainder & 1 ? kKvChecksumPolynomial : 0);
    tables[0][byte] = remainder;
  }
  for (size_t i = 1; i < 8; ++i)
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[i - 1][byte];
      tables[i][byte] = before >> 8 ^ tables[0][before & 255];
    }
  return tables;
}
constexpr std::array<Table, 8> kTables = make_tables();

uint64_t word_at(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint32_t add_byte(uint32_t remainder, std::byte byte) {
  return remainder >> 8 ^ kTables[0][(remainder ^ static_cast<uint32_t>(byte)) & 255];
}

#if defined(__x86_64__)

constexpr size_t kLane = 2048;  // bytes of a stream; a multiple of 8

// The remainder after kLane bytes of 0, of each of a remainder's four bytes.
constexpr std::array<Table, 4> make_lane_tables() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t remainder = uint32_t{1} << bit;
    for (size_t i = 0; i < kLane; ++i) remainder = remainder >> 8 ^ kTables[0][remainder & 255];
    of_bit[bit] = remainder;
  }
  std::array<Table, 4> tables{};
  for (size_t byte = 0; byte < 4; ++byte)
    for (size_t value = 0; value < 256; ++value)
      for (size_t bit = 0; bit < 8; ++bit)
        if (value >> bit & 1) tables[byte][value] ^= of_bit[8 * byte + bit];
  return tables;
}

uint32_t after_lane(uint32_t remainder) {
  static constexpr std::array<Table, 4> kTablesOfLane = make_lane_tables();
  return kTablesOfLane[0][remainder & 255] ^ kTablesOfLane[1][remainder >> 8 & 255] ^
         kTablesOfLane[2][remainder >> 16 & 255] ^ kTablesOfLane[3][remainder >> 24];
}

__attribute__((target("sse4.2"))) uint32_t checksum_by_instruction(std::span<const std::byte> bytes,
                                                                   uint32_t before) {
  uint64_t first = ~before;
  for (; bytes.size() >= 3 * kLane; bytes = bytes.subspan(3 * kLane)) {
    uint64_t second = 0, third = 0;
    for (const std::byte* at = bytes.data(); at < bytes.data() + kLane; at += 8) {
      first = __builtin_ia32_crc32di(first, word_at(at));
      second = __builtin_ia32_crc32di(second, word_at(at + kLane));
      third = __builtin_ia32_crc32di(third, word_at(at + 2 * kLane));
    }
    first = after_lane(after_lane(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second)) ^
            static_cast<uint32_t>(third);
  }
  for (; bytes.size() >= 8; bytes = bytes.subspan(8))
    first = __builtin_ia32_crc32di(first, word_at(bytes.data()));
  auto remainder = static_cast<uint32_t>(first);
  for (const std::byte byte : bytes) remainder = add_byte(remainder, byte);
  return ~remainder;
}

#endif

}  // namespace

uint32_t kv_checksum(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
  if (cpu_isa() >= CpuIsa::avx2) return checksum_by_instruction(bytes, before);  // which has SSE 4.2 too
#endif
  return kv_checksum_by_table(bytes, before);
}

uint32_t kv_checksum_by_table(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t remainder = ~before;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const uint64_t word = word_at(bytes.data()) ^ remainder;
    remainder = 0;
    for (size_t i = 0; i < 8; ++i) remainder ^= kTables[7 - i][word >> 8 * i & 255];
  }
  for (const std::byte byte : bytes) remainder = add_byte(remainder, byte);
  return ~remainder;
}

size_t part_size(const KvBody& body, int64_t count) {
  const size_t size = body.size / static_cast<size_t>(count);
  LADDER_CHECK(size * static_cast<size_t>(count) == body.size, "a body of {} bytes is none of {} equal parts",
               body.size, count);
  return size;
}

std::vector<uint32_t> kv_checksums_on_host(const KvBody& body, int64_t count) {
  const size_t size = part_size(body, count);
  std::vector<uint32_t> checksums;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    checksums.push_back(kv_checksum(body.part(i * size, size).on_host()));
  return checksums;
}

}  // namespace ladder
