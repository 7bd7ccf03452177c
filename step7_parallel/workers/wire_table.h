#pragma once
// Rows of small numbers as bytes, a column at a time. In a step that decodes nearly all is alike: every sequence computes one
// token, few get a block, and the ids are close together. So a column is its first value and, of each row, the low bytes in
// which any value differs from that one: none where all are equal.
//
//   256 x {id: 900 ... 1300, num_tokens: 1, draft_token_ids: none}    one field after the other   5,120 bytes
//                                                                     columns                       539 bytes
//
// What differs is an exclusive or: no order between values, no carry, no sign, so a compiler makes vectors of these loops.
//
// Beside a row's struct stands a function columns_of(row): std::tie of all its fields, which are whole numbers and lists of
// such. A list is two columns: the rows' lengths, and the entries of all of them.
#include <algorithm>
#include <tuple>
#include <utility>

#include "step6_engine/process/wire.h"

namespace ladder {

// Values of a column. A reader must have a bound, since those that are all equal take no bytes.
constexpr int64_t kMaxColumn = 1 << 20;

class ColumnWriter {
 public:
  explicit ColumnWriter(std::string& bytes) : bytes_(bytes) {}  // appends

  // Error: more values than kMaxColumn.
  void put(const std::vector<int64_t>& column) {
    LADDER_CHECK(std::ssize(column) <= kMaxColumn, "a column of {} values, expected at most {}",
                 column.size(), kMaxColumn);
    if (column.empty()) return;
    const uint64_t first = static_cast<uint64_t>(column[0]);
    uint64_t differing = 0;
    for (const int64_t value : column) differing |= static_cast<uint64_t>(value) ^ first;
    put_plain(first);
    if (differing == 0) return put_plain(uint8_t{0});
    if (differing <= 0xff) return put_low_bytes<uint8_t>(column, first);
    if (differing <= 0xffff) return put_low_bytes<uint16_t>(column, first);
    if (differing <= 0xffff'ffff) return put_low_bytes<uint32_t>(column, first);
    put_low_bytes<uint64_t>(column, first);
  }

 private:
  template <class T>
  void put_plain(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class T>
  void put_low_bytes(const std::vector<int64_t>& column, uint64_t first) {
    put_plain(static_cast<uint8_t>(sizeof(T)));
    const size_t begin = bytes_.size();
    bytes_.resize(begin + column.size() * sizeof(T));
    char* const to = bytes_.data() + begin;
    for (size_t i = 0; i < column.size(); ++i) {
      const T low = static_cast<T>(static_cast<uint64_t>(column[i]) ^ first);
      std::memcpy(to + i * sizeof(T), &low, sizeof(T));
    }
  }

  std::string& bytes_;
};

// Error: the bytes end before the column, or hold what no writer wrote.
class ColumnReader {
 public:
  explicit ColumnReader(std::string_view bytes) : rest_(bytes) {}

  void get(int64_t count, std::vector<int64_t>& column) {
    LADDER_CHECK(count >= 0 && count <= kMaxColumn, "message: a column of {} values, expected at most {}",
                 count, kMaxColumn);
    column.resize(static_cast<size_t>(count));
    if (count == 0) return;
    const auto first = get_plain<uint64_t>();
    switch (const auto width = get_plain<uint8_t>()) {
      case 0:
        return std::fill(column.begin(), column.end(), static_cast<int64_t>(first));
      case 1:
        return get_low_bytes<uint8_t>(column, first);
      case 2:
        return get_low_bytes<uint16_t>(column, first);
      case 4:
        return get_low_bytes<uint32_t>(column, first);
      case 8:
        return get_low_bytes<uint64_t>(column, first);
      default:
        fail("message: a column of {} bytes a value", width);
    }
  }
  void expect_end() const {
    LADDER_CHECK(rest_.empty(), "message: {} bytes are left behind the last column", rest_.size());
  }

 private:
  std::string_view take(size_t count) {
    LADDER_CHECK(count <= rest_.size(), "message: {} bytes of a column expected, there are {}", count,
                 rest_.size());
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  template <class T>
  T get_plain() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  void get_low_bytes(std::vector<int64_t>& column, uint64_t first) {
    const char* const from = take(column.size() * sizeof(T)).data();
    for (size_t i = 0; i < column.size(); ++i) {
      T low;
      std::memcpy(&low, from + i * sizeof(T), sizeof(T));
      column[i] = static_cast<int64_t>(first ^ low);
    }
  }

  std::string_view rest_;
};

template <class Row>
using ColumnsOf = decltype(columns_of(std::declval<Row&>()));

// work(access) for each field of a row; access(row) is that field.
template <class Row, class Work>
void for_each_column(Work work) {
  [&]<size_t... I>(std::index_sequence<I...>) {
    (work([](auto& row) -> auto& { return std::get<I>(columns_of(row)); }), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<ColumnsOf<Row>>>());
}

template <class Row>
void wire_table(WireWriter& wire, const std::vector<Row>& rows) {
  std::string bytes;
  bytes.reserve(64 + 8 * rows.size());
  ColumnWriter out(bytes);
  std::vector<int64_t> column(rows.size()), entries;
  for_each_column<const Row>([&](auto field) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(field(rows[0]))>>) {
      for (size_t i = 0; i < rows.size(); ++i) column[i] = field(rows[i]);
      out.put(column);
    } else {
      int64_t total = 0;
      for (size_t i = 0; i < rows.size(); ++i) total += column[i] = std::ssize(field(rows[i]));
      out.put(column);
      entries.resize(static_cast<size_t>(total));
      int64_t* next = entries.data();
      for (const Row& row : rows)
        for (const auto entry : field(row)) *next++ = entry;
      out.put(entries);
    }
  });
  wire(std::ssize(rows), bytes);
}

// Into the rows that are there, whose memory is used again.
template <class Row>
void wire_table(WireReader& wire, std::vector<Row>& rows) {
  const auto num_rows = wire.value<int64_t>();
  const auto bytes = wire.value<std::string>();
  ColumnReader in(bytes);
  std::vector<int64_t> column, entries;
  const auto narrow = []<class T>(int64_t value, T& into) {
    into = static_cast<T>(value);
    LADDER_CHECK(into == value, "message: {} is no value of this column", value);
  };
  LADDER_CHECK(num_rows >= 0 && num_rows <= kMaxColumn, "message: a table of {} rows, expected at most {}",
               num_rows, kMaxColumn);
  rows.resize(static_cast<size_t>(num_rows));
  for_each_column<Row>([&](auto field) {
    in.get(num_rows, column);
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(field(rows[0]))>>) {
      for (size_t i = 0; i < rows.size(); ++i) narrow(column[i], field(rows[i]));
    } else {
      int64_t total = 0;
      for (const int64_t length : column) {
        LADDER_CHECK(length >= 0 && length <= kMaxColumn - total, "message: a list of {} entries", length);
        total += length;
      }
      in.get(total, entries);
      const int64_t* next = entries.data();
      for (size_t i = 0; i < rows.size(); ++i) {
        field(rows[i]).resize(static_cast<size_t>(column[i]));
        for (auto& entry : field(rows[i])) narrow(*next++, entry);
      }
    }
  });
  in.expect_end();
}

}  // namespace ladder
